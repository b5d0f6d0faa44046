"""Tables of runs: layers, growth laws, tensors; and which parameters their norms count."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from normgrowth.records import Matrix
from normgrowth.report.columns.fits import series_columns
from normgrowth.report.columns.trace import layer_columns
from normgrowth.report.numbers import number, times
from normgrowth.report.page.content import ShownRun
from normgrowth.report.sentences.trace import role_name
from normgrowth.report.table_columns import Table, numbers, words
from normgrowth.text import visible
from normgrowth.trace.result import LAYER_MATRICES

MOST_TENSORS = 1500  # rows and curves of all runs together; the tensors that changed most are kept


def counted_notes(runs: Sequence[ShownRun]) -> list[str]:
    """Which parameters the norms of the runs count: one sentence for all runs that count the same."""
    counting: dict[str, list[str]] = {}
    for run in runs:
        if run.grows() and run.parameters:
            counting.setdefault(run.parameters, []).append(visible(run.label))
    if len(counting) == 1:
        return [f"Parameters: {next(iter(counting))}."]
    return [f"Parameters of {', '.join(labels)}: {parameters}." for parameters, labels in counting.items()]


def changed(grid: Matrix) -> tuple[Any, list[int]]:
    """The growth factor of each tensor, and the order of tensors by |log factor|, largest first."""
    first, last = grid.values[0], grid.values[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(first > 0, last / first, np.nan)
        size = np.nan_to_num(np.abs(np.log(factor)), nan=-1.0, posinf=1e9)
    return factor, np.argsort(-size, kind="stable").tolist()


def layer_table(runs: Sequence[ShownRun]) -> Table:
    """A row for each layer of each run (of its matrices, if these lead), and one for its model."""
    shown = {run.grids.of_layers for run in runs}
    mixed = (LAYER_MATRICES,) if len(shown) > 1 else ()  # levels whose rows say what they are of
    rows = [(run.grids, *thing) for run in runs for thing in run.grids.things()]
    labels = [run.label for run in runs for _ in run.grids.things()]
    named = [words("run", labels)] if len(runs) > 1 else []
    names = words("layer", [f"{name}{' (matrices)' if level in mixed else ''}" for _, level, name in rows])
    title = f"Layers{shown.pop() if len(shown) == 1 else ''}"
    return Table(title, [*named, names, *layer_columns(rows)])


def law_table(runs: Sequence[ShownRun]) -> Table | None:
    """A row for each series of each run, with its best law."""
    fits = [one for run in runs for one in run.fits.values()]
    labels = [run.label for run in runs for _ in run.fits]
    named = [words("run", labels)] if len(set(labels)) > 1 else []
    shown = ", layers by their matrices" if any(run.grids.of_layers for run in runs) else ""
    return Table(f"Growth laws{shown}", [*named, *series_columns(fits)]) if fits else None


def tensor_table(run: ShownRun, runs: int) -> Table | None:
    """A row for each tensor of a run, those that changed most first. runs: how many runs the page has."""
    grid = run.grids.of("tensor", "norm")
    if not grid.names:
        return None
    factor, order = changed(grid)
    order = order[: MOST_TENSORS // runs]
    norms = run.records.where(level="tensor", quantity="norm").table
    roles = dict(zip(norms["name"].to_pylist(), norms["role"].to_pylist(), strict=True))
    columns = [
        words("tensor", [grid.names[i] for i in order]),
        words("role", [role_name(roles.get(grid.names[i]) or "") for i in order]),
        numbers("norm at first", grid.values[0, order].tolist(), number),
        numbers("norm at last", grid.values[-1, order].tolist(), number),
        numbers("factor", factor[order].tolist(), times),
    ]
    left = len(grid.names) - len(order)
    rest = f" (without {left:,} tensors that changed less)" if left else ""
    return Table(f"Tensors{f' of {run.label}' if runs > 1 else ''}{rest}", columns)
