"""The search for the boundary of growth: the same as the full grid's, with far fewer cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgrowth.lab.cells.edge_search import change, changes, wanted


def search(grows):
    """All that `wanted` asks for, told truly; how many cells that were."""
    columns, rows = grows.shape
    known = {}
    while cells := wanted(known, columns, rows):
        assert not set(cells) & known.keys()  # nothing is asked for twice
        assert len(set(cells)) == len(cells)
        known |= {cell: bool(grows[cell]) for cell in cells}
    return known


def search_with_losses(grows, lost):
    """The same where some cells never have an outcome; what is known, and which of the lost were asked for."""
    known, gone = {}, set()
    while cells := wanted(known, *grows.shape, without=gone):
        assert not set(cells) & (known.keys() | gone)
        gone |= set(cells) & lost
        known |= {cell: bool(grows[cell]) for cell in cells if cell not in lost}
    return known, gone


@given(st.data(), st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_lost_cells_do_not_move_the_boundary(data, boundary, rows):
    """It is found between the nearest cells that are known; a lost one neither grows nor falls."""
    grows = grid(np.minimum(boundary, rows), rows)
    cells = [(i, row) for i in range(len(boundary)) for row in range(rows)]
    lost = data.draw(st.sets(st.sampled_from(cells)))
    known, gone = search_with_losses(grows, lost)
    for i, one in enumerate(changes(known, len(boundary), rows, gone)):
        there = [row for row in range(rows) if (i, row) not in gone]
        assert one.below == max((row for row in there if grows[i, row]), default=-1)
        assert one.above == min((row for row in there if not grows[i, row]), default=rows)
        assert one.once


def grid(boundary, rows):
    """Rows below the boundary of each column grow."""
    return np.arange(rows)[None, :] < np.asarray(boundary)[:, None]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=25), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_any_boundary_is_found(boundary, rows):
    grows = grid(np.minimum(boundary, rows), rows)
    columns = len(boundary)
    found = changes(search(grows), columns, rows)
    for i, one in enumerate(found):
        full = change(dict(enumerate(grows[i].tolist())), rows)
        assert (one.below, one.above, one.once) == (full.below, full.above, True)


@pytest.mark.parametrize("slope", [-1.0, -0.4, 0.0, 0.6, 1.0])
def test_a_smooth_boundary_takes_a_third_of_the_cells_or_less(slope):
    boundary = np.clip(10 + slope * (np.arange(20) - 10) + np.sin(np.arange(20)), 0, 20).astype(int)
    known = search(grid(boundary, 20))
    assert len(known) <= 400 / 3
    assert [one.above for one in changes(known, 20, 20)] == boundary.tolist()


def test_a_second_change_is_said_where_it_is_seen():
    grows = grid([8] * 6, 20)
    grows[0, -1] = True  # an end of an anchor
    grows[1, 14] = True  # where the check of the others looks
    found = changes(search(grows), 6, 20)
    assert [one.once for one in found] == [False, False, True, True, True, True]
    assert all(one.above == 8 for one in found)
