"""Check that the boxes of a sharded tensor cover it exactly."""

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np

from normgrowth.checkpoints.malformed import Malformed

MOST_CORNERS = 1 << 22  # limit for one tensor that is split along several axes

Corner = tuple[int, ...]
Box = tuple[Corner, tuple[int, ...]]  # corner and size


def covering(name: str, shape: tuple[int, ...], boxes: set[Box]) -> tuple[Box, ...]:
    """The boxes in the order of their corners. Raises Malformed unless they cover the tensor without overlap."""
    for corner, size in boxes:
        inside = len(corner) == len(size) == len(shape) and all(
            c + s <= n for c, s, n in zip(corner, size, shape, strict=True)
        )
        if not inside:
            chunk = f"a chunk of {list(size)} at {list(corner)}"
            raise Malformed(f"has {chunk} for {name!r}, which exceeds its shape {list(shape)}")
    # With more ranks than rows, some ranks have empty chunks.
    ordered = sorted(box for box in boxes if prod(box[1])) if prod(shape) else sorted(boxes)[:1]
    if not ordered or sum(prod(size) for _, size in ordered) != prod(shape):
        raise Malformed(
            f"has {len(ordered)} chunks for {name!r} of shape {list(shape)}, which do not cover it"
        )
    _check_tiling(name, shape, ordered)
    return tuple(ordered)


def _check_tiling(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Raise Malformed if boxes overlap. They lie inside the shape, are sorted by corner and have its total size.

    If the tensor is split along one axis, each box must begin where the previous one ends. Otherwise each corner of a
    box gets a sign by its parity. Signs cancel where boxes meet, so only the corners of the whole tensor remain. (The
    signs are the mixed derivative of the number of boxes at each point, which is unique for an exact cover.)
    """
    cut = [i for i, n in enumerate(shape) if any(size[i] != n for _, size in boxes)]
    overlap = Malformed(f"has chunks for {name!r} that overlap")
    if len(cut) < 2:
        if any(a[0][i] + a[1][i] != b[0][i] for i in cut for a, b in itertools.pairwise(boxes)):
            raise overlap
        return
    if len(boxes) << len(cut) > MOST_CORNERS:
        raise Malformed(
            f"has {len(boxes)} chunks for {name!r} that are split along {len(cut)} axes, which is too many to check"
        )
    low = np.array([[corner[i] for i in cut] for corner, _ in boxes])
    high = low + np.array([[size[i] for i in cut] for _, size in boxes])
    picks = np.array(list(itertools.product((False, True), repeat=len(cut))))
    corners = np.concatenate([np.where(pick, high, low) for pick in picks])
    signs = np.repeat(1 - 2 * (picks.sum(axis=1) % 2), len(boxes))
    order = np.lexsort(corners.T)
    corners, signs = corners[order], signs[order]
    first = np.flatnonzero(np.concatenate([[True], np.any(corners[1:] != corners[:-1], axis=1)]))
    left = corners[first[np.add.reduceat(signs, first) != 0]]
    outer = np.array([shape[i] for i in cut])
    if len(left) != 1 << len(cut) or not np.all((left == 0) | (left == outer)):
        raise overlap
