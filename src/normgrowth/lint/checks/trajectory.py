"""The trajectory of the weights: do the checkpoints form one trajectory, in this order?

Two quantities show what training cannot do. The first is the squared distance d² between checkpoints. For
steps 1, 2, 3, d²(1,3) is 4 times d²(1,2) on a straight line, 2 times in a random walk, and equal to it if the
weights fluctuate around a fixed point. Training does not make d²(1,3) much smaller than both of its parts. A
checkpoint of another run does, and so do two swapped checkpoints. The second is the retained part of the old
weights, ⟨a,b⟩/‖a‖². Updates are added to the weights, so it stays near 1, even if the weights grow sixfold or
the learning rate is far too high. Weight decay reduces it slowly. For another run it is 0.

Both quantities are compared only with those of the surrounding intervals, corrected for the gaps in steps.
Warm-ups, drops of the learning rate and sparse checkpoints change them, but not for a single interval.

For the model, both are medians over matrices, and distances are in units of each matrix's usual step. A large
embedding or one damaged tensor therefore does not dominate the result.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from normgrowth.moments.moments import Floats

Distance = Callable[[int, int], float]  # squared distance between two places

NEARER = 0.7  # largest ratio of d² at which a move counts: 1/2 in a random walk, 1/4 on a straight line, 1 in noise
ONWARD = 1.1  # smallest ratio of d² over two intervals to the longer one: 2 in a random walk, 1 in noise
CLOSED = 0.25  # ratio of d²: the neighbors of an outlier are at most half as far from each other as from it
FEWEST = 5  # checkpoints that are needed to judge their order
REMEMBERED = 1 << 20  # size of the cache, in sums of tensors
MOVES = 20  # largest number of moves
IN_ORDER = 0.2  # rank correlation of distances with numbers of intervals: 0 if shuffled, 0.3 and more in a noisy series
LONGEST = 3  # longest run of outliers after which the line continues
AROUND = 3  # number of intervals on either side that an interval is compared with
LEFT_MODEL, LEFT_TENSOR = 0.5, 0.25  # largest retained part of the old weights at a break
STRANGE = 0.3  # smallest d² over the mean square of an unrelated tensor; it is 2, or 0.4 for a factor of 2
LEFT_AROUND = 0.8  # smallest retained part expected from the surrounding intervals at a break; at most 1/0.8
SCALED, ALIGNED = 1.8, 0.9  # factor and cosine of rescaled weights; training by this factor would turn them


@dataclass(frozen=True)
class Trajectory:
    """The samples of checkpoints, for the tensors they have in common."""

    rows: list[int]  # rows of the checkpoints in the step table
    names: list[str]  # names of the tensors
    origin: Floats  # sampled values of the first checkpoint
    sketch: NDArray[np.float32]  # (checkpoints, values): change since the first checkpoint
    start: NDArray[np.intp]  # where each tensor's values start
    weight: Floats  # size of each tensor over the size of its sample
    usual: Floats  # the median Σδ² of each tensor between checkpoints; 0: it rarely moves
    representative: NDArray[np.bool_]  # the tensors that represent the model
    exact: Floats  # (checkpoints, tensors): Σδ² to the previous row, over all values

    @cached_property
    def sums(self) -> Callable[[int, int], tuple[Floats, Floats, Floats, Floats]]:
        """Return a cached function (i, j) -> d², ‖a‖², ⟨a,b⟩, ‖b‖² of each tensor."""

        def compute(i: int, j: int) -> tuple[Floats, Floats, Floats, Floats]:
            apart = self.sketch[i].astype(np.float64) - self.sketch[j]
            a, b = self.origin + self.sketch[i], self.origin + self.sketch[j]
            products = np.stack([apart * apart, a * a, a * b, b * b])
            d, aa, ab, bb = np.add.reduceat(products, self.start, axis=1) * self.weight
            return d, aa, ab, bb

        return lru_cache(maxsize=max(16, REMEMBERED // len(self.names)))(compute)

    def tensors(self, i: int, j: int) -> Floats:
        """Return d² of each tensor."""
        return self.sums(i, j)[0]

    def relative_distance(self, i: int, j: int) -> Floats:
        """Return d² of each tensor over the mean of both squares: 0 if equal, 2 if unrelated."""
        d, aa, _, bb = self.sums(i, j)
        return 2 * d / (aa + bb)

    def retained(self, i: int, j: int) -> Floats:
        """Return the retained part of each tensor of i in j: ⟨a,b⟩/‖a‖²."""
        _, aa, ab, _ = self.sums(i, j)
        return ab / aa

    def left_of_model(self, i: int, j: int) -> float:
        found = self.retained(i, j)[self.representative]
        return float(np.nanmedian(found)) if np.isfinite(found).any() else float("nan")

    def cosine(self, i: int, j: int, tensor: int | None = None) -> float:
        """Return the cosine of one tensor, or of all representative tensors together."""
        which = self.representative if tensor is None else [tensor]
        _, aa, ab, bb = (values[which].sum() for values in self.sums(i, j))
        return float(ab / np.sqrt(aa * bb)) if aa > 0 and bb > 0 else 0.0

    @cached_property
    def distances(self) -> Floats:
        """Return d² of the model for every pair of checkpoints."""
        n, representative = len(self.sketch), self.representative
        found = np.zeros((n, n))
        if not representative.any():
            return found
        for i in range(1, n):
            squares = (self.sketch[:i].astype(np.float64) - self.sketch[i]) ** 2
            each = np.add.reduceat(squares, self.start, axis=1) * self.weight
            found[i, :i] = found[:i, i] = np.median(
                each[:, representative] / self.usual[representative], axis=1
            )
        return found

    def distance(self, i: int, j: int) -> float:
        return float(self.distances[i, j])

    def apart(self, row: int, next_row: int) -> float:
        """Return d² of the model between consecutive rows, from exact sums; infinite if a row is not included."""
        if next_row != row + 1 or not {row, next_row} <= set(self.rows) or not self.representative.any():
            return np.inf
        return float(
            np.median(
                self.exact[self.rows.index(next_row), self.representative] / self.usual[self.representative]
            )
        )


# Order -----------------------------------------------------------------------------------------------


Pairs = set[frozenset[int]]


@dataclass(frozen=True)
class Move:
    """A swap of two checkpoints or a move of one: the intervals it removes, and the intervals it adds."""

    moved: tuple[int, ...]
    removed: Pairs
    added: Pairs
    line: Callable[[], list[int]]  # returns the new order


def reordered(
    line: Sequence[int], distances: Floats, left: Distance = lambda _, __: 1.0
) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Yield moves that shorten the trajectory, each as the new line and the moved places.

    A move counts if every removed interval is replaced by a clearly shorter one over which the old weights
    are retained. So a checkpoint of another run, which is far from all others, is never moved, and neither
    is a noisy checkpoint before the learning rate drops.
    """
    now = list(line)
    for _ in range(MOVES if len(line) >= FEWEST else 0):
        # A move removes at most four intervals, so the five longest include the longest remaining one.
        longest = sorted(((float(distances[pair]), frozenset(pair)) for pair in pairwise(now)), key=_length)[
            -5:
        ]
        found = [
            (gain, move)
            for move in _moves(now, distances)
            if (gain := _gain(now, move, distances, longest)) is not None
            and _directed(move.line(), move.moved, distances)
            and all(left(*sorted(pair)) >= LEFT_MODEL for pair in move.added)
        ]
        if not found:
            return
        # Distances are the same in reverse order; among equal moves, take the one that displaces the least.
        most = max(gain for gain, _ in found) * (1 - 1e-9)
        order = {place: k for k, place in enumerate(now)}
        best = [(move.line(), move.moved) for gain, move in found if gain >= most]
        now, moved = min(best, key=lambda move: sum(abs(order[p] - k) for k, p in enumerate(move[0])))
        yield now, moved


