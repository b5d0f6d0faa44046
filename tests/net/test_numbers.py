"""The net: numbers of every verb on fixed inputs, held against numbers.json through every change of the code.

adapter.py has every call into normgrowth; after a rename only that file changes. CONTRIBUTING.md says how to record
numbers that change on purpose.
"""

import pytest
from net import expected
from net.measurements import GROUPS

EXPECTED = expected.read()


@pytest.mark.parametrize("name", GROUPS)
def test_numbers_are_as_recorded(name, tmp_path, one_thread):
    group = GROUPS[name]
    lines = expected.differences(group.measure(tmp_path), EXPECTED[group.entry], group.tolerance)
    assert not lines, "\n".join(lines)


def test_every_recorded_entry_is_measured():
    assert EXPECTED.keys() == {group.entry for group in GROUPS.values()}


@pytest.mark.parametrize(
    ("found", "tolerance", "lines"),
    [
        ({"a": 1.0, "b": "x", "c": float("nan")}, 0.0, 0),
        ({"a": 1.0 + 2**-52, "b": "x", "c": float("nan")}, 0.0, 1),
        ({"a": 1.0 + 2**-52, "b": "x", "c": float("nan")}, 1e-9, 0),
        ({"a": 1, "b": "y", "c": 0.0}, 1e-9, 3),
        ({"a": 1.0, "b": "x", "d": 0.0}, 1e-9, 2),
    ],
)
def test_what_counts_as_a_difference(found, tolerance, lines):
    wanted = {"a": 1.0, "b": "x", "c": float("nan")}
    assert len(expected.differences(found, wanted, tolerance)) == lines
