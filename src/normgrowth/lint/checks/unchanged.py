"""Tensors that did not change while others did: never trained, frozen for a while, or saved from an old shard.

Training that cycles through layers (LISA, block-coordinate descent), gradual unfreezing and experts that get no
tokens leave whole modules unchanged, so a tensor is judged together with its module. A layer, an attention or
feed-forward part of it, or the same tensor of every layer that stands still as a whole is a remark. A tensor that
stands still alone while its layer changes is stale: no training does that, unless rounding explains it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from normgrowth.lint.finding import Finding
from normgrowth.lint.step_table import StepTable

Floats = NDArray[np.float64]
Run = tuple[int, int]  # from interval, up to but not including interval

# The chance that no value of a tensor changed, if each does as often as in the intervals around it, is below
# exp(-SURE): in bfloat16 a gain near 1 honestly keeps its value over many small updates.
SURE = 20.0
SHOWN = 3  # intervals that are listed before the rest is counted


def unchanged_tensors(e: StepTable, copies: set[int], buffers: Mapping[str, str]) -> Iterator[Finding]:
    """Stale tensors (faults); frozen and untrained ones (remarks); buffers that count as parameters (faults)."""
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
    """Is it out of the question that none of so many values changes, if each does at this rate?"""
    return numel * -np.log1p(-min(rate, 0.99)) >= SURE


@dataclass(frozen=True)
class _Intervals:
    """Intervals between checkpoints (rows) and tensors (columns): which moved, which stood still, and with what."""

    e: StepTable
    copies: set[int]

    @cached_property
    def rows(self) -> list[int]:
        """The later checkpoint of each usable interval: neither end is a copy, and something moved."""
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
        """Where a tensor stood still and a whole module, or the same tensor of every layer, did so with it."""
        found = np.zeros_like(self.unchanged)
        of_layers = [columns for layer, columns in self.layers.items() if layer is not None]
        for columns in (*of_layers, *_modules(self.e)):
            found[:, columns] |= self.unchanged[:, columns] & self.whole(columns)[:, None]
        # Of the same tensor in every layer, a layer that stands still as a whole proves nothing.
        resting = {layer: self.whole(columns) for layer, columns in self.layers.items()}
        for columns in _same_in_every_layer(self.e):
            own = [self.e.readings[self.e.names[i]].layer_name for i in columns]
            at_work = ~np.stack([resting[layer] for layer in own], axis=1)
            several = self.whole(columns) & (at_work.sum(axis=1) > 1)
            found[:, columns] |= self.unchanged[:, columns] & at_work & several[:, None]
        return found

    def whole(self, columns: list[int]) -> NDArray[np.bool_]:
        """Intervals in which none of these moved, and not by rounding alone."""
        return np.any(self.sure[:, columns], axis=1) & ~np.any(self.moved[:, columns], axis=1)

    @cached_property
    def sure(self) -> NDArray[np.bool_]:
        """Where a tensor stood still and rounding alone does not explain it."""
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
        """Intervals in a row for which it holds; those in which the tensor has no pair are passed over."""
        own = np.flatnonzero(self.unchanged[:, column] | self.moved[:, column]).tolist()
        found: list[Run] = []
        for holds, run in groupby(own, key=lambda k: bool(where[k, column])):
            if holds:
                at = list(run)
                found.append((at[0], at[-1] + 1))
        return found

    def sides(self, column: int, run: Run) -> list[int]:
        """The nearest intervals before and after in which the tensor moved."""
        moved = np.flatnonzero(self.moved[:, column])
        return [*moved[moved < run[0]][-1:].tolist(), *moved[moved >= run[1]][:1].tolist()]

    def surely(self, column: int, run: Run) -> bool:
        """Rounding alone would not have kept it still."""
        sides = self.sides(column, run)
        pace = min(self.pace(column, run[0], side) for side in sides)
        changed = self.e.changed[self.rows]
        return sure_to_change(
            self.e.numel[column], min(changed[side, column] for side in sides) * min(1.0, pace)
        )

    def pace(self, column: int, here: int, beside: int) -> float:
        """How far its layer moved in an interval, as a part of how far it did in another.

        If nothing of its layer moved in both, how far all other tensors did; 1 if there are none.
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
        """Whether the tensor moved before, and after."""
        first = self.rows[run[0]]
        # Between copies no interval shows the time before, but the values do.
        earlier = [row for row in range(first) if row not in self.copies and self.e.square[row, column] > 0]
        before = self.moved[: run[0], column].any() or len(set(self.e.square[earlier, column])) > 1
        return bool(before), bool(self.moved[run[1] :, column].any())

    def alone(self, column: int, run: Run, part: Run) -> Finding:
        """A run of which in some part the tensor stood still alone."""
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
        """Part of another layer stood still alone at the same steps, and this module only then: an old shard."""
        return runs == 1 and all(self.ends(column, run)) and run in self.stale_runs

    @cached_property
    def stale_runs(self) -> set[Run]:
        """The runs in which a tensor stood still alone, between moves."""
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
    """What is left of a run between some parts of it."""
    edges = [run[0], *(edge for part in parts for edge in part), run[1]]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def _modules(e: StepTable) -> list[list[int]]:
    """Columns of modules that training may well freeze as a whole, besides layers.

    A part of a layer with two matrices or more (attention, feed-forward, an expert); outside of layers the
    module that a tensor is a direct part of.
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
    """Columns of tensors that have one name but for the number of the layer."""
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
