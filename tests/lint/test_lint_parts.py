"""The parts of lint: samples, patterns, sums that are known, how much is open at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_series import save_numpy, walk, write_series

from normgrowth.checkpoints.checkpoint import Chunked, MappedCheckpoint, Piece, Ranges, Strided, Tensor
from normgrowth.checkpoints.series import open_source
from normgrowth.lint import lint
from normgrowth.lint.checks.tensors import odd_runs
from normgrowth.lint.checks.trajectory import reordered
from normgrowth.trace.by_step import measure_checkpoint
from normgrowth.trace.sampling.sampled_steps import StepSampler
from normgrowth.trace.sampling.samples import pattern, places, sample


def test_two_checkpoints_are_open_at_most(tmp_path, monkeypatch):
    opened: set[str] = set()
    most = 0
    close, pieces = MappedCheckpoint.close, MappedCheckpoint.pieces

    def closing(self: MappedCheckpoint) -> None:
        opened.discard(self.label)
        close(self)

    def reading(self: MappedCheckpoint, name: str) -> list[np.ndarray]:
        nonlocal most
        opened.add(self.label)
        most = max(most, len(opened))
        return pieces(self, name)

    monkeypatch.setattr(MappedCheckpoint, "close", closing)
    monkeypatch.setattr(MappedCheckpoint, "pieces", reading)
    report = lint(write_series(tmp_path, walk(6)))
    assert report.steps == (0, 100, 200, 300, 400, 500)
    assert most == 2
    assert not opened


def test_progress_comes_to_all_checkpoints(tmp_path):
    calls: list[tuple[int, int, str]] = []
    lint(write_series(tmp_path, walk(3)), progress=lambda *call: calls.append(call))
    assert len(calls) == 3
    assert calls[0][0] == 0
    assert all(done < total for done, total, _ in calls)


def test_known_sums_are_taken_as_they_are(tmp_path):
    """A trace has them already, and lint of the same pass need not read twice."""
    series = open_source(write_series(tmp_path, walk(2)))
    one, other = (entry.open() for entry in series.entries)
    names = list(one.tensors)
    own, given_sums = StepSampler(), StepSampler()
    for observer, known in ((own, None), (given_sums, measure_checkpoint(one, [], names))):
        observer.sample(0, 0, one, names, known)
    sums = measure_checkpoint(other, [("previous", one)], names)
    a, b = own.sample(1, 100, other, names), given_sums.sample(1, 100, other, names, sums)
    assert np.array_equal(a.delta, b.delta)
    assert np.array_equal(a.square, b.square)
    assert np.array_equal(a.changed, b.changed)
    one.close()
    other.close()


def test_a_sample_is_the_same_whatever_the_layout(tmp_path, rng):
    values = rng.normal(size=(60, 40)).astype(np.float32)
    expected = values.reshape(-1)[places(values.size, 100)]
    path = tmp_path / "values"
    boxes = tuple(((i, j), (30, 10)) for i in (0, 30) for j in (0, 10, 20, 30))
    stored = {
        "plain": (values, None, [2400]),
        "transposed": (values.T, Strided((1, 60)), [2400]),
        "boxes": (
            np.concatenate([values[i : i + 30, j : j + 10].reshape(-1) for (i, j), _ in boxes]),
            Chunked(boxes),
            [300] * 8,
        ),
    }
    for name, (array, layout, sizes) in stored.items():
        path.write_bytes(np.ascontiguousarray(array).tobytes())
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        pieces = tuple(Piece("", 4 * start, size) for start, size in zip(starts, sizes, strict=True))
        tensors = {"x": Tensor("F32", (60, 40), layout)}
        checkpoint = MappedCheckpoint(name, tensors, Ranges({"x": pieces}), path)
        assert np.array_equal(sample(checkpoint, "x", 100), expected), name


@given(numel=st.integers(1, 10_000_000), count=st.integers(1, 5000))
def test_places_are_in_range_and_spread(numel, count):
    at = places(numel, count)
    assert len(at) == min(numel, count)
    assert at[0] >= 0
    assert at[-1] < numel
    assert (np.diff(at) > 0).all()


def test_places_do_not_keep_to_one_column():
    assert len(set((places(4096 * 4096, 4096) % 4096).tolist())) > 2000


def test_patterns_of_values(rng):
    assert pattern(np.zeros(10)) == "zeros"
    assert pattern(np.ones(10)) == "ones"
    assert pattern(np.full(10, 0.1)) == "constant"
    assert pattern(0.02 * rng.normal(size=4096)) == "normal"
    assert pattern(rng.uniform(-0.1, 0.1, size=4096)) == "uniform"
    assert pattern(rng.standard_t(3, size=4096)) == ""
    assert pattern(1 + 0.02 * rng.normal(size=4096)) == ""
    assert pattern(np.array([1.0, np.nan])) == ""


@pytest.mark.parametrize(
    ("values", "odd"),
    [("aaaa", []), ("aabb", [(2, 4)]), ("abbb", [(1, 4)]), ("aabaa", [(2, 3)]), ("abaca", [(1, 2), (3, 4)])],
)
def test_odd_runs(values, odd):
    assert odd_runs(values) == odd


def test_float64_and_mixed_series(tmp_path, rng):
    """Relative steps of 1e-9, which float32 would not see, and integers beside them."""
    values = {"h.0.attn.q.weight": rng.normal(size=(32, 32)), "h.0.attn.k.weight": rng.normal(size=(32, 32))}
    steps = [{name: x + 1e-9 * i * rng.normal(size=x.shape) for name, x in values.items()} for i in range(6)]
    for i, state in enumerate(steps):
        save_numpy({**state, "h.0.ids": np.arange(4)}, tmp_path / f"step_{i}.safetensors")
    assert not lint(tmp_path)


@pytest.mark.slow
def test_a_shuffled_series_takes_no_long_time(rng):
    """Every stretch of it could be shorter, and only so many are said to be."""
    points = np.cumsum(rng.normal(size=(80, 50)), axis=0)[rng.permutation(80)]
    distances = ((points[:, None] - points) ** 2).sum(axis=-1)
    assert len(list(reordered(range(80), distances))) == 20
