"""Find tensors that did not change while others did: never trained, temporarily frozen, or from an old shard.

Some training methods leave whole modules unchanged: cycling through layers (LISA, block-coordinate descent), gradual
unfreezing, experts that receive no tokens. So a tensor is judged together with its module. If a whole layer, its
attention or feed-forward part, or the same tensor of every layer is unchanged, this is a remark. If a single tensor is
unchanged while its layer changes, it is stale: training does not do this, unless rounding explains it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from normgrowth.lint.step_table import StepTable
from normgrowth.trace.sampling.finding import Finding

Run = tuple[int, int]  # first interval, last interval + 1

# A tensor counts as unchanged only if the probability that no value changes, at the rate of the surrounding intervals,
# is below exp(-SURE): in bfloat16, a gain near 1 keeps its value over many small updates.
SURE = 20.0
SHOWN = 3  # number of intervals that a message lists


def unchanged_tensors(e: StepTable, copies: set[int], buffers: Mapping[str, str]) -> Iterator[Finding]:
    """Yield stale tensors (faults), frozen and untrained tensors (remarks), and counted buffers (faults)."""
    table = _Intervals(e, copies)
    for column, name in enumerate(e.names):
        if not table.unchanged[:, column].any() or not e.numel[column]:
            if len(e.sampled) == 1 and name in buffers:
                yield e.finding(0, name, "buffer", _buffer(buffers[name], name, "counts as a parameter"))
        elif not table.moved[:, column].any():
            yield _never_moved(e, column, buffers)
        else:
            yield from table.judge(column)


def sure_to_change(numel: float, rate: float) -> bool:
    """Whether at least one of `numel` values changes almost certainly if each changes with probability `rate`."""
    return numel * -np.log1p(-min(rate, 0.99)) >= SURE


@dataclass(frozen=True)
class _Intervals:
    """Which tensors (columns) moved and which stayed unchanged in each interval between checkpoints (rows)."""

    e: StepTable
    copies: set[int]

    @cached_property
    def rows(self) -> list[int]:
        """Return the later checkpoint of each usable interval: neither end is a copy, and some tensor moved."""
        e = self.e
        return [
            k for k in range(1, len(e.sampled)) if not {k - 1, k} & self.copies and (e.delta[k] > 0).any()
        ]

    @cached_property
    def unchanged(self) -> NDArray[np.bool_]:
        return self.e.unchanged[self.rows]

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        return self.e.delta[self.rows] > 0

    @cached_property
    def together(self) -> NDArray[np.bool_]:
        """Return where a tensor is unchanged together with a whole module or with the same tensor of every layer."""
        found = np.zeros_like(self.unchanged)
        of_layers = [columns for layer, columns in self.layers.items() if layer is not None]
        for columns in (*of_layers, *_modules(self.e)):
            found[:, columns] |= self.unchanged[:, columns] & self.whole(columns)[:, None]
        # Layers that are unchanged as a whole say nothing about the same tensor in other layers.
        resting = {layer: self.whole(columns) for layer, columns in self.layers.items()}
        for columns in _same_in_every_layer(self.e):
            own = [self.e.readings[self.e.names[i]].layer_name for i in columns]
            at_work = ~np.stack([resting[layer] for layer in own], axis=1)
            several = self.whole(columns) & (at_work.sum(axis=1) > 1)
            found[:, columns] |= self.unchanged[:, columns] & at_work & several[:, None]
        return found

    def whole(self, columns: list[int]) -> NDArray[np.bool_]:
        """Return intervals in which none of these tensors moved and rounding does not explain it."""
        return np.any(self.sure[:, columns], axis=1) & ~np.any(self.moved[:, columns], axis=1)

    @cached_property
    def sure(self) -> NDArray[np.bool_]:
        """Return where a tensor is unchanged and rounding does not explain it."""
        found = np.zeros_like(self.unchanged)
        for column in np.flatnonzero(self.unchanged.any(axis=0) & self.moved.any(axis=0)).tolist():
            for run in self.runs(column, self.unchanged):
                at = slice(*run)
                found[at, column] = self.unchanged[at, column] & self.surely(column, run)
        return found

    def judge(self, column: int) -> Iterator[Finding]:
        frozen: list[Run] = []
        for run in self.runs(column, self.unchanged):
            parts = [part for part in self.runs(column, self.together) if run[0] <= part[0] < run[1]]
            frozen += parts
            alone = [part for part in _between(run, parts) if self.surely(column, part)]
            if alone:
                yield self.alone(column, run, alone[0])
        if shard := [run for run in frozen if self.is_shard(column, run, len(frozen))]:
            yield self.stale(column, shard[0])
        elif frozen:
            listed = ", ".join(map(self.steps, frozen[:SHOWN]))
            more = f" and {len(frozen) - SHOWN} more intervals" if len(frozen) > SHOWN else ""
            why = f"unchanged together with its module at steps {listed}{more}, while other tensors changed"
            yield self.e.finding(self.rows[frozen[0][0]], self.e.names[column], "frozen", why, "remark")

    def runs(self, column: int, where: NDArray[np.bool_]) -> list[Run]:
        """Return runs of consecutive intervals where `where` holds; intervals without a pair are skipped."""
        own = np.flatnonzero(self.unchanged[:, column] | self.moved[:, column]).tolist()
        found: list[Run] = []
        for holds, run in groupby(own, key=lambda k: bool(where[k, column])):
            if holds:
                at = list(run)
                found.append((at[0], at[-1] + 1))
        return found

    def sides(self, column: int, run: Run) -> list[int]:
        """Return the nearest intervals before and after the run in which the tensor moved."""
        moved = np.flatnonzero(self.moved[:, column])
        return [*moved[moved < run[0]][-1:].tolist(), *moved[moved >= run[1]][:1].tolist()]

    def surely(self, column: int, run: Run) -> bool:
        """Whether rounding cannot explain that the tensor is unchanged."""
        sides = self.sides(column, run)
        pace = min(self.pace(column, run[0], side) for side in sides)
        changed = self.e.changed[self.rows]
        return sure_to_change(
            self.e.numel[column], min(changed[side, column] for side in sides) * min(1.0, pace)
        )

    def pace(self, column: int, here: int, beside: int) -> float:
        """Return how far the tensor's layer moved in interval `here`, relative to interval `beside`.

        If no tensor of the layer moved in both, all other tensors are used; 1 if none of them moved in both.
        """
        layer = self.layers[self.e.readings[self.e.names[column]].layer_name]
        delta, both = self.e.delta[self.rows], self.moved[here] & self.moved[beside]
        near = [i for i in layer if both[i]] or np.flatnonzero(both).tolist()
        return float(np.sqrt(np.median(delta[here, near] / delta[beside, near]))) if near else 1.0

    @cached_property
    def layers(self) -> dict[str | None, list[int]]:
        found: dict[str | None, list[int]] = {}
        for i, name in enumerate(self.e.names):
            found.setdefault(self.e.readings[name].layer_name, []).append(i)
        return found

    def ends(self, column: int, run: Run) -> tuple[bool, bool]:
        """Whether the tensor moved before the run, and after it."""
        first = self.rows[run[0]]
        # Copies leave no usable interval before the run, but their values still show whether the tensor changed.
        earlier = [row for row in range(first) if row not in self.copies and self.e.square[row, column] > 0]
        before = self.moved[: run[0], column].any() or len(set(self.e.square[earlier, column])) > 1
        return bool(before), bool(self.moved[run[1] :, column].any())

    def alone(self, column: int, run: Run, part: Run) -> Finding:
        """Return the finding for a run of intervals; in some of them, only this tensor of its module is unchanged."""
        before, after = self.ends(column, run)
        if before and (after or (run[1] == run[0] + 1 and len(self.rows) > 2)):
            return self.stale(column, part)
        why = f"unchanged at steps {self.steps(run)}, {'trained before' if before else 'then trained'}"
        return self.e.finding(self.rows[run[0]], self.e.names[column], "frozen", why, "remark")

    def stale(self, column: int, run: Run) -> Finding:
        why = f"unchanged at steps {self.steps(run)} while tensors around it changed; it changed before"
        why += " and after" if self.ends(column, run)[1] else ""
        return self.e.finding(self.rows[run[0]], self.e.names[column], "stale", why)

    def is_shard(self, column: int, run: Run, runs: int) -> bool:
        """Whether this module is frozen only in this run, and a stale tensor has the same run: an old shard."""
        return runs == 1 and all(self.ends(column, run)) and run in self.stale_runs

    @cached_property
    def stale_runs(self) -> set[Run]:
        """Return the runs in which a tensor alone is unchanged although it moved before and after."""
        found: set[Run] = set()
        for column in np.flatnonzero(self.unchanged.any(axis=0) & self.moved.any(axis=0)).tolist():
            whole = self.runs(column, self.unchanged)
            alone = [run for run in whole if not self.together[run[0] : run[1], column].any()]
            found |= {run for run in alone if self.surely(column, run) and all(self.ends(column, run))}
        return found

    def steps(self, run: Run) -> str:
        first, last = self.rows[run[0]] - 1, self.rows[run[1] - 1]
        return f"{self.e.sampled[first].step} to {self.e.sampled[last].step}"


def _between(run: Run, parts: list[Run]) -> list[Run]:
    """Return the gaps of a run that the parts do not cover."""
    edges = [run[0], *(edge for part in parts for edge in part), run[1]]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def _modules(e: StepTable) -> list[list[int]]:
    """Return the columns of modules, other than layers, that training may freeze as a whole.

    These are parts of a layer with at least two matrices (attention, feed-forward, an expert) and, outside of
    layers, modules that have tensors of their own.
    """
    below: dict[str, list[int]] = {}
    for i, name in enumerate(e.names):
        for dot in re.finditer(r"[./]", name):
            below.setdefault(name[: dot.start()], []).append(i)
    found: set[tuple[int, ...]] = set()
    for prefix, columns in below.items():
        layers = {e.readings[e.names[i]].layer_name for i in columns}
        matrices = sum(len(e.index[e.names[i]].shape) > 1 for i in columns)
        direct = any(not re.search(r"[./]", e.names[i][len(prefix) + 1 :]) for i in columns)
        if len(layers) == 1 and (direct if None in layers else matrices > 1):
            found.add(tuple(columns))
    return [list(columns) for columns in sorted(found)]


def _same_in_every_layer(e: StepTable) -> list[list[int]]:
    """Return groups of columns whose tensor names differ only in the layer number."""
    found: dict[tuple[str, str], list[int]] = {}
    for i, name in enumerate(e.names):
        reading = e.readings[name]
        if reading.layer is not None:
            key = reading.stack, re.sub(rf"(?<!\d)0*{reading.layer}(?!\d)", "*", name, count=1)
            found.setdefault(key, []).append(i)
    return [columns for columns in found.values() if len(columns) > 1]


def _never_moved(e: StepTable, i: int, buffers: Mapping[str, str]) -> Finding:
    name = e.names[i]
    rows = [row for row, sample in enumerate(e.sampled) if name in sample.index]
    row = rows[1] if len(rows) > 1 else rows[0]
    if name in buffers:
        return e.finding(row, name, "buffer", _buffer(buffers[name], name, "never changes"))
    why = f"never changes, {e.step(rows[0])} to {e.step(rows[-1])}, while other tensors do"
    match e.pattern[row, i]:
        case "zeros" | "ones" as which:
            return e.finding(row, name, "initial", f"{why}: still all {which}", "remark")
        case "normal" | "uniform" as shape:
            rms = np.sqrt(e.square[row, i] / e.numel[i])
            spread = f"still looks initialized ({shape} distribution, mean 0, rms {rms:.3g})"
            return e.finding(row, name, "initial", f"{why}: {spread}", "remark")
    return e.finding(row, name, "frozen", why, "remark")


def _buffer(what: str, name: str, does: str) -> str:
    return f"{does} and looks like a buffer ({what}); exclude it with --exclude '{re.escape(name)}'"
