"""Table 1 and section D, row by row: the degree as printed, as computed, as measured, and how fast the limit comes."""

from itertools import pairwise

import pytest
from homogeneity import scaled, slope

from normgrowth.limit.saturated import saturated
from normgrowth.paper.stages.table1_networks import EXACT, EXPONENTIAL, TABLE, built

pytestmark = pytest.mark.usefixtures("one_thread")
DISAGREE = {"attention head (Prop. 4)", "multi-head attention and W"}  # see the errata
rows = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.component)


@rows
def test_degree_computed(row):
    model, args = built(row)
    limit = saturated(model)
    limit(*args)
    assert limit.degrees[""] == row.degree
    config = getattr(model, "config", None)
    assert config is None or getattr(model, "degree", config.degree) == row.degree


@rows
def test_degree_measured(row):
    model, args = built(row)
    tolerance = 1e-9 if row.rest in (EXACT, EXPONENTIAL) else 1e-3
    measured = slope(lambda c: scaled(model, c, *args), 1e4, 1e6)
    assert measured == pytest.approx(row.degree, abs=tolerance)


@rows
def test_degree_printed(row):
    if row.printed is not None:
        assert (row.printed == row.degree) != (row.component in DISAGREE)


@rows
def test_limit_and_how_fast_it_comes(row):
    model, args = built(row)
    limit = saturated(model)(*args)

    def rest(c):
        return (scaled(model, c, *args) / c**row.degree - limit) / limit.norm()

    if row.rest == EXACT:
        assert max(rest(c).norm() for c in (0.5, 1, 3, 1e4)) < 1e-13
    elif row.rest == EXPONENTIAL:
        # At first far away; then it falls faster than c⁻¹⁰, down to what float64 can tell.
        assert rest(0.5).norm() > 1e-3
        sizes = {c: rest(c).norm() for c in (2 ** (n / 2) for n in range(21))}
        steps = [(c, d) for c, d in pairwise(sizes) if sizes[d] > 1e-13]
        assert min(slope(sizes.get, *step) for step in steps) < -10
        assert rest(1e4).norm() < 1e-13
    else:
        low, high = (1e4, 1e5) if row.rest < 3 else (20, 60)
        assert slope(rest, low, high) == pytest.approx(-row.rest, abs=0.1)


@pytest.mark.parametrize(
    "test", [test_degree_computed, test_degree_measured, test_limit_and_how_fast_it_comes]
)
@pytest.mark.parametrize("row", TABLE[::9], ids=lambda row: row.component)
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_wrong_degree_is_noticed(test, row, wrong):
    with pytest.raises(AssertionError):
        test(row._replace(degree=row.degree + wrong))
