"""A training run in the terminal: a progress bar, then a table and sentences."""

import time
from typing import TYPE_CHECKING, Any

from normgrowth.report.grids import Grids
from normgrowth.report.numbers import number, percent
from normgrowth.report.sentences.run import sentences
from normgrowth.report.table_columns import Column, numbers
from normgrowth.report.terminal.console import (
    Progress,
    say,
    say_each,
    say_parameters,
    say_remarks,
    show_table,
    spread,
)

if TYPE_CHECKING:
    from rich.console import Console

    from normgrowth.lab.run import Run

SMOOTH = 0.05  # weight of the last step in the smoothed loss
ROWS = 16  # most rows of the table


class TrainProgress:
    """The label of the progress bar: the smoothed loss, and tokens per second since the start."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._loss: float | None = None
        self._tokens, self._since = 0, 0.0

    def __call__(self, step: int, total: int, facts: dict[str, float]) -> None:
        now = time.monotonic()
        if self._loss is None:
            self._loss, self._since = facts["loss"], now
        else:
            self._loss += SMOOTH * (facts["loss"] - self._loss)
            self._tokens += int(facts["tokens"])
        rate = f", {self._tokens / (now - self._since):,.0f} tokens/s" if self._tokens else ""
        self._bar(step, total, f"step {step:,} of {total:,}, loss {self._loss:.3f}{rate}")


def show(result: "Run", console: "Console") -> None:
    """A row for each evaluation, then sentences on loss, norm and saturation."""
    grids = Grids(result)
    evaluated = grids.model("dev_loss")[0].tolist()
    steps = [evaluated[i] for i in spread(len(evaluated), ROWS)]

    def column(title: str, quantity: str, write: Any, rank: int = 0, scale: float | None = None) -> Column:
        values = [grids.value("model", "model", quantity, step, scale=scale) for step in steps]
        return numbers(title, values, write, rank, missing="")

    columns = [
        Column("step", [f"{step:,}" for step in steps]),
        column("epoch", "epoch", "{:.2f}".format, 4),
        column("train\nloss", "train_loss", "{:.3f}".format, 3),
        column("dev\nloss", "dev_loss", "{:.3f}".format),
        column("perplexity", "perplexity", lambda x: number(x, 4)),
        column("accuracy", "accuracy", percent, 3),
        column("legal", "legal_share", percent, 1),
        column("members", "member_share", percent, 1),
        column("saturation", "saturation", "{:.3f}".format, 1),
        column("to other\ntokens", "saturation_others", "{:.3f}".format, 2),
        column("at\nc = 1000", "saturation", "{:.3f}".format, 4, scale=1000),
    ]
    settings = result.settings
    shape = f"{settings.kind}, {settings.layers} layers of {settings.width}"
    say(console, f"{grids.run}: {shape}, {settings.optimizer} on {result.corpus.name}", "bold")
    say_parameters(console, result.selection, result.counted)
    show_table(console, [column for column in columns if column.known])
    say_each(console, sentences(result))
    say_remarks(console, result)
