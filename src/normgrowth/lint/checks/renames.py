"""Match renamed tensors to their old names, by value and never by shape or name alone.

A tensor is recognized by its variation around its mean: all gains are near 1, so closeness to 1 proves nothing.
Tensors that do not vary yet (gains of 1, biases of 0) or are too small follow the rename rules of recognized tensors,
if they did not move much farther than those.
"""

import itertools
from collections.abc import Mapping

import numpy as np

from normgrowth.moments.moments import Floats

Sampled = tuple[tuple[int, ...], Floats]  # shape, and a sample of the values

ALIKE = 0.5  # limit of δ² over the mean variance; an unrelated tensor has 2
FEWEST = 32  # tensors with fewer values need a stricter limit, because they may agree by chance
CLOSE, FEW = 0.1, 8  # this stricter limit, and the number of values below which nothing is recognized
FARTHER = 3.0  # limit of the rms change, as a multiple of the largest rms change among recognized tensors


def match_renamed(old: Mapping[str, Sampled], new: Mapping[str, Sampled]) -> dict[str, str]:
    """Return new name -> old name."""

    def change(after: str, before: str) -> Floats | None:
        (shape, a), (other, b) = old[before], new[after]
        return b - a if shape == other and a.size == b.size else None

    near = sorted(
        (apart, -_common_end(before, after), before, after)
        for before, after in itertools.product(old, new)
        if (moved := change(after, before)) is not None
        and (apart := _variation_apart(moved, old[before][1], new[after][1]))
        < (ALIKE if moved.size >= FEWEST else CLOSE)
    )
    matched: dict[str, str] = {}
    for _, _, before, after in near:
        if after not in matched and before not in matched.values():
            matched[after] = before
    ends = {(after, before): _common_end(before, after) for after, before in matched.items()}
    rules = sorted((b[: len(b) - end], a[: len(a) - end]) for (a, b), end in ends.items())
    changes = [_rms(moved) for pair in matched.items() if (moved := change(*pair)) is not None]
    for before, (start, becomes) in itertools.product(old, dict.fromkeys(rules)):
        after = becomes + before.removeprefix(start)
        free = after in new and after not in matched and before not in matched.values()
        moved = change(after, before) if free and before.startswith(start) else None
        if moved is not None and _rms(moved) <= FARTHER * max(changes):
            matched[after] = before
    return matched


def _variation_apart(moved: Floats, a: Floats, b: Floats) -> float:
    """Return δ² over the mean of both variances: 0 if equal, 2 if unrelated, infinite if one tensor is constant."""
    if moved.size < FEW:
        return np.inf
    varied = [float(np.sum((x - x.mean()) ** 2)) for x in (a, b)]
    return float(2 * np.sum(moved**2) / sum(varied)) if min(varied) > 0 else np.inf


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _common_end(one: str, other: str) -> int:
    """Return the length of the common suffix."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
