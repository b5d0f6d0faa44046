"""Find checkpoints out of order, checkpoints and tensors of another run, and freshly initialized weights."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from normgrowth.lint.checks.trajectory import (
    ALIGNED,
    CLOSED,
    FEWEST,
    LEFT_MODEL,
    LEFT_TENSOR,
    MOVES,
    STRANGE,
    Distance,
    Stray,
    Trajectory,
    leads_on,
    outliers,
    reordered,
    rescaled,
)
from normgrowth.lint.step_table import StepTable
from normgrowth.trace.sampling.finding import Finding

UNRELATED = 0.1  # largest retained part of the weights of an unrelated model; it is 0, and a sample of it is not exact
ALONE = 9.0  # ratio of d²: a tensor that jumps alone moves three times as far as the model in that interval
RESET = ("zeros", "ones")
DRAWN = ("normal", "uniform")


def order_faults(e: StepTable, routes: Trajectory, line: list[int]) -> tuple[list[Finding], list[int]]:
    """Return findings for checkpoints out of order, and all places in their likely order."""
    if _interleaved(len(line), lambda a, b: routes.distance(line[a], line[b])):
        why = "from here on, every second checkpoint belongs to another run: two runs alternate"
        return [e.finding(routes.rows[line[1]], "", "run", why)], []

    def step(place: int) -> str:
        return e.step(routes.rows[place])

    found: list[Finding] = []
    healed = line
    moves = list(reordered(line, routes.distances, routes.left_of_model))
    if len(moves) >= MOVES and leads_on(line, routes.distances):
        first = min(place for _, moved in moves for place in moved)
        why = (
            f"the order of neighbors cannot be checked: from here on, {MOVES} checkpoints or more are nearer to "
            "others than to their neighbors; the weights go back and forth, as with a high learning rate"
        )
        return [e.finding(routes.rows[first], "", "order", why, "remark")], line
    for then, moved in moves:
        healed, at = then, then.index(moved[0])
        if len(moved) == 2:
            whys = [f"looks swapped with {step(other)}" for other in reversed(moved)]
        elif 0 < at < len(then) - 1:
            whys = [f"out of order: fits between {step(then[at - 1])} and {step(then[at + 1])}"]
        else:
            near = step(then[1 if at == 0 else -2])
            whys = [f"out of order: fits {'before' if at == 0 else 'after'} {near}"]
        found += [
            e.finding(routes.rows[place], "", "order", why) for place, why in zip(moved, whys, strict=True)
        ]
    return found, healed


def unrelated(e: StepTable, routes: Trajectory, line: Sequence[int]) -> list[Finding]:
    """Return a finding if no checkpoint continues from an earlier one: models of an ensemble, or of several runs.

    Two checkpoints can be far apart in one run, so for them it is a remark.
    """
    near = [(a, b) for lag in (1, 2, 3) for a, b in zip(line, line[lag:], strict=False)]
    if not near or not all(abs(routes.left_of_model(a, b)) < UNRELATED for a, b in near):
        return []
    largest = max((routes.cosine(a, b) for a, b in pairwise(line)), key=abs)
    if len(line) == 2:
        why = (
            f"has almost nothing left of the weights of {e.step(routes.rows[line[0]])} (sampled cosine of the matrices "
            f"{largest:.3f}): another run, or training that went far in between"
        )
        return [e.finding(routes.rows[line[1]], "", "run", why, "remark")]
    why = (
        f"no checkpoint continues from an earlier one (sampled cosines of the matrices up to {largest:.3f}): "
        "independent models, such as an ensemble, not steps of one run"
    )
    return [e.finding(routes.rows[line[1]], "", "run", why)]


def _interleaved(count: int, distance: Distance) -> bool:
    """Whether every second checkpoint belongs to another run."""
    closed = [
        distance(k - 1, k + 1) < CLOSED * min(distance(k - 1, k), distance(k, k + 1))
        for k in range(1, count - 1)
    ]
    return count >= FEWEST and float(np.mean(closed)) >= 0.8


def stored_order(e: StepTable, known: set[int]) -> Iterator[Finding]:
    """Yield a finding where the steps stored in the files decrease. known: rows already reported, which are skipped."""
    told = [
        (k, sample.stored)
        for k, sample in enumerate(e.sampled)
        if sample.stored is not None and k not in known
    ]
    for (before, earlier), (row, later) in pairwise(told):
        if later < earlier:
            why = (
                f"stores step {later} inside, but the file of {e.step(before)} stores {earlier}: out of order"
            )
            yield e.finding(row, "", "order", why)


# Other runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Way:
    """The trajectory of the model or of one tensor along a line of checkpoints; places count from 0."""

    e: StepTable
    routes: Trajectory
    line: list[int]
    tensor: int | None = None

    def row(self, k: int) -> int:
        return self.routes.rows[self.line[k]]

    def distance(self, a: int, b: int) -> float:
        i, j = self.line[a], self.line[b]
        if self.tensor is None:
            return self.routes.distance(i, j)
        return float(self.routes.tensors(i, j)[self.tensor])

    def retained(self, a: int, b: int) -> float:
        i, j = self.line[a], self.line[b]
        if self.tensor is None:
            return self.routes.left_of_model(i, j)
        return float(self.routes.retained(i, j)[self.tensor])

    def cosine(self, a: int, b: int) -> float:
        return self.routes.cosine(self.line[a], self.line[b], self.tensor)

    def cosine_text(self, a: int, b: int) -> str:
        """Return the exact cosine, as in the records of a trace, if it is available; else the sampled cosine."""
        early, late = sorted((self.row(a), self.row(b)))
        name = "" if self.tensor is None else self.routes.names[self.tensor]
        exact = self.e.cosine(late, name) if late == early + 1 else None
        if exact is None:
            return f"sampled cosine {self.cosine(a, b):.3f}"
        return "cosine undefined" if np.isnan(exact) else f"cosine {exact:.3f}"

    def outliers(self) -> Iterator[tuple[Stray, int]]:
        """Yield each outlier with each place to report."""
        steps = sorted(self.e.sampled[self.row(k)].step for k in range(len(self.line)))
        least = LEFT_MODEL if self.tensor is None else LEFT_TENSOR
        for stray in outliers(steps, self.distance, self.retained, self.cosine, least=least):
            for k in stray.places if stray.returns else stray.places[:1]:
                yield stray, k

    def why(self, stray: Stray, k: int) -> str:
        def step(place: int) -> str:
            return self.e.step(self.row(place))

        before, after = stray.before, stray.after
        near = 1 if before is None else before
        if rescaled(times := self.retained(near, k), self.cosine(near, k)):
            return f"is about {step(near)} times {times:.3g} ({self.cosine_text(near, k)}): rescaled"
        if before is None:
            why = f"{step(1)} does not continue from it ({self.cosine_text(0, 1)}), unlike the steps after it"
            return f"{why}: another run"
        if after is None:
            why = f"does not continue from {step(before)} ({self.cosine_text(before, k)}), unlike the steps around it"
            return f"{why}: another run from here on, or re-initialized"
        short, far = self.distance(before, after), min(self.distance(before, k), self.distance(k, after))
        ratio = f"{np.sqrt(far / short):.1f} times" if far < 1e8 * short else "more than 10000 times"
        same_start = self.cosine(before, k) >= ALIGNED
        cause = (
            "a run from the same initial weights, or a jump that the next checkpoint undoes"
            if same_start
            else "another run, or re-initialized"
        )
        return (
            f"is {ratio} as far from {step(before)} ({self.cosine_text(before, k)}) and {step(after)} "
            f"({self.cosine_text(k, after)}) as they are from each other ({self.cosine_text(before, after)}): "
            f"{cause}"
        )


def run_faults(
    e: StepTable, routes: Trajectory, line: list[int], other: Iterable[int] = ()
) -> Iterator[Finding]:
    """Yield findings for checkpoints or tensors that look like another run or a re-initialization.

    other: rows of another series, which are not compared.
    """
    model = _Way(e, routes, line)
    said: set[int] = set()
    for stray, k in model.outliers():
        said |= {k, stray.places.stop} if stray.returns else {k}
        fresh = (
            stray.before is not None and _fresh(e, model.row(k)) - _fresh(e, model.row(stray.before)) > 0.5
        )
        why = model.why(stray, k) + ("; its gains and biases are exactly 1 and 0" if fresh else "")
        yield e.finding(model.row(k), "", "initial" if fresh else "run", why)
    yield from _strange_tensors(model, said)
    known = {model.row(k) for k in said if k < len(line)}
    rows = [row for row in range(1, len(e.sampled)) if row not in known and not {row - 1, row} & set(other)]
    yield from _reset_tensors(e, rows)


def _strange_tensors(model: _Way, said: set[int]) -> Iterator[Finding]:
    """Yield findings for matrices that jump much farther than the model in the same interval."""
    e, routes, line = model.e, model.routes, model.line
    if len(line) < 3:
        return
    strange = np.stack([routes.relative_distance(a, b) for a, b in pairwise(line)])
    for t in np.flatnonzero(routes.representative & (strange >= STRANGE).any(axis=0)).tolist():
        way = _Way(e, routes, line, t)
        column = e.column[routes.names[t]]
        for stray, k in way.outliers():
            near = stray.before if stray.before is not None else stray.places.stop
            alone = way.distance(near, k) > ALONE * routes.usual[t] * model.distance(near, k)
            stranger = routes.relative_distance(line[near], line[k])[t] >= STRANGE
            shape, before = e.pattern[way.row(k), column], e.pattern[way.row(near), column]
            if k in said or not alone or not stranger or shape in RESET:
                continue
            fresh = stray.before is not None and shape in DRAWN and before not in DRAWN
            why = way.why(stray, k) + (
                f"; it looks freshly initialized ({shape} distribution)" if fresh else ""
            )
            yield e.finding(way.row(k), routes.names[t], "initial" if fresh else "run", why)


# Freshly initialized ---------------------------------------------------------------------------------


def _vectors(e: StepTable, row: int) -> list[int]:
    """Return the columns of gains and biases."""
    sample = e.sampled[row]
    entries = zip(sample.names, sample.shapes, strict=True)
    return [e.column[name] for name, shape in entries if len(shape) == 1 and shape[0] >= 4]


def _fresh(e: StepTable, row: int) -> float:
    """Return the fraction of gains and biases whose values are all exactly 1 or all exactly 0."""
    own = _vectors(e, row)
    return float(np.mean([e.pattern[row, i] in RESET for i in own])) if len(own) > 1 else 0.0


def _reset_tensors(e: StepTable, rows: list[int]) -> Iterator[Finding]:
    """Yield findings for tensors that are all 0 or all 1 although half of their values differed one step before.

    The threshold is one half because a bfloat16 gain can leave 1 and return to it in normal training.
    """
    for row in rows:
        columns = [e.column[name] for name in e.sampled[row].names]
        reset = [
            i for i in columns if e.pattern[row, i] in RESET and e.changed[row, i] >= 0.5 and e.numel[i] >= 4
        ]
        vectors = _vectors(e, row)
        if len(reset) > 2 and 3 * len(set(reset) & set(vectors)) >= 2 * len(vectors):
            why = (
                f"{len(reset)} gains and biases are exactly 1 and 0, but were trained at {e.step(row - 1)}: "
                "freshly initialized, or the series runs backwards"
            )
            yield e.finding(row, "", "initial", why)
            continue
        for i in reset:
            value = "0" if e.pattern[row, i] == "zeros" else "1"
            why = f"all values are exactly {value}, as at initialization, but most were not at {e.step(row - 1)}"
            yield e.finding(row, e.names[i], "initial", why)


def untrained(e: StepTable) -> Iterator[Finding]:
    """Yield findings that need no comparison: a first checkpoint of zeros, or a single untrained checkpoint."""
    if not e.square[0].any():
        yield e.finding(0, "", "initial", "all values of all tensors are 0")
    elif len(e.sampled) == 1 and _fresh(e, 0) == 1:
        yield e.finding(0, "", "initial", "all gains are exactly 1 and all biases 0: untrained?", "remark")
