"""Lint beside a trace: the same judgements on sums that the trace has just measured.

It reads nothing twice. A look is stored with the sums of its step, as columns with an entry for each tensor,
so that a trace that goes on from what it kept judges the whole series.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.lint.finding import Finding
from normgrowth.lint.findings import Evidence
from normgrowth.lint.judge import in_order, judge
from normgrowth.lint.looks import Look, Observer, Seen, no_pair, sampled
from normgrowth.moments.moments import Moments

MOST_TENSORS = 4096  # a look takes a third of a millisecond for each

Columns = Mapping[str, Sequence[Any]]


class Alongside:
    """Looks at the checkpoints of a series in turn, as a trace measures them or finds them measured."""

    def __init__(self, tensors: int) -> None:
        self.tensors = tensors
        self._start(None)

    def _start(self, key: str | None) -> None:
        self.observer = Observer()
        self.looks: list[Look] = []
        self.start = key  # of the first look: the others are kept as differences from it
        self.taken_up = False  # whether the observer has seen the last look's checkpoint

    def sampled(self, numels: list[int]) -> tuple[int, ...] | None:
        """How many values of each tensor it wants to see."""
        return None if self.tensors > MOST_TENSORS else sampled(numels)

    def see(
        self,
        position: int,
        step: int,
        key: str,
        current: Checkpoint,
        previous: Checkpoint | None,
        names: list[str],
        sums: Moments,
        seen: Mapping[int, Seen],
    ) -> Columns:
        """Look at a checkpoint that was just measured; what is returned, `restore` takes.

        key: names this step. previous: None where the checkpoint before is gone. seen: by position, where values
        need not be read again.
        """
        if self.tensors > MOST_TENSORS:
            return {}
        if not self.looks:
            self._start(key)
        elif previous is None or not self._follows(position):
            self.observer.pass_over(self.looks[-1])
        elif self.taken_up:
            self.observer.take_up(self.looks[-1], previous, seen.get(position - 1))
        self.taken_up = False
        look = self.observer.look(position, step, current, names, sums, seen.get(position))
        self.looks.append(look)
        columns: dict[str, Sequence[Any]] = {
            "start": [self.start] * len(names),
            "stored": [look.stored] * len(names),
            "dtype": look.dtypes,
            "changed": look.changed.tolist(),
            "pattern": look.patterns,
            "sketch": _parts(look),
        }
        if len(self.looks) == 1:
            shapes = zip(look.names, look.shapes, strict=True)
            columns["origin"] = [self.observer.origin[item] for item in shapes]
            columns["buffer"] = [self.observer.buffers.get(name) for name in names]
        return columns

    def _follows(self, position: int) -> bool:
        """Whether the last look was at the checkpoint before."""
        return bool(self.looks) and self.looks[-1].position == position - 1

    def continues(self, columns: Columns) -> bool:
        """Whether a stored look goes on from those that are here."""
        return "origin" in columns if not self.looks else bool(columns) and columns["start"][0] == self.start

    def restore(
        self,
        position: int,
        step: int,
        label: str,
        key: str,
        shapes: Mapping[str, tuple[int, ...]],
        sums: Moments,
        columns: Columns,
    ) -> None:
        """Take a look that was stored with the sums of its step."""
        if "origin" in columns:
            self._start(key)
            origin = (np.asarray(values, np.float64) for values in columns["origin"])
            self.observer.origin = dict(zip(shapes.items(), origin, strict=True))
            self.observer.buffers = {
                name: what for name, what in zip(shapes, columns["buffer"], strict=True) if what
            }
        elif not columns or not self.looks or columns["start"][0] != self.start:
            self._start(None)  # measured without lint, or against another first checkpoint
            return
        self.taken_up = True
        sketch = [np.asarray(values, np.float32) for values in columns["sketch"]]
        previous = sums.against.get("previous") if self._follows(position) else None
        changed = columns["changed"] if self._follows(position) else np.nan
        self.looks.append(
            Look(
                position,
                step,
                label,
                columns["stored"][0],
                tuple(shapes),
                {},
                frozenset(),
                tuple(shapes.values()),
                tuple(columns["dtype"]),
                sums.numel,
                sums.square,
                sums.nonfinite,
                previous or no_pair(len(shapes)),
                np.full(len(shapes), changed, np.float64),
                tuple(columns["pattern"]),
                np.concatenate([np.zeros(0, np.float32), *sketch]),
                np.cumsum([len(values) for values in sketch], dtype=np.int64),
            )
        )

    def gather(self, checkpoints: int, notes: list[str]) -> tuple[Finding, ...]:
        """The findings; adds a note if not all checkpoints were checked."""
        unseen = checkpoints - len(self.looks)
        if self.tensors > MOST_TENSORS:
            notes.append(
                f"{self.tensors:,} tensors are too many for integrity checks while tracing; run `normgrowth lint`"
            )
        elif unseen:
            notes.append(
                f"{unseen} of {checkpoints} checkpoints were measured before without integrity checks; "
                "`normgrowth lint` checks all of them"
            )
        return tuple(self._findings())

    def _findings(self) -> list[Finding]:
        if not self.looks:
            return []
        evidence = Evidence(self.looks, self.observer.origin)
        return in_order(judge(evidence, self.observer.buffers, self._same), self.looks)

    def _same(self, i: int, j: int, names: Sequence[str]) -> NDArray[np.bool_]:
        """Equal in the sample, to the bit. Their sums are equal too, or nobody would ask; no file is read again."""
        a, b = (dict(zip(look.names, _parts(look), strict=True)) for look in (self.looks[i], self.looks[j]))
        return np.array([np.array_equal(a[name], b[name]) for name in names], bool)


def _parts(look: Look) -> list[NDArray[np.float32]]:
    return np.split(look.sketch, look.ends[:-1])
