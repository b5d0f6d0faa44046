"""Lint on series that lie, each in one way, made from real training."""

import contextlib
import itertools
import math
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from synthetic_series import moved, save_file, walk, write_series
from tiny_runs import EVERY, State, faults, remarks, train, write

from normgrowth import trace
from normgrowth.checkpoints.series import open_source
from normgrowth.errors import InputError, SeriesWarning
from normgrowth.lint import lint
from normgrowth.trace.sampling.finding import KINDS
from normgrowth.trace.sampling.samples import buffer_like, sample

FC = "transformer.h.0.mlp.c_fc.weight"
BIAS = "transformer.h.0.mlp.c_fc.bias"
QKV = "transformer.h.1.attn.c_attn.weight"
GAIN = "transformer.h.1.ln_2.weight"


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[int, State]]:
    """A run; one from another seed; and one from the same initial weights on other data."""
    return {"base": train(), "other": train(seed=1), "cousin": train(data=1)}


@pytest.fixture
def base(runs):
    return {step: dict(state) for step, state in runs["base"].items()}


def check(tmp_path, series, expected, said=()):
    """Exactly these faults, and these remarks; the same from a trace, where the tensors allow one."""
    found = lint(write(tmp_path, series))
    with warnings.catch_warnings(), contextlib.suppress(InputError):
        warnings.simplefilter("ignore", SeriesWarning)
        assert trace(tmp_path, include="all").findings == tuple(found)
    assert sorted(faults(found), key=str) == sorted(expected, key=str)
    assert sorted(remarks(found), key=str) == sorted(said, key=str)
    assert all(f.kind in KINDS and f.why and Path(f.label).exists() for f in found)
    return found


def test_the_honest_run_is_clean(base, tmp_path):
    check(tmp_path, base, [])


@pytest.mark.parametrize(("step", "true"), [(30, 25), (25, 30), (60, 55), (5, 0), (40, 0)])
def test_a_checkpoint_that_holds_another_steps_weights(base, tmp_path, step, true):
    base[step] = base[true]
    (finding,) = check(tmp_path, base, [(step, "", "identical")])
    assert f"step {true}" in finding.why


@pytest.mark.parametrize("copies", [(10, 15, 35), tuple(range(30, 60, 5)), tuple(range(0, 31, 5)), (0, 55)])
def test_final_weights_in_earlier_steps(base, tmp_path, copies):
    """As 76 of Pythia-2.8b's 154 revisions had them."""
    for step in copies:
        base[step] = base[60]
    found = check(tmp_path, base, [(step, "", "identical") for step in copies])
    assert all("step 60" in finding.why for finding in found)


def test_copies_are_found_in_other_formats_and_dtypes(base, tmp_path):
    for step, state in base.items():
        torch.save(
            {"model": {n: t.half() for n, t in state.items()}, "step": step}, tmp_path / f"step_{step}.pt"
        )
    (tmp_path / "step_20.pt").write_bytes((tmp_path / "step_60.pt").read_bytes())
    found = lint(tmp_path)
    assert faults(found) == [(20, "", "identical")]


@pytest.mark.parametrize("step", [30, 60])
def test_a_tensor_that_stood_still_while_others_moved(base, tmp_path, step):
    base[step][FC] = base[step - 5][FC]
    check(tmp_path, base, [(step, FC, "stale")])


def test_a_stale_shard(base, tmp_path):
    """One that cuts through a layer; a whole layer may have been frozen, which is a remark."""
    layer = [name for name in base[0] if ".h.1." in name]
    for name in layer:
        base[30][name] = base[35][name] = base[25][name]
    check(tmp_path / "layer", base, [], [(30, name, "frozen") for name in layer])
    base[30][FC] = base[35][FC] = base[25][FC]
    check(tmp_path / "shard", base, [(30, name, "stale") for name in (*layer, FC)])


def test_a_shard_of_the_final_checkpoint(base, tmp_path):
    """As steps 50000 and 58000 of Pythia-12b had it."""
    names = [name for name in base[0] if ".h.0." in name]
    for step, name in itertools.product((20, 30), names):
        base[step][name] = base[60][name]
    found = check(tmp_path, base, [(step, name, "identical") for step in (20, 30) for name in names])
    assert all("step 60" in finding.why or "step 30" in finding.why for finding in found)


