"""Grids: what a user may write, as the settings have it; and a corpus for every cell."""

from dataclasses import replace

import pytest
import tiny_settings

from normgrowth.errors import InputError
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.cells.grid import MOST_CELLS, Grid
from normgrowth.lab.data.corpus import load_corpus

TINY = replace(tiny_settings.TINY, corpus="dyck2", longest=6)
RATES = Axis("lr", (0.1, 1.0))


@pytest.mark.parametrize(
    ("setting", "given", "values"),
    [
        ("lr", (1, 0.1), (0.1, 1.0)),
        ("weight_decay", (None, 1), (None, 1.0)),
        ("layers", (2.0, 1), (1, 2)),
        ("seed", (2**62 + 1, 0), (0, 2**62 + 1)),
        ("track", (5, 10, "powers"), ("5", "10", "powers")),
        ("bias", (True, False), (True, False)),
        ("kind", ("post_norm", "usual_pre_norm"), ("post_norm", "usual_pre_norm")),
    ],
)
def test_values_are_what_the_setting_is(setting, given, values):
    found = Axis(setting, given).values
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("lr", "abc", "lr must be a number, got 'abc'"),
        ("lr", "", "lr must be a number, got ''"),
        ("lr", True, "lr must be a number, got True"),
        ("lr", None, "lr must be a number, got None"),
        ("lr", 10**400, "must be a number"),
        ("layers", 1.5, "layers must be an integer, got 1.5"),
        ("layers", float("nan"), "layers must be an integer, got nan"),
        ("bias", "maybe", "bias must be true or false, got 'maybe'"),
        ("bias", 1, "bias must be true or false, got 1"),
        ("kind", True, "kind must be a string, got True"),
    ],
)
def test_other_values_are_named(setting, value, said):
    with pytest.raises(InputError, match=said):
        Axis(setting, (value,))


def test_whole_numbers_on_a_logarithmic_scale():
    assert Axis.spaced("layers", 1, 12, 4).values == (1, 2, 5, 12)
    assert Axis.spaced("layers", 1, 3, 9).values == (1, 2, 3)
    with pytest.raises(InputError, match="must be a string"):
        Axis.spaced("kind", 1, 2, 3)


def test_no_two_cells_have_one_name():
    axis = Axis("lr", (0.1234567, 0.1234568, 0.5, 1e-5))
    names = [axis.name(i) for i in range(4)]
    assert names == ["lr=1e-05", "lr=0.1234567", "lr=0.1234568", "lr=0.5"]


def test_a_slip_of_the_hand_is_no_grid():
    with pytest.raises(InputError, match="2 to 100,000 values, got 1,000,000,000"):
        Axis.spaced("lr", 1e-3, 1e-1, 10**9)
    seeds = Axis("seed", tuple(range(MOST_CELLS)))
    with pytest.raises(InputError, match="at most 100,000 cells, got 2 x 100,000"):
        Grid(TINY, RATES, seeds)


def test_a_schedule_that_cannot_be_is_said_of_its_cell():
    settings = replace(TINY, schedule="linear")
    with pytest.raises(
        InputError, match=r"^warmup=20, lr=0.1: schedule linear: steps \(12\) must be greater"
    ):
        Grid(settings, Axis("warmup", (3, 20)), RATES)


def test_every_cell_has_the_corpus_that_its_settings_make():
    lengths = Grid(TINY, RATES, Axis("longest", (4, 6)))
    assert len(lengths.corpora) == 2
    for cell, longest in (((0, 0), 4), ((1, 1), 6)):
        own = load_corpus("dyck2", longest=longest)
        assert lengths.corpora.of(lengths.cells[cell]).fingerprint == own.fingerprint
        assert lengths.corpora.fingerprint(lengths.cells[cell]) == own.fingerprint
    assert "2 corpora" in lengths.corpora.notes[0]
    seeds = Grid(TINY, RATES, Axis("seed", (0, 1)))
    assert len(seeds.corpora) == 2  # words of a formal language are drawn
    text = Grid(replace(TINY, corpus="pydoc"), RATES, Axis("seed", (0, 1)))
    assert len(text.corpora) == 1


def test_a_given_corpus_is_that_of_every_cell():
    given = load_corpus("dyck2", longest=6)
    grid = Grid(TINY, RATES, Axis("seed", (0, 1)), corpus=given)
    assert all(grid.corpora.of(settings) is given for settings in grid.cells.values())
    with pytest.raises(InputError, match="cannot sweep over longest: it changes the corpus"):
        Grid(TINY, RATES, Axis("longest", (4, 6)), corpus=given)
