"""Find checkpoints and tensors that have exactly the weights of another step.

Equal sums raise a suspicion; a comparison of the values confirms it. Of two equal checkpoints, the original is the one
that is closer to its neighbors.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from normgrowth.lint.checks.trajectory import Distance, Trajectory
from normgrowth.lint.checks.unchanged import sure_to_change
from normgrowth.lint.step_table import StepTable
from normgrowth.moments.moments import Floats
from normgrowth.trace.sampling.finding import Finding

Same = Callable[[int, int, Sequence[str]], NDArray[np.bool_]]  # (row, row, names) -> which tensors are equal
SUMS_EQUAL = 1e-11  # relative: sums of equal values differ by less, of other values almost always by more
FEW = 16  # a tensor with fewer values may return to old values by chance
# Equal checkpoints at the start are not a fault if they span at most one step or this fraction of the series:
# steps 0 and 1 of Pythia are equal, because its learning rate warms up from 0.
START = 0.01
# Ratio of d² of the interval before the last two (equal) checkpoints to d² of the interval before that one. It is 1 if
# both have the weights of the earlier step. If both have those of the last step, d² spans two intervals: the ratio is 2
# for a random walk and 4 on a straight line. Schedules change it too, so a ratio in between decides nothing.
ONE_INTERVAL, TWO_INTERVALS = 1.0, 4.0


def whole_copies(e: StepTable, routes: Trajectory | None, same: Same) -> tuple[list[Finding], set[int]]:
    """Return findings for checkpoints with the weights of another step, and their rows."""
    n = len(e.sampled)
    apart = routes.apart if routes else _unknown
    found: list[Finding] = []
    rows: set[int] = set()
    for members in _groups(e, same):
        true = _original_row(members, n, apart)
        honest = _benign_reason(e, members, true, apart)
        more = f" ({len(members)} checkpoints are equal)" if len(members) > 2 else ""
        if not honest and _either(members, n, apart):
            true, more = members[0], "; either of the two may be the copy"
        why = f"has exactly the weights of {e.step(true)}{more}{honest and f': {honest}'}"
        for row in members:
            if row != true:
                found.append(e.finding(row, "", "identical", why, "remark" if honest else "fault"))
                rows.add(row)
    return found, rows


def _unknown(_: int, __: int) -> float:
    return np.inf


def _groups(e: StepTable, same: Same) -> list[list[int]]:
    """Return groups of equal rows."""
    n = len(e.sampled)
    group = list(range(n))

    def join(i: int, j: int) -> None:
        old, new = max(group[i], group[j]), min(group[i], group[j])
        group[:] = [new if g == old else g for g in group]

    for row in range(1, n):
        if _comparable(e, row - 1, row) and e.unchanged[row, _columns(e, row)].all():
            join(row - 1, row)
    square = np.where(np.isfinite(e.square), e.square, 0.0)  # a mask may be infinite
    total = square.sum(axis=1)
    for i in range(n):
        for j in np.flatnonzero(np.abs(total - total[i]) <= SUMS_EQUAL * total[i]).tolist():
            if i < j and group[i] != group[j] and _comparable(e, i, j) and total[i] > 0:
                names = [name for name in e.sampled[i].names if square[i, e.column[name]] > 0]
                columns = [e.column[name] for name in names]
                near = np.abs(square[i] - square[j])[columns] <= SUMS_EQUAL * square[i, columns]
                if near.all() and same(i, j, names).all():
                    join(i, j)
    members = ([i for i in range(n) if group[i] == g] for g in sorted(set(group)))
    return [found for found in members if len(found) > 1]


def _columns(e: StepTable, row: int) -> list[int]:
    return [e.column[name] for name in e.sampled[row].names]


def _comparable(e: StepTable, i: int, j: int) -> bool:
    a, b = e.sampled[i], e.sampled[j]
    return dict(zip(a.names, a.shapes, strict=True)) == dict(zip(b.names, b.shapes, strict=True))


def _original_row(members: Sequence[int], n: int, apart: Distance) -> int:
    """Return the member that the weights belong to: the one with the shortest distance to its neighbors."""
    breaks = np.flatnonzero(np.diff(members) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(np.array(members), breaks)]

    def into(run: tuple[int, int]) -> float:
        return apart(run[0] - 1, run[0]) if run[0] > 0 else np.nan

    def out_of(run: tuple[int, int]) -> float:
        return apart(run[1], run[1] + 1) if run[1] < n - 1 else np.nan

    def both(run: tuple[int, int]) -> float:
        sides = [side for side in (into(run), out_of(run)) if not np.isnan(side)]
        return sum(sides) / len(sides) if sides else np.inf

    first, last = run = min(runs, key=both)
    if last == n - 1 and first > 0:
        # Either training stopped, or the final weights were copied into earlier steps. If k checkpoints are copies, the
        # last real step before them spans k intervals, so its distance grows by a factor of about k or more.
        jump = TWO_INTERVALS if len(members) == 2 else 1.5
        stopped = first >= 2 and into(run) <= jump * apart(first - 2, first - 1)
        return first if stopped else last
    return last if first > 0 and out_of(run) < into(run) else first


def _either(members: Sequence[int], n: int, apart: Distance) -> bool:
    """Whether the series ends with two equal checkpoints and either may be the copy."""
    first = members[0]
    if list(members) != [n - 2, n - 1] or first < 2:
        return list(members) == [n - 2, n - 1]
    before, into = apart(first - 2, first - 1), apart(first - 1, first)
    return not (into <= ONE_INTERVAL * before or into >= TWO_INTERVALS * before)


def _benign_reason(e: StepTable, members: Sequence[int], true: int, apart: Distance) -> str:
    """Return why a run of equal checkpoints at either end may be normal, or ""."""
    first, last, n = members[0], members[-1], len(e.sampled)
    if last - first != len(members) - 1 or len(members) == n:
        return ""
    steps = [sample.step for sample in e.sampled]
    if first == 0 and steps[last] - steps[0] <= max(1, START * (steps[-1] - steps[0])):
        return "expected while the learning rate is 0 or the gradient scaler skips steps"
    if last == n - 1 and true == first > 1:
        lengths = [apart(k - 1, k) for k in range(1, first + 1)]
        if lengths[-1] < np.median(lengths) / 16:
            return "the updates before it shrink, so the learning rate may have reached 0"
    return ""


def tensor_copies(
    e: StepTable, routes: Trajectory | None, copied: set[int], same: Same
) -> tuple[list[Finding], set[int]]:
    """Return findings for tensors that have the values of another step although they changed in between.

    The usual cause is a shard of another step. If at least half of the moving tensors are affected, the finding is for
    the whole checkpoint, and its row is returned as well.
    """
    found: list[Finding] = []
    rows: set[int] = set()
    shared: dict[str, list[set[int]]] = {}  # tensor -> sets of rows in which it is equal
    moving = int((e.delta > 0).any(axis=0).sum())
    for (i, j), names in sorted(_suspects(e, copied).items()):
        equal = [name for name, is_so in zip(names, same(i, j, names), strict=True) if is_so]
        if equal and 2 * len(equal) >= moving:
            true = _original_row([i, j], len(e.sampled), routes.apart if routes else _unknown)
            why = f"{len(equal)} of {len(e.names)} tensors have exactly the values of {e.step(true)}"
            found.append(e.finding(i + j - true, "", "identical", why))
            rows.add(i + j - true)
            continue
        for name in equal:
            sets = shared.setdefault(name, [])
            near = [known for known in sets if known & {i, j}]
            sets[:] = [known for known in sets if known not in near] + [set.union({i, j}, *near)]
    for name, sets in shared.items():
        length = e.delta[:, e.column[name]]

        def beside(row: int, length: Floats = length) -> float:
            return float(np.nanmin(np.r_[np.inf, length[row : row + 2]]))

        for members in sets:
            true = min(sorted(members), key=beside)
            why = f"has exactly the values of {e.step(true)}, but changed in between"
            found += [e.finding(row, name, "identical", why) for row in sorted(members - {true})]
    return found, rows


def _suspects(e: StepTable, copied: set[int]) -> dict[tuple[int, int], list[str]]:
    """Return pairs of rows with the tensors that have equal sums in both although they must have changed in between."""
    rows = np.array([row for row in range(len(e.sampled)) if row not in copied])
    moving = np.flatnonzero((e.delta > 0).any(axis=0) & (e.numel >= FEW))
    square = e.square[rows][:, moving]
    order = np.argsort(square, axis=0, kind="stable")
    ranked = np.take_along_axis(square, order, axis=0)
    equal = np.diff(ranked, axis=0) <= SUMS_EQUAL * ranked[1:]
    pairs: dict[tuple[int, int], list[str]] = {}
    for k, t in np.argwhere(equal).tolist():
        i, j = sorted(rows[order[k : k + 2, t]].tolist())
        column = int(moving[t])
        name, rate = e.names[column], float(np.nanmax(np.r_[0.0, e.changed[i + 1 : j + 1, column]]))
        alike = e.pattern[i, column] in ("zeros", "ones", "constant")
        if j > i + 1 and not alike and sure_to_change(e.numel[column], rate) and _same_shape(e, i, j, name):
            pairs.setdefault((i, j), []).append(name)
    return pairs


def _same_shape(e: StepTable, i: int, j: int, name: str) -> bool:
    a, b = e.sampled[i], e.sampled[j]
    return a.shapes[a.names.index(name)] == b.shapes[b.names.index(name)]
