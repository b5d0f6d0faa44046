"""T5's encoder and decoder apart, against sums written out here, and against changes of the last published digit."""

import csv
from importlib.resources import files

import numpy as np
import pytest

from normgrowth import dynamics, fit
from normgrowth.cli.main import main
from normgrowth.errors import InputError
from normgrowth.paper.published.figure1 import t5_trace
from normgrowth.paper.published.t5_stacks import COSINE_ERROR, NORM_ERROR, STACKS, t5_sums


def rows(name):
    text = (files("normgrowth.paper.published") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def by_layer(name, column):
    """(12, checkpoints or intervals)."""
    table = rows(f"t5_{name}_by_layer")
    return np.array([[float(row[column]) for row in table if int(row["layer"]) == i] for i in range(1, 13)])


def by_hand(norm, cosine, layer_norms, layer_cosines):
    """Norms, step sizes and alignments of each stack."""

    def sums(n, k):
        return n**2, n[..., :-1] * n[..., 1:] * k

    both = sums(norm, cosine)
    encoder = tuple(part.sum(0) for part in sums(layer_norms, layer_cosines))
    decoder = tuple(total - part for total, part in zip(both, encoder, strict=True))
    found = {}
    for stack, (square, inner) in zip(STACKS, (both, encoder, decoder), strict=True):
        size = np.sqrt(square[:-1] + square[1:] - 2 * inner)
        found[stack] = np.sqrt(square), size, (inner - square[:-1]) / np.sqrt(square[:-1]) / size
    return found


@pytest.fixture(scope="module")
def read():
    return (
        np.array([float(row["norm"]) for row in rows("t5_norm")]),
        np.array([float(row["cosine_to_previous"]) for row in rows("t5_direction")]),
        by_layer("norm", "norm"),
        by_layer("direction", "cosine_to_previous"),
    )


@pytest.mark.parametrize("stack", STACKS)
def test_records_are_those_computed_by_hand(stack, read):
    records = t5_trace(stack).records
    norm, size, alignment = by_hand(*read)[stack]
    assert records.series("norm")[1] == pytest.approx(norm, rel=1e-12)
    assert records.series("step_size")[1] == pytest.approx(size, rel=1e-9)
    assert records.series("alignment")[1] == pytest.approx(alignment, abs=1e-9)
    share = records.series("total_share_steps")[1][-1]
    assert share == pytest.approx((size**2).sum() / (norm[-1] ** 2 - norm[0] ** 2), rel=1e-9)
    cosine = (norm[:-1] ** 2 + norm[1:] ** 2 - size**2) / (2 * norm[:-1] * norm[1:])
    assert records.series("cosine")[1] == pytest.approx(cosine, abs=1e-9)


def test_the_growth_of_the_step_size_is_the_decoders(read):
    """Numbers that were worked out by hand before this code existed."""
    later = slice(51, -1)
    for stack, ends, low, high, largest, share in (
        ("encoder", (304.2, 2221.6), 171.1, 173.5, 0.094, 0.656),
        ("decoder", (359.1, 3524.5), 243.9, 269.8, 0.238, 0.522),
    ):
        records = t5_trace(stack).records
        norm, size = records.series("norm")[1], records.series("step_size")[1]
        assert norm[[0, -1]] == pytest.approx(ends, abs=0.05)
        assert (size[later].min(), size[later].max()) == pytest.approx((low, high), abs=0.06)
        assert records.series("alignment")[1].max() == pytest.approx(largest, abs=5e-4)
        assert records.series("total_share_steps")[1][-1] == pytest.approx(share, abs=5e-4)
    encoder, decoder = (t5_trace(stack).records.series("step_size")[1] for stack in ("encoder", "decoder"))
    assert encoder[51] == pytest.approx(171.8, abs=0.05)
    assert encoder[-2] == pytest.approx(171.3, abs=0.05)
    assert decoder[[51, -2]] == pytest.approx([244, 270], abs=0.5)


@pytest.mark.parametrize(("stack", "r2"), [("encoder", 0.9991), ("decoder", 0.9981)])
def test_fit_takes_a_stack(stack, r2):
    assert fit(f"published:t5-{stack}", laws=["sqrt"], bootstrap=0)["sqrt"].r2 == pytest.approx(r2, abs=5e-5)


def test_rounding_is_as_small_as_the_published_digits():
    for name, column, digits, half in (
        ("t5_norm", "norm", 2, NORM_ERROR),
        ("t5_norm_by_layer", "norm", 2, NORM_ERROR),
        ("t5_direction", "cosine_to_previous", 6, COSINE_ERROR),
        ("t5_direction_by_layer", "cosine_to_previous", 6, COSINE_ERROR),
    ):
        assert {len(row[column].partition(".")[2]) for row in rows(name)} == {digits}
        assert half == pytest.approx(0.5 * 10**-digits)


@pytest.mark.parametrize("stack", STACKS)
def test_no_change_of_the_last_digit_goes_beyond_the_bounds(stack, read):
    """Random corners of the box of values that round to the published ones; the worst of them comes near the bound."""
    rng = np.random.default_rng(0)
    bound = t5_sums(stack)
    base = by_hand(*read)[stack]
    limits = (
        bound.norms()["norm_rounding"],
        *(bound.steps()[f"{x}_rounding"] for x in ("step_size", "alignment")),
    )
    widest = [np.zeros(len(limit)) for limit in limits]
    for _ in range(400):
        halves = (NORM_ERROR, COSINE_ERROR, NORM_ERROR, COSINE_ERROR)
        moved = [x + half * rng.choice([-1, 1], x.shape) for x, half in zip(read, halves, strict=True)]
        for i, (other, own) in enumerate(zip(by_hand(*moved)[stack], base, strict=True)):
            widest[i] = np.maximum(widest[i], np.abs(other - own))
    for found, limit in zip(widest, limits, strict=True):
        assert (found <= limit * (1 + 1e-3) + 1e-12).all()
        assert np.median(found / limit) > (0.8 if stack == "both" else 0.2)
    assert limits[1].max() < 0.1
    assert limits[2].max() < 1e-3


def test_dynamics_of_a_stack_with_and_without_its_schedule():
    known = dynamics("published:t5-decoder")
    assert known.verdict == "between"
    alone = dynamics(t5_trace("decoder"))
    assert alone.schedule is None
    assert alone.verdict is None
    assert alone.budget.growth == known.budget.growth
    assert alone.budget.by_steps == pytest.approx(0.522, abs=5e-4)
    assert not alone.uniformity  # nothing is published of its layers
    assert dynamics("published:t5-encoder").uniformity["layer"].spread == pytest.approx(1.54, abs=0.005)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_figures_and_the_page_show_a_stack(stack, tmp_path, capsys):
    name = f"published:t5-{stack}"
    assert main(["plot", name, "--fit", "sqrt", "-o", str(tmp_path), "--formats", "svg"]) == 0
    assert {"trace_norm_direction.svg", "trace_alignment_step.svg", "trace_budget.svg"} <= {
        line.rsplit("/", 1)[1] for line in capsys.readouterr().out.split()
    }
    assert main(["report", name, "-o", str(tmp_path / "page.html")]) == 0
    assert f"T5-base {stack}" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_levels_of_a_published_trace():
    layers = fit("published:t5-encoder", level="layer", laws=["sqrt"], bootstrap=0)
    assert len(layers.series) == 12
    with pytest.raises(InputError, match="no norm at level layer"):
        fit("published:t5-decoder", level="layer")
    with pytest.raises(InputError, match="known: t5, t5-encoder, t5-decoder"):
        dynamics("published:heads")


@pytest.mark.parametrize("stack", STACKS)
def test_dynamics_shows_the_bounds_of_rounding(stack):
    """Bounds of the budget against sums over the intervals, and against random changes of the published digits."""
    name = "published:t5" if stack == "both" else f"published:t5-{stack}"
    found = dynamics(name)
    bound, sums = found.rounding, t5_sums(stack)
    np.testing.assert_allclose(bound.norms, sums.norms()["norm_rounding"], rtol=1e-4)
    np.testing.assert_allclose(bound.step_sizes, sums.steps()["step_size_rounding"])
    assert bound.growth == pytest.approx(sums.errors.square[0] + sums.errors.square[-1], rel=1e-4)
    stepped, worst = sums.sums.delta.sum(), sums.errors.delta.sum()
    most = (stepped + worst) / (found.budget.growth - bound.growth)
    assert bound.share == pytest.approx(most - found.budget.by_steps, rel=1e-3)
    assert "norm ±" in str(found)
    assert "Rounding of the published digits" in str(found)