def test_nearly_all_of_another_step(base, tmp_path):
    base[20] = {**base[60], BIAS: base[20][BIAS]}
    (finding,) = check(tmp_path, base, [(20, "", "identical")])
    assert "27 of 28 tensors" in finding.why


@pytest.mark.parametrize(
    ("run", "steps"),
    [("other", [30]), ("other", [30, 35]), ("other", [15, 40]), ("cousin", [30])],
)
def test_checkpoints_of_another_run(runs, base, tmp_path, run, steps):
    for step in steps:
        base[step] = runs[run][step]
    found = check(tmp_path, base, [(step, "", "run") for step in steps])
    words = "same initial weights" if run == "cousin" else "another run"
    assert all(words in finding.why for finding in found)


@pytest.mark.parametrize("first", [10, 30, 60])
def test_another_run_from_here_on(runs, base, tmp_path, first):
    for step in range(first, 61, 5):
        base[step] = runs["other"][step]
    check(tmp_path, base, [(first, "", "run")])


def test_a_first_checkpoint_that_the_rest_does_not_come_from(runs, base, tmp_path):
    """As step 0 of Pythia-160m's weight seeds."""
    base[0] = runs["other"][0]
    check(tmp_path, base, [(0, "", "run")])


def test_two_runs_that_take_turns(runs, base, tmp_path):
    for step in range(5, 61, 10):
        base[step] = runs["other"][step]
    check(tmp_path, base, [(5, "", "run")])


def test_weights_scaled_at_one_step(base, tmp_path):
    base[40] = {name: 2 * tensor for name, tensor in base[40].items()}
    check(tmp_path, base, [(40, "", "run")])


def test_freshly_initialized(runs, base, tmp_path):
    base[40] = runs["other"][0]
    (finding,) = check(tmp_path, base, [(40, "", "initial")])
    assert "exactly 1 and 0" in finding.why


def test_a_tensor_that_was_initialized_again(runs, base, tmp_path):
    base[40][QKV] = runs["other"][0][QKV]
    check(tmp_path / "once", base, [(40, QKV, "run")])
    for step in range(40, 61, 5):
        base[step][QKV] = runs["other"][step - 40][QKV]
    check(tmp_path / "for good", base, [(40, QKV, "run")])


def test_a_tensor_whose_values_lie_as_freshly_drawn(tmp_path):
    generator = torch.Generator().manual_seed(0)
    heavy = {  # a matrix with heavy tails, as training makes them
        "h.0.attn.q.weight": torch.randn(64, 64, generator=generator) ** 3,
        "h.0.attn.k.weight": torch.randn(64, 64, generator=generator) ** 3,
        "h.0.attn.v.weight": torch.randn(64, 64, generator=generator) ** 3,
    }
    series = [heavy]
    for i in range(7):
        series.append(moved(series[-1], i + 1, 0.01))
    series[4]["h.0.attn.k.weight"] = 0.02 * torch.randn(64, 64, generator=generator)
    check(
        tmp_path, {100 * i: state for i, state in enumerate(series)}, [(400, "h.0.attn.k.weight", "initial")]
    )


@pytest.mark.parametrize(("name", "value"), [(GAIN, 1.0), (BIAS, 0.0)])
def test_gains_and_biases_back_at_their_start(base, tmp_path, name, value):
    base[40][name] = torch.full_like(base[40][name], value)
    check(tmp_path, base, [(40, name, "initial")])


def test_a_series_that_runs_backwards(base, tmp_path):
    (finding,) = check(tmp_path, {60 - step: state for step, state in base.items()}, [(60, "", "initial")])
    assert "backwards" in finding.why


@pytest.mark.parametrize("pair", [(20, 25), (10, 20), (10, 45), (55, 60), (15, 60)])
def test_two_steps_exchanged(base, tmp_path, pair):
    one, other = pair
    base[one], base[other] = base[other], base[one]
    found = check(tmp_path, base, [(one, "", "order"), (other, "", "order")])
    assert f"step {other}" in found[0].why
    assert f"step {one}" in found[1].why


def test_the_first_two_exchanged(base, tmp_path):
    base[0], base[5] = base[5], base[0]
    check(tmp_path, base, [(5, "", "initial")])


