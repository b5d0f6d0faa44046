"""Moments and quantities against the obvious float64 code, exact sums, and the laws they must obey."""

import ctypes
import gc
import itertools
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save_file

from normgrowth.checkpoints.checkpoint import MappedCheckpoint, Ranges, Tensor
from normgrowth.checkpoints.series import open_source
from normgrowth.moments.moments import Moments, accumulated, quantities
from normgrowth.trace.by_step import measure_checkpoint

BITS = {"F64": np.uint64, "F32": np.uint32, "BF16": np.uint16, "F16": np.int16}
TORCH = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def stored(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Raw bits in a storage type (rounded by torch, an independent party), and the numbers they hold."""
    tensor = torch.tensor(np.asarray(values)).to(TORCH[dtype])
    plain = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(plain).numpy().view(BITS[dtype]), tensor.double().numpy()


class InMemory(MappedCheckpoint):
    """Tensors that lie in no file."""

    def __init__(self, dtype: str, tensors: dict[str, np.ndarray]) -> None:
        index = {name: Tensor(dtype, bits.shape) for name, bits in tensors.items()}
        super().__init__(
            "memory", index, Ranges({name: (name,) for name in tensors}), Path(), reads_whole=True
        )
        self.arrays = tensors

    def _view(self, name: str, piece: object) -> np.ndarray:
        return self.arrays[name].reshape(-1)

    def addresses(self, names):
        return np.zeros(len(names), np.int64), []


def checkpoint(dtype: str, **tensors: np.ndarray) -> InMemory:
    return InMemory(dtype, tensors)


def moments_of(dtype, b, **references) -> Moments:
    refs = [(label, checkpoint(dtype, x=bits)) for label, bits in references.items()]
    return measure_checkpoint(checkpoint(dtype, x=b), refs, ["x"])


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("size", [0, 1, 7, 2047, 2049, 100_003, (1 << 20) + 5])
def test_sums_equal_the_obvious_ones(dtype, size, rng):
    theta = rng.standard_normal(size)
    (b, B), (a, A), (z, Z) = (
        stored(values, dtype)
        for values in (theta, theta + 0.01 * rng.standard_normal(size), rng.random(size))
    )
    got = moments_of(dtype, b, previous=a, first=z, lag10=z)
    assert got.numel[0] == size
    assert got.nonfinite[0] == 0
    assert got.largest[0] == (abs(B).max() if size else 0)
    np.testing.assert_allclose(got.square[0], np.dot(B, B), rtol=1e-12)
    for label, R in (("previous", A), ("first", Z), ("lag10", Z)):
        delta, pair = B - R, got.against[label]
        np.testing.assert_allclose(pair.square[0], np.dot(R, R), rtol=1e-12)
        np.testing.assert_allclose(pair.delta[0], np.dot(delta, delta), rtol=1e-12)
        scale = np.dot(abs(R), abs(delta)) + 1e-300
        assert abs(pair.dot[0] - np.dot(R, delta)) <= 1e-13 * scale


@pytest.mark.parametrize("dtype", ["F64", "F32"])
def test_a_tiny_relative_step_keeps_its_digits(dtype, rng):
    """Against exact rational sums; the printed shortcut Σab − Σa² is shown to lose them."""
    values = rng.standard_normal(3000)
    a, A = stored(values, dtype)
    b, B = stored(A * (1 + 1e-6 * rng.standard_normal(3000)), dtype)
    exact_a, exact_b = [list(map(Fraction, side.tolist())) for side in (A, B)]
    exact = float(sum(x * (y - x) for x, y in zip(exact_a, exact_b, strict=True)))
    exact_delta = float(sum((y - x) ** 2 for x, y in zip(exact_a, exact_b, strict=True)))
    pair = moments_of(dtype, b, previous=a).against["previous"]
    scale = float(np.dot(abs(A), abs(B - A)))
    assert abs(pair.dot[0] - exact) < 1e-14 * scale
    assert abs(pair.delta[0] - exact_delta) < 1e-14 * exact_delta
    shortcut = np.dot(A, A) + np.dot(B, B) - 2 * np.dot(A, B)
    assert abs(shortcut - exact_delta) > 1e-7 * exact_delta, "then the shortcut would do as well"


def test_bfloat16_and_float16_read_every_finite_bit_pattern():
    for dtype, reference in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        codes = np.arange(65536, dtype=np.uint16)
        numbers = torch.from_numpy(codes.view(np.int16).copy()).view(reference).double().numpy()
        for chosen in (np.isfinite(numbers), np.isfinite(numbers) & (abs(numbers) < 1e-4)):
            bits = codes[chosen].view(BITS[dtype])
            got = moments_of(dtype, bits)
            np.testing.assert_allclose(got.square[0], math.fsum(numbers[chosen] ** 2), rtol=1e-12)
            assert got.largest[0] == abs(numbers[chosen]).max()


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_counted_and_do_not_hide(dtype, bad, rng):
    values = rng.standard_normal(5000)
    values[[3, 4000, 4999]] = bad
    b, B = stored(values, dtype)
    got = moments_of(dtype, b, previous=b)
    assert got.nonfinite[0] == 3
    assert got.largest[0] == abs(B[np.isfinite(B)]).max()
    assert not np.isfinite(got.square[0])
    assert np.isnan(quantities(got)["cosine"][0])


def test_integers_and_8_bit_floats(rng):
    for dtype, kind in (("I8", np.int8), ("I64", np.int64), ("U8", np.uint8)):
        a = rng.integers(0, 100, 1000).astype(kind)
        b = rng.integers(0, 100, 1000).astype(kind)
        got = moments_of(dtype, b, previous=a)
        A, B = a.astype(float), b.astype(float)
        assert got.square[0] == B @ B
        assert got.against["previous"].dot[0] == A @ (B - A)
    for dtype, reference in (("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2)):
        codes = np.arange(256, dtype=np.uint8)
        numbers = torch.from_numpy(codes.copy()).view(reference).float().double().numpy()
        finite = np.isfinite(numbers)
        got = moments_of(dtype, codes)
        assert got.nonfinite[0] == (~finite).sum()
        assert moments_of(dtype, codes[finite]).square[0] == math.fsum(numbers[finite] ** 2)


def test_checkpoints_of_different_dtype_compare(rng):
    b, B = stored(rng.standard_normal(100), "BF16")
    a, A = stored(rng.standard_normal(100), "F32")
    got = measure_checkpoint(checkpoint("BF16", x=b), [("previous", checkpoint("F32", x=a))], ["x"])
    np.testing.assert_allclose(got.against["previous"].delta[0], ((B - A) ** 2).sum(), rtol=1e-13)


# --- laws -------------------------------------------------------------------------------------

finite = st.floats(-1e6, 1e6, allow_subnormal=False)
vectors = st.integers(1, 60).flatmap(
    lambda n: st.tuples(*(arrays(np.float64, n, elements=finite) for _ in range(2)))
)


@settings(deadline=None, max_examples=200)
@given(vectors, st.data())
def test_sums_add_over_any_split(pair, data):
    """Chunks, shards, tensors, ranks: any cut, and either way of adding."""
    b, a = pair
    cuts = sorted(data.draw(st.sets(st.integers(0, len(b)), max_size=4)) | {0, len(b)})
    bounds = list(itertools.pairwise(cuts))
    parts = {f"p{i}": (b[s:e], a[s:e]) for i, (s, e) in enumerate(bounds)}
    current = checkpoint("F64", **{k: v[0].view(np.uint64) for k, v in parts.items()})
    reference = checkpoint("F64", **{k: v[1].view(np.uint64) for k, v in parts.items()})
    split = measure_checkpoint(current, [("previous", reference)], list(parts))
    whole = moments_of("F64", b.view(np.uint64), previous=a.view(np.uint64))
    grouped = split.grouped([0] * len(parts), 1)
    folded = split.grouped([0, *[-1] * (len(parts) - 1)], 1)
    for i in range(1, len(parts)):
        folded = folded + split.grouped([-1] * i + [0] + [-1] * (len(parts) - i - 1), 1)
    for added in (grouped, folded):
        assert added.numel[0] == len(b)
        assert added.largest[0] == whole.largest[0]
        np.testing.assert_allclose(added.square, whole.square, rtol=1e-13)
        np.testing.assert_allclose(
            added.against["previous"].delta, whole.against["previous"].delta, rtol=1e-13
        )
        scale = np.dot(abs(a), abs(b - a))
        assert abs(added.against["previous"].dot[0] - whole.against["previous"].dot[0]) <= 1e-13 * scale


@settings(deadline=None, max_examples=200)
@given(vectors)
def test_quantities_equal_their_definitions(pair):
    b, a = pair
    q = {
        k: v[0]
        for k, v in quantities(moments_of("F64", b.view(np.uint64), previous=a.view(np.uint64))).items()
    }
    delta, na, nb = b - a, np.linalg.norm(a), np.linalg.norm(b)
    nd = np.linalg.norm(delta)
    assert q["norm"] == pytest.approx(nb, rel=1e-12)
    assert q["rms"] == pytest.approx(math.sqrt(np.mean(b * b)), rel=1e-12)
    assert q["step_size"] == pytest.approx(nd, rel=1e-12)
    assert q["growth"] == pytest.approx(q["growth_alignment"] + q["growth_steps"], rel=1e-12, abs=1e-300)
    assert q["growth"] == pytest.approx(nb**2 - na**2, rel=1e-9, abs=1e-9 * (na**2 + nb**2))
    if na == 0 or nb == 0:
        assert np.isnan(q["cosine"])
        return
    assert q["relative_step"] == pytest.approx(nd / na, rel=1e-12)
    if nb < 1e-6 * na:
        return  # b is lost in δ = b − a: the documented limit of what these sums can tell
    lost = max(1.0, na / nb)
    assert q["cosine"] == pytest.approx(a @ b / na / nb, abs=1e-9 * lost)
    # The angle by Kahan's formula, which is right near 0 and near π.
    u, v = a / na, b / nb
    kahan = 2 * math.atan2(np.linalg.norm(u - v), np.linalg.norm(u + v))
    assert q["angle"] == pytest.approx(kahan, abs=3e-8 * min(1, nd / na) * lost + 1e-12)
    radial = (delta @ a) / na
    assert q["radial"] == pytest.approx(radial, rel=1e-9, abs=1e-12 * nd)
    assert q["tangential"] == pytest.approx(np.linalg.norm(delta - radial * a / na), abs=1e-7 * nd)
    assert math.hypot(q["radial"], q["tangential"]) == pytest.approx(nd, rel=1e-9)
    if nd > 0:
        assert q["alignment"] == pytest.approx((delta @ a) / na / nd, abs=1e-9)


@pytest.mark.parametrize("turn", [1e-3, 1e-6, 1e-9, 1e-12])
def test_the_angle_is_right_near_zero(turn):
    """A known rotation in a plane, far below what arccos of a cosine can see."""
    a = np.array([3.0, 0.0, 4.0, 0.0])
    e = np.array([0.0, 1.0, 0.0, 0.0])
    b = a + 5 * math.tan(turn) * e
    q = quantities(moments_of("F64", b.view(np.uint64), previous=a.view(np.uint64)))
    assert q["angle"][0] == pytest.approx(turn, rel=1e-9)
    by_cosine = math.acos(min(1.0, a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    assert turn > 1e-8 or by_cosine != pytest.approx(turn, rel=1e-3, abs=0)


def test_a_pure_rescaling_has_no_angle_and_full_alignment():
    a = np.linspace(-1, 1, 1001)
    b = 1.5 * a
    q = quantities(moments_of("F64", b.view(np.uint64), previous=a.view(np.uint64)))
    assert q["angle"][0] < 1e-8
    assert q["alignment"][0] == pytest.approx(1.0)
    assert q["share_alignment"][0] == pytest.approx(1.0 / 1.25)


def test_zero_tensors_give_no_division_warnings():
    zero, one = np.zeros(4), np.ones(4)
    with np.errstate(all="raise"):
        both = quantities(moments_of("F64", zero.view(np.uint64), previous=zero.view(np.uint64)))
        away = quantities(moments_of("F64", one.view(np.uint64), previous=zero.view(np.uint64)))
    assert both["norm"][0] == 0
    assert both["step_size"][0] == 0
    assert np.isnan(both["cosine"][0])
    assert away["step_size"][0] == 2
    assert away["growth"][0] == 4
    assert np.isnan(away["alignment"][0])


def test_the_accumulated_budget_ends_at_the_whole_growth(rng):
    path = np.cumsum(rng.standard_normal((20, 50)), axis=0)
    terms = []
    for a, b in itertools.pairwise(path):
        q = quantities(moments_of("F64", b.view(np.uint64), previous=a.view(np.uint64)))
        terms.append([q["growth"], q["growth_alignment"], q["growth_steps"]])
    total = accumulated(*np.swapaxes(np.array(terms), 0, 1))
    assert total["total_growth"][-1, 0] == pytest.approx(path[-1] @ path[-1] - path[0] @ path[0])
    shares = total["total_share_alignment"] + total["total_share_steps"]
    np.testing.assert_allclose(shares, 1.0, rtol=1e-12)


def test_moments_against_other_references_do_not_add(rng):
    b = rng.standard_normal(4).view(np.uint64)
    with pytest.raises(ValueError, match="different references"):
        moments_of("F64", b, previous=b) + moments_of("F64", b, first=b)


def test_results_do_not_depend_on_the_number_of_workers(rng):
    size = 3 * (1 << 20) + 17
    b, a = (rng.standard_normal(size).astype(np.float32).view(np.uint32) for _ in range(2))
    runs = [
        measure_checkpoint(
            checkpoint("F32", x=b), [("previous", checkpoint("F32", x=a))], ["x"], workers=workers
        )
        for workers in (1, 2, 5)
    ]
    for other in runs[1:]:
        assert other.square[0] == runs[0].square[0]
        assert other.against["previous"].dot[0] == runs[0].against["previous"].dot[0]


CLOSED_WHILE_READ = """
import sys, threading, time
from normgrowth.trace.by_step import measure_checkpoint
from normgrowth.checkpoints.series import open_source

entry = open_source(sys.argv[1]).entries[0]
names = list(entry.open().tensors)
expected = measure_checkpoint(entry.open(), [], names).square.sum()
for attempt in range(20):
    checkpoint, found = entry.open(), []
    thread = threading.Thread(target=lambda: found.append(measure_checkpoint(checkpoint, [], names).square.sum()))
    thread.start()
    time.sleep(0.002 * (attempt % 5))
    checkpoint.close()
    thread.join()
    assert found == [expected]
"""


def test_a_checkpoint_may_be_closed_while_a_thread_reads_it(tmp_path):
    """As when Ctrl-C comes while a thread starts. A freed map ends the process (-11), so this has its own."""
    many = {f"layers.{i}.weight": torch.randn(1 << 18) for i in range(256)}
    save_file(many, tmp_path / "step_0.safetensors")
    ended = subprocess.run(
        [sys.executable, "-c", CLOSED_WHILE_READ, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{ended.returncode} {ended.stderr}"


def test_addresses_hold_while_the_maps_are_held(tmp_path):
    save_file({"x": torch.arange(1000.0)}, tmp_path / "step_0.safetensors")
    checkpoint = open_source(tmp_path).entries[0].open()
    addresses, held = checkpoint.addresses(["x"])
    checkpoint.close()
    gc.collect()
    assert len(held) == 1
    assert list((ctypes.c_float * 1000).from_address(int(addresses[0]))) == list(range(1000))
