"""Errata and departures: measured here, and each rule could say that nothing is wrong."""

import pytest

from normgrowth.paper.errata import ERRATA, checked

# Numbers for which nothing would be wrong.
RIGHT = {
    "prop-4": {"degree, printed": 1.0, "degree, measured": 1.0},
    "prop-2": {"largest weight, saturated": 0.5, "largest weight as t grows": 0.5},
    "lemma-7": {
        "error, ‖x‖ large (M = 10)": 0.4,
        "error, ‖x‖ larger (M = 10⁶)": 1e-9,
        "error, the gap larger (M = 10, gap 10)": 1e-4,
    },
    "definition-3": {"error, printed": 1e-9, "error, divided by cᵏ": 1e-9},
    "lemma-5": {"bound, printed": 1e-9, "error": 1e-9},
    "mask": {"dev loss, true mask": 5.0, "dev loss, their mask": 5.0},
    "padding": {"positions attended, of real tokens": 4.0, "with padding counted": 4.1},
}


def test_a_rule_can_say_that_nothing_is_wrong():
    assert RIGHT.keys() == ERRATA.keys()
    for name, numbers in RIGHT.items():
        assert not ERRATA[name].fails(numbers), name


@pytest.mark.parametrize("name", [name for name, one in ERRATA.items() if not one.stages])
def test_printed_statements_that_fail(name):
    found = checked(ERRATA[name], {})
    assert found.fails
    assert found.numbers.keys() == RIGHT[name].keys()


def test_figures_known_by_hand():
    """x = (M, M − 0.1), c = 100 gives 0.475 for every M (see test_lemmas.py); the bound of Lemma 5 is 0.71."""
    softmax = checked(ERRATA["lemma-7"], {}).numbers
    assert softmax["error, ‖x‖ large (M = 10)"] == pytest.approx(0.475, abs=1e-3)
    assert softmax["error, ‖x‖ larger (M = 10⁶)"] == pytest.approx(0.475, abs=1e-3)
    assert softmax["error, the gap larger (M = 10, gap 10)"] < 1e-4
    assert checked(ERRATA["lemma-5"], {}).numbers["bound, printed"] == pytest.approx(0.7071, abs=1e-4)


def test_without_its_stage_it_is_not_measured():
    found = checked(ERRATA["mask"], {}, {"lab": "no corpus"})
    assert found.fails is None
    assert found.why == "The stage lab has no records: no corpus"