@pytest.mark.parametrize(("at", "to"), [(3, 12), (10, 3)])
def test_one_step_in_the_wrong_place(base, tmp_path, at, to):
    order = list(EVERY)
    order.insert(to, order.pop(at))
    series = {step: base[true] for step, true in zip(EVERY, order, strict=True)}
    check(tmp_path, series, [(EVERY[to], "", "order")])


def test_steps_inside_the_files_that_contradict_their_names(tmp_path):
    for i, state in enumerate(walk(4)):
        inside = {0: 10, 1: 20, 2: 5, 3: 30}[i]
        save_file(state, tmp_path / f"step_{i}.safetensors", metadata={"step": str(inside)})
    assert faults(lint(tmp_path)) == [(2, "", "order")]


def test_missing_and_new_tensors(base, tmp_path):
    del base[30][FC]
    check(tmp_path / "once", base, [(30, FC, "missing")])
    for step in range(35, 61, 5):
        del base[step][FC]
    check(tmp_path / "for good", base, [(30, FC, "missing")])
    generator = torch.Generator().manual_seed(0)
    for step in range(45, 61, 5):
        base[step]["transformer.h.0.extra.weight"] = torch.randn(8, 8, generator=generator)
    check(tmp_path / "new", base, [(30, FC, "missing"), (45, "transformer.h.0.extra.weight", "new")])


def test_a_tied_head_that_is_no_longer_stored_is_a_remark(base, tmp_path):
    for step in range(0, 26, 5):
        base[step]["lm_head.weight"] = base[step]["transformer.wte.weight"].clone()
    found = check(tmp_path, base, [], [(30, "lm_head.weight", "missing")])
    assert "transformer.wte.weight" in found[0].why


def test_reshaped_and_renamed_tensors(base, tmp_path):
    base[30][FC] = base[30][FC].reshape(64, 64)
    check(tmp_path / "reshaped", base, [(30, FC, "reshaped")])
    base[30][FC] = base[30][FC].reshape(32, 128)
    base[30]["transformer.h.0.mlp.up.weight"] = base[30].pop(FC)
    (finding,) = check(tmp_path / "renamed", base, [(30, "transformer.h.0.mlp.up.weight", "renamed")])
    assert FC in finding.why


def test_all_tensors_renamed_from_here_on_are_still_followed(base, tmp_path):
    """Gains are all exactly 1 at first, so that only their names tell them apart."""
    for step in range(5, 61, 5):
        base[step] = {f"model.{name}": tensor for name, tensor in base[step].items()}
    check(tmp_path / "renamed", base, [(5, "", "renamed")])
    base[30][f"model.{FC}"] = base[25][f"model.{FC}"]
    check(tmp_path / "stale", base, [(5, "", "renamed"), (30, f"model.{FC}", "stale")])


def test_values_that_are_not_finite(base, tmp_path):
    base[30][FC] = base[30][FC].clone()
    base[30][FC][0, :2] = torch.tensor([math.nan, math.inf])
    (finding,) = check(tmp_path / "two", base, [(30, FC, "nonfinite")])
    assert "2 of 4096" in finding.why
    for step in range(40, 61, 5):
        base[step] = {name: torch.full_like(tensor, math.nan) for name, tensor in base[step].items()}
    expected = [(30, FC, "nonfinite"), *((step, "", "nonfinite") for step in range(40, 61, 5))]
    check(tmp_path / "diverged", base, expected)


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b"", lambda b: b"x" * 50, lambda b: b[:8]])
def test_partial_files_do_not_stop_it(base, tmp_path, damage):
    base[45][FC] = base[40][FC]
    write(tmp_path, base)
    for step in (0, 30, 60):
        path = tmp_path / f"step_{step}.safetensors"
        path.write_bytes(damage(path.read_bytes()))
    found = lint(tmp_path)
    assert faults(found) == [
        (0, "", "partial"),
        (30, "", "partial"),
        (45, FC, "stale"),
        (60, "", "partial"),
    ]


