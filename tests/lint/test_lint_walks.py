"""Lint on random walks that lie: quick, since nothing is trained."""

import json
import re

import pytest
import torch
from synthetic_series import moved, save_file, tiny_state, walk, write_series

from normgrowth.lint import lint

MATRIX = "transformer.h.0.attn.c_proj.weight"


def slow_walk(count=8):
    states = [tiny_state()]
    for i in range(1, count):
        states.append(moved(states[-1], i, 0.01))
    return states


def said(folder, **options):
    return [(f.step, f.name, f.kind) for f in lint(folder, **options)]


@pytest.mark.parametrize("factor", [1000.0, 2.0, 0.5, 0.01])
@pytest.mark.parametrize("first", [3, 7])
@pytest.mark.parametrize("name", ["", MATRIX])
def test_weights_rescaled_from_here_on(tmp_path, factor, first, name):
    """The direction is as it was, and only the norm jumps."""
    states = slow_walk()
    for state in states[first:]:
        state |= {other: factor * tensor for other, tensor in state.items() if name in ("", other)}
    (finding,) = lint(write_series(tmp_path, states))
    assert (finding.step, finding.name, finding.kind) == (100 * first, name, "run")
    near, times = re.search(r"step (\d+) times (\S+)", finding.why).groups()
    assert int(near) == 100 * (first - 1)
    assert float(times) == pytest.approx(factor, rel=0.02)


def test_a_first_checkpoint_of_zeros(tmp_path):
    states = slow_walk()
    states[0] = {name: torch.zeros_like(tensor) for name, tensor in states[0].items()}
    assert said(write_series(tmp_path / "first", states)) == [(0, "", "initial")]
    assert said(write_series(tmp_path / "alone", states[:1])) == [(0, "", "initial")]


def test_zeros_in_between_have_a_cosine(tmp_path):
    states = slow_walk()
    states[4] = {name: torch.zeros_like(tensor) for name, tensor in states[4].items()}
    (finding,) = lint(write_series(tmp_path, states))
    assert finding.step == 400
    assert "nan" not in finding.why


def test_an_empty_tensor_is_not_frozen(tmp_path):
    states = slow_walk()
    for state in states:
        state["transformer.h.0.attn.none.weight"] = torch.zeros(0, 8)
    assert not lint(write_series(tmp_path, states))


def test_a_pattern_of_folders_of_which_one_is_damaged(tmp_path):
    for i, state in enumerate(walk(5)):
        folder = tmp_path / f"checkpoint-{100 * i}"
        folder.mkdir()
        save_file(state, folder / "model-00001-of-00001.safetensors")
        index = {"weight_map": dict.fromkeys(state, "model-00001-of-00001.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    pattern = str(tmp_path / "checkpoint-*")
    assert not lint(pattern)
    (tmp_path / "checkpoint-200" / "model-00001-of-00001.safetensors").unlink()
    assert said(pattern) == [(200, "", "partial")]


def test_a_file_that_vanishes_is_told_once(tmp_path):
    folder = write_series(tmp_path, walk(5))

    def vanish(done, total, label):
        (folder / "step_200.safetensors").unlink(missing_ok=True)

    (finding,) = lint(folder, progress=vanish)
    assert (finding.step, finding.kind) == (200, "partial")
    assert finding.why.count("cannot be read") == 1


def test_a_stranger_is_found_near_an_interval_of_large_steps(tmp_path):
    states = slow_walk(6)
    for i, size in enumerate((1.0, 0.01, 0.01)):  # for one interval the rate was far too high
        states.append(moved(states[-1], 10 + i, size))
    assert not lint(write_series(tmp_path / "honest", states))
    states[4] = tiny_state(9)
    assert said(write_series(tmp_path / "lie", states)) == [(400, "", "run")]


def test_a_tensor_that_stood_still_between_copies(tmp_path):
    """No interval before it tells, but the tensor had moved."""
    states = slow_walk(10)
    states[5][MATRIX] = states[4][MATRIX]
    states[1] = states[3] = states[9]
    found = lint(write_series(tmp_path, states))
    assert [(f.step, f.name, f.kind) for f in found if f.severity == "fault"] == [
        (100, "", "identical"),
        (300, "", "identical"),
        (500, MATRIX, "stale"),
    ]


def noisy(count, seed=0):
    """Weights that go back and forth in two directions, and slowly on in two others."""
    generator = torch.Generator().manual_seed(seed)
    states, noise = [tiny_state()], torch.zeros(2)
    ways = [moved(states[0], seed + 10 + i, 0.01) for i in range(4)]
    for t in range(1, count):
        noise = 0.3 * noise + torch.randn(2, generator=generator)
        parts = [*noise.tolist(), 0.02 * t, 0.02 * t]
        states.append(
            {
                name: start + sum(part * (way[name] - start) for part, way in zip(parts, ways, strict=True))
                for name, start in states[0].items()
            }
        )
    return states


def test_weights_that_go_back_and_forth_are_not_out_of_order(tmp_path):
    (finding,) = lint(write_series(tmp_path, noisy(150)))
    assert (finding.kind, finding.severity, finding.name) == ("order", "remark", "")


def test_a_shuffled_series_is_out_of_order(tmp_path):
    states = noisy(150)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0)).tolist()
    found = lint(write_series(tmp_path, [states[place] for place in order]))
    assert sum(finding.kind == "order" and finding.severity == "fault" for finding in found) >= 20


def test_a_checkpoint_that_jumps_and_returns_is_not_called_initialized(tmp_path):
    states = slow_walk(12)
    states[6] = moved(states[6], 99, 0.1)
    (finding,) = lint(write_series(tmp_path, states))
    assert (finding.step, finding.kind) == (600, "run")
    assert "re-initialized" not in finding.why


@pytest.mark.parametrize("copied", [-1, -2])
def test_which_of_the_last_two_is_the_copy_is_left_open(tmp_path, copied):
    """A random walk: the way to both is as long as two intervals if the last one was put into the one before."""
    states = slow_walk(10)
    states[copied] = states[-3 - copied]
    (finding,) = lint(write_series(tmp_path, states))
    assert (finding.step, finding.kind, finding.severity) == (900, "identical", "fault")
    assert "step 800" in finding.why
    if copied == -2:
        assert "either" in finding.why