def leads_on(line: Sequence[int], distances: Floats) -> bool:
    """Whether distances grow with the number of intervals between checkpoints, as they do unless shuffled."""
    early, late = np.triu_indices(len(line), 1)
    places = np.array(line)
    apart = distances[places[early], places[late]].argsort(kind="stable").argsort()
    intervals = (late - early).argsort(kind="stable").argsort()
    return float(np.corrcoef(apart, intervals)[0, 1]) >= IN_ORDER


def _moves(line: list[int], distances: Floats) -> Iterator[Move]:
    """Yield moves of checkpoints at the ends of an interval that a third checkpoint could shorten."""
    n = len(line)
    d = distances[np.ix_(line, line)] + np.diag(np.full(n, np.inf))
    nearest = d.min(axis=1)
    long = np.minimum(nearest[:-1], nearest[1:]) < NEARER * d[np.arange(n - 1), np.arange(1, n)]
    odd = [k for k in range(n) if (k and long[k - 1]) or (k < n - 1 and long[k])]

    def exchanged(k: int, other: int) -> list[int]:
        then = line.copy()
        then[k], then[other] = then[other], then[k]
        return then

    def taken(k: int, to: int) -> list[int]:
        rest = line[:k] + line[k + 1 :]
        return [*rest[:to], line[k], *rest[to:]]

    is_odd = set(odd)
    for k in odd:
        for other in _exchangeable(d, k):
            if other == k or (other < k and other in is_odd):
                continue
            places = [p for p in {k - 1, k, other - 1, other} if 0 <= p < n - 1]
            swap = {k: line[other], other: line[k]}
            old = {frozenset((line[p], line[p + 1])) for p in places}
            new = {frozenset((swap.get(p, line[p]), swap.get(p + 1, line[p + 1]))) for p in places}
            moved = (line[min(k, other)], line[max(k, other)])
            yield Move(moved, old - new, new - old, partial(exchanged, k, other))
        for to in _takeable(d, k):
            if abs(to - k) <= 1:  # a move by one place is a swap of neighbors
                continue
            before, after = (to - 1, to) if to < k else (to, to + 1)
            sides = [line[p] for p in (before, after) if 0 <= p < n]
            beside = [line[p] for p in (k - 1, k + 1) if 0 <= p < n]
            old = {frozenset((line[k], place)) for place in beside} | (
                {frozenset(sides)} if len(sides) > 1 else set()
            )
            new = {frozenset((line[k], place)) for place in sides} | (
                {frozenset(beside)} if len(beside) > 1 else set()
            )
            yield Move((line[k],), old - new, new - old, partial(taken, k, to))


