"""What a tracker writes: the log of its run, opened or resumed, with the fields and the layout of its current part."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError, SeriesWarning
from normgrowth.tracking.distributed import is_main, of_main
from normgrowth.tracking.log.step_log import BEFORE_START, StepLog
from normgrowth.tracking.log.step_records import StepLayout, columns_of_run, unpacked_step
from normgrowth.tracking.tracked_parameters import Watched


class Recording:
    """A log with the fields and the layout of its current part.

    fields: of the result, as plain JSON. totals: whether the budget since the start is recorded.
    """

    layout: StepLayout

    def __init__(
        self,
        log: StepLog,
        fields: dict[str, Any],
        *,
        levels: Sequence[str],
        compare_first: bool,
        totals: bool,
        optimizer_state: bool,
    ) -> None:
        self.log, self.fields, self.totals = log, fields, totals
        self._levels, self._optimizer_state = list(levels), optimizer_state
        self._references = ["previous", "first"] if compare_first else ["previous"]

    def begin(self, watched: Watched, step: int) -> None:
        """Start the part of these parameters, for the steps after `step`."""
        self.layout = StepLayout(
            run=self.fields["run"],
            readings=watched.readings,
            numel=watched.numel,
            references=self._references,
            levels=self._levels,
            totals=self.totals,
            of_run=columns_of_run(optimizer_state=self._optimizer_state, lora=bool(watched.adapters)),
            adapters=[one.adapter for one in watched.adapters],
        )
        self.log.begin(self.layout, self.fields, step or BEFORE_START)

    def begin_part(self, step: int) -> None:
        """Continue after this step with other fields or without totals."""
        self.layout = replace(self.layout, totals=self.totals)
        self.log.begin(self.layout, dict(self.fields), step or BEFORE_START)

    def note(self, step: int, text: str, issued: Sequence[tuple[str, str]] = ()) -> None:
        """Record a remark and issue it as a warning. issued: warnings that are not repeated after a resume."""
        self.log.note(step, text, issued)
        warnings.warn(text, SeriesWarning, stacklevel=3)


def open_log(out: str | Path | None, step: int | None, selection: Selection) -> StepLog:
    """The log, opened by rank 0; an error there is raised on every rank."""
    opened: StepLog | None = None
    failed: InputError | None = None
    try:
        opened = StepLog.open(out if is_main() else None, step, asdict(selection))
    except InputError as error:
        failed = error
    problem = str(failed) if failed else None
    problem = of_main(problem) if out is not None else problem
    if failed is not None:
        raise failed
    if opened is None or problem is not None:
        raise InputError(problem or "the folder cannot be opened")
    return opened


def decay_so_far(log: StepLog) -> dict[str, float]:
    """Σηλ of each tensor over the steps before the resume."""
    if log.last_step is None:
        return {}
    layout, rows = log.last_step
    sums = unpacked_step(layout, rows)[1].get("decay_so_far", np.zeros(len(rows)))
    return dict(zip((reading.name for reading in layout.readings), sums.tolist(), strict=True))
