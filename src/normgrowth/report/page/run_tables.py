"""Tables of runs: layers, growth laws, tensors; and which parameters their norms count."""

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

import numpy as np

from normgrowth.fit.result import LawFit, SeriesFit
from normgrowth.records import Matrix
from normgrowth.report.numbers import cosine, number, percent, signed, small, times
from normgrowth.report.page.content import ShownRun
from normgrowth.report.page.pieces import Column, Table, column, words
from normgrowth.report.sentences.fits import PAPER_LAW, best_law
from normgrowth.report.sentences.trace import role_name
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
    rows = [(run, *thing) for run in runs for thing in run.grids.things()]

    def of(title: str, quantity: str, write: Any, at: int = -1, reference: str | None = None) -> Column:
        values = [
            run.grids.value(level, name, quantity, run.grids.steps[at], reference)
            if at == 0 or len(run.grids.steps) > 1
            else nan
            for run, level, name in rows
        ]
        return column(title, values, write)

    mixed = (LAYER_MATRICES,) if len(shown) > 1 else ()  # levels whose rows say what they are of
    factors = [run.grids.factor(level, name, run.grids.steps[-1]) for run, level, name in rows]
    grown = any(len(run.grids.steps) > 1 for run in runs)
    if all(run.grids.additive_terms() for run in runs):
        growth = [of("growth by steps", "total_share_steps", percent)]
    else:
        terms = {"growth of ‖θ‖²": "", "growth by steps": "_steps", "growth by alignment": "_alignment"}
        growth = [of(title, f"total_growth{term}", signed) for title, term in terms.items()]
    columns = [
        *([words("run", [run.label for run, _, _ in rows])] if len(runs) > 1 else []),
        words("layer", [f"{name}{' (matrices)' if level in mixed else ''}" for _, level, name in rows]),
        of("norm at first", "norm", number, 0),
        of("norm at last", "norm", number),
        *([column("factor", factors, times)] if grown else []),
        of("step size", "step_size", number),
        of("relative step", "relative_step", number),
        of("cosine to previous", "cosine", cosine),
        of("cosine to first", "cosine", cosine, reference="first"),
        of("alignment", "alignment", small),
        *growth,
        of("rms at first", "rms", number, 0),
        of("rms at last", "rms", number),
        of("largest at last", "largest", number),
    ]
    title = f"Layers{shown.pop() if len(shown) == 1 else ''}"
    return Table(title, [one for one in columns if one.values is None or any(map(isfinite, one.values))])


def law_table(rows: Sequence[tuple[str, str, SeriesFit]], title: str = "Growth laws") -> Table | None:
    """A row for each series with its best law. rows: (label of the run, name of the series, its laws)."""
    if not rows:
        return None

    def of(title: str, law: str, key: str, write: Any) -> Column:
        """A column with values of the best law, or of the named law."""
        found: list[LawFit | None] = [fit.get(law or fit.best_law or "") for _, _, fit in rows]
        return column(title, [getattr(one, key) if one and one.fitted else nan for one in found], write)

    columns = [
        *([words("run", [label for label, _, _ in rows])] if len({row[0] for row in rows}) > 1 else []),
        words("series", [series for _, series, _ in rows]),
        column("points", [float(fit.points) for _, _, fit in rows], lambda x: f"{x:,.0f}"),
        column("effective points", [fit.effective_points for _, _, fit in rows], lambda x: number(x, 2)),
        words("best law" if len(rows[0][2]) > 1 else "law", [best_law(fit) or "-" for _, _, fit in rows]),
        of("weight", "", "weight", lambda x: f"{x:.2f}"),
        of("r²", "", "r2", lambda x: f"{x:.4f}"),
        of("r² of √t", PAPER_LAW, "r2", lambda x: f"{x:.4f}"),
        of("ΔAICc of √t", PAPER_LAW, "delta_effective", lambda x: f"{x:,.1f}"),
    ]
    return Table(title, columns)


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
        column("norm at first", [float(grid.values[0, i]) for i in order], number),
        column("norm at last", [float(grid.values[-1, i]) for i in order], number),
        column("factor", [float(factor[i]) for i in order], times),
    ]
    left = len(grid.names) - len(order)
    rest = f" (without {left:,} tensors that changed less)" if left else ""
    return Table(f"Tensors{f' of {run.label}' if runs > 1 else ''}{rest}", columns)