def _exchangeable(d: Floats, k: int) -> list[int]:
    """Return places whose swap with place k may shorten the trajectory: all that `_gain` accepts, and a few more.

    This vectorized filter is needed for speed: checking all n² swaps in 20 rounds takes 85 s for 700 checkpoints.
    """
    n = len(d)
    if not 0 < k < n - 1:
        return list(range(n))
    o = np.arange(1, n - 1)
    removed = [np.full(n - 2, d[k - 1, k]), np.full(n - 2, d[k, k + 1]), d[o - 1, o], d[o, o + 1]]
    shorter = _shorter([d[k - 1, o], d[o, k + 1], d[o - 1, k], d[k, o + 1]], removed)
    return [0, *o[shorter | (np.abs(o - k) <= 2)].tolist(), n - 1]  # neighbors share intervals


def _takeable(d: Floats, k: int) -> list[int]:
    """Return places to which moving the checkpoint at place k may shorten the trajectory."""
    n = len(d)
    if not 0 < k < n - 1:
        return list(range(n))
    to = np.arange(1, n - 1)
    before, after = np.where(to < k, to - 1, to), np.where(to < k, to, to + 1)
    removed = [np.full(n - 2, d[k - 1, k]), np.full(n - 2, d[k, k + 1]), d[before, after]]
    shorter = _shorter([d[k, before], d[k, after], np.full(n - 2, d[k - 1, k + 1])], removed)
    return [0, *to[shorter].tolist(), n - 1]


def _shorter(added: list[Floats], removed: list[Floats]) -> NDArray[np.bool_]:
    """Whether each interval is replaced by a clearly shorter one; both sides are matched in order of length."""
    return np.all(np.sort(added, axis=0) < NEARER * np.sort(removed, axis=0), axis=0)


def _length(stretch: tuple[float, frozenset[int]]) -> float:
    return stretch[0]