def test_shards_that_are_missing_do_not_stop_it(tmp_path):
    for i, state in enumerate(walk(5)):
        folder = tmp_path / f"checkpoint-{100 * i}"
        folder.mkdir()
        names = list(state)
        shards = {
            "model-00001-of-00002.safetensors": names[:6],
            "model-00002-of-00002.safetensors": names[6:],
        }
        for shard, part in shards.items():
            save_file({name: state[name] for name in part}, folder / shard)
        index = {name: shard for shard, part in shards.items() for name in part}
        text = str({"weight_map": index}).replace("'", '"')
        (folder / "model.safetensors.index.json").write_text(text)
    assert not lint(tmp_path)
    (tmp_path / "checkpoint-200" / "model-00002-of-00002.safetensors").unlink()
    (finding,) = lint(tmp_path)
    assert (finding.step, finding.kind) == (200, "partial")
    assert "model-00002-of-00002" in finding.why
    assert finding == lint([tmp_path / f"checkpoint-{100 * i}" for i in range(5)])[0]


def test_nothing_that_can_be_read_is_an_error(tmp_path):
    for step in (1, 2):
        (tmp_path / f"step_{step}.safetensors").write_bytes(b"{}")
    with pytest.raises(InputError, match="step_1"):
        lint(tmp_path)
    with pytest.raises(InputError, match="no such"):
        lint(tmp_path / "nowhere")
    write_series(tmp_path / "fine", walk(2))
    with pytest.raises(InputError, match="no tensor is counted"):
        lint(tmp_path / "fine", select="nothing")


WAVES = torch.arange(64)[:, None] * 10000 ** (-torch.arange(0, 16) / 16)
BUFFERS = {
    "transformer.h.0.attn.causal": torch.tril(torch.ones(32, 32)),
    "transformer.h.0.attn.added": torch.triu(torch.full((32, 32), -1e9), 1),
    "transformer.h.0.attn.infinite": torch.triu(torch.full((32, 32), -math.inf), 1),
    "transformer.h.0.attn.filler": torch.tensor(-1e4),
    "transformer.h.0.attn.freqs": WAVES[1].clone(),
    "transformer.buckets": torch.arange(32.0),
    "transformer.table": torch.cat([WAVES.sin(), WAVES.cos()], 1),
    "transformer.h.0.attn.cache": torch.cat([WAVES.cos(), WAVES.cos()], 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_that_pose_as_parameters(base, tmp_path, dtype):
    for state in base.values():
        state |= {name: tensor.to(dtype) for name, tensor in BUFFERS.items()}
    found = check(tmp_path, base, [(5, name, "buffer") for name in BUFFERS])
    pattern = "|".join(f.why.split("--exclude ")[1].strip("'") for f in found)
    assert not lint(tmp_path, exclude=pattern)


def test_no_parameter_looks_like_a_buffer(base, tmp_path):
    series = open_source(write(tmp_path, {0: base[0], 60: base[60]}))
    for entry in series.entries:
        checkpoint = entry.open()
        for name, tensor in checkpoint.tensors.items():
            values = sample(checkpoint, name, 4096)
            assert buffer_like(tensor, values, partial(checkpoint.dense, name)) == "", (name, tensor)
        checkpoint.close()


def test_another_dtype_from_here_on_is_a_remark(base, tmp_path):
    for step in range(30, 61, 5):
        base[step] = {name: tensor.bfloat16() for name, tensor in base[step].items()}
    check(tmp_path, base, [], [(30, "", "dtype")])


def test_a_lone_checkpoint(base, tmp_path):
    check(tmp_path / "trained", {60: base[60]}, [])
    check(tmp_path / "fresh", {0: base[0]}, [], [(0, "", "initial")])
    base[60]["transformer.h.0.attn.causal"] = BUFFERS["transformer.h.0.attn.causal"]
    check(tmp_path / "buffer", {60: base[60]}, [(60, "transformer.h.0.attn.causal", "buffer")])


def test_results_do_not_depend_on_the_number_of_workers(base, tmp_path):
    base[30], base[45][FC] = base[55], base[40][FC]
    write(tmp_path, base)
    assert lint(tmp_path, workers=1).findings == lint(tmp_path, workers=3).findings


def test_garbage_in_place_of_weights(base, tmp_path, rng):
    """Any bits are numbers: huge ones, NaN. Nothing overflows on the way to the finding."""
    noise = torch.frombuffer(bytearray(rng.bytes(4 * base[30][FC].numel())), dtype=torch.float32)
    base[30][FC] = noise.reshape(base[30][FC].shape)
    found = lint(write(tmp_path / "with NaN", base))
    assert faults(found) == [(30, FC, "nonfinite")]
    base[30][FC] = torch.nan_to_num(base[30][FC])
    check(tmp_path / "finite", base, [(30, FC, "run")])
