"""The time left: the plan's at first, then what stages really took."""

import pytest

from normgrowth.paper.pace import TRUST, time_left


def test_by_the_plan_while_nothing_has_run():
    assert time_left([], []) == 0
    assert time_left([], [30.0, 60.0], now=10.0) == 100
    assert time_left([], [30.0], now=10.0, spent=4.0) == 36
    assert time_left([], [30.0], now=10.0, spent=40.0) == 30  # longer than planned: no less than nothing


def test_what_ran_slowly_makes_the_rest_slow():
    assert time_left([(1000.0, 2000.0)], [30.0], now=5.0) == pytest.approx(2 * 35, rel=0.01)
    assert time_left([(1000.0, 2000.0), (9000.0, 3000.0)], [30.0]) == pytest.approx(0.5 * 30, rel=0.01)
    assert time_left([(100.0, 200.0)], [100.0]) == pytest.approx(
        100 * (200 + 100 * TRUST) / (100 + 100 * TRUST)
    )


def test_a_short_stage_says_little_of_a_long_one():
    """Twenty seconds that took ninety do not make seven days a month."""
    week = 7 * 86400.0
    assert time_left([(20.0, 90.0)], [week]) == pytest.approx(week, rel=0.01)
    assert time_left([(20.0, 90.0)], [20.0]) > 80


def test_a_stage_tells_by_its_own_parts():
    """A quarter in 10 seconds leaves 30, whatever was planned of it."""
    assert time_left([], [30.0], now=1000.0, spent=10.0, done=0.25) == 30 + 30
    assert time_left([], [], now=1000.0, spent=10.0, done=1.0) == 0


def test_parts_of_a_call_before_took_no_time():
    """Half was there; a quarter in 10 seconds leaves 10."""
    assert time_left([], [], now=1000.0, spent=10.0, done=0.75, kept=0.5) == pytest.approx(10)
    assert time_left([], [], now=1000.0, spent=10.0, done=0.5, kept=0.5) == 990