def _gain(
    line: list[int], move: Move, distances: Floats, longest: list[tuple[float, frozenset[int]]]
) -> float | None:
    """Return by how much a move shortens the trajectory; None if it does not shorten every interval."""

    def lengths(pairs: Pairs) -> list[float]:
        return sorted((float(distances[tuple(pair)]) for pair in pairs), reverse=True)

    removed, added = lengths(move.removed), lengths(move.added)
    if not removed or not all(a < NEARER * r for a, r in zip(added, removed, strict=True)):
        return None
    kept = [length for length, pair in longest if pair not in move.removed]
    if added[0] > 4 * max(kept, default=0.0):
        return None  # a checkpoint of another run is far from all places, only less so from the small initial weights
    if len(removed) == 1 and removed[0] < 1.5 * max(_around(line, move.removed, distances), default=np.inf):
        # At an end of the series, one interval is the only evidence, and it has to be longer than the others. A drop of
        # the learning rate before the last checkpoint makes it shorter.
        return None
    return sum(removed) - sum(added)


def _directed(line: list[int], moved: tuple[int, ...], distances: Floats) -> bool:
    """Whether the trajectory has a direction here. If weights only fluctuate, no order is better than another."""
    at = [line.index(place) for place in moved]
    around = {k for m in at for k in range(m - AROUND, m + AROUND + 1)}
    near = sorted(k for k in around if 0 < k < len(line) - 1)
    longer = [max(distances[line[k - 1], line[k]], distances[line[k], line[k + 1]]) for k in near]
    onward = [distances[line[k - 1], line[k + 1]] / d for k, d in zip(near, longer, strict=True) if d > 0]
    return len(onward) > 0 and float(np.median(onward)) >= ONWARD


def _around(line: list[int], pairs: Pairs, distances: Floats) -> list[float]:
    """Return the lengths of the intervals around the removed one."""
    at = next(k for k in range(1, len(line)) if frozenset((line[k - 1], line[k])) in pairs)
    near = range(max(1, at - AROUND), min(len(line), at + AROUND + 1))
    return [float(distances[line[k - 1], line[k]]) for k in near if k != at]


# Outliers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stray:
    """Places in the line that do not belong to the rest, and the places they were compared with."""

    places: range
    before: int | None
    after: int | None
    returns: bool  # whether the trajectory continues after these places; otherwise it breaks at places.start


def rescaled(left: float, cosine: float) -> bool:
    """Whether the weights are the old weights times a constant."""
    return cosine >= ALIGNED and not 1 / SCALED < left < SCALED


def outliers(
    steps: Sequence[int], distance: Distance, left: Distance, cosine: Distance, *, least: float
) -> list[Stray]:
    """Return places that do not continue the line. least: largest retained part of the old weights at a break."""
    n = len(steps)
    # Interval k leads from place k - 1 to place k.
    length = [0.0, *(distance(k - 1, k) for k in range(1, n))]
    gap = [1, *(max(1, steps[k] - steps[k - 1]) for k in range(1, n))]
    found: list[Stray] = []
    taken: set[int] = set()  # intervals that lead to and from outliers

    def around(k: int, leave: set[int]) -> list[int]:
        near = range(max(1, k - AROUND), min(n, k + AROUND + 1))
        return [j for j in near if j not in leave and j not in taken and length[j] > 0]

    for size in range(1, LONGEST + 1):
        for k in range(1, n - size):
            back, own = k + size, set(range(k, k + size + 1))
            out = min(length[k], length[back])
            if own & taken or not distance(k - 1, back) < CLOSED * out:
                continue
            # The other intervals, scaled to this gap as if the weights moved on a straight line.
            others = {
                (m, j): length[j] * max(1.0, gap[m] / gap[j]) ** 2 for m in (k, back) for j in around(m, own)
            }
            several = len({j for _, j in others}) > 1
            # Lost weights do not return, so this is an outlier however long the surrounding intervals are.
            if left(k - 1, k) < least or (several and out > 4 * max(others.values())):
                found.append(Stray(range(k, back), k - 1, back, True))
                taken |= own
    for k in range(1, n):
        here = left(k - 1, k)
        if k in taken or not (here < least or rescaled(here, cosine(k - 1, k))):
            continue
        most = 1 / LEFT_AROUND if here > 1 else np.inf
        expected = [max(0.0, left(j - 1, j)) ** (gap[k] / gap[j]) for j in around(k, {k})]
        if len(expected) >= 2 and min(expected) >= LEFT_AROUND and max(expected) <= most:
            found.append(Stray(range(1), None, 1, True) if k == 1 else Stray(range(k, n), k - 1, None, False))
    return sorted(found, key=lambda stray: stray.places.start)
