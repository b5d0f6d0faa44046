"""The figure of degrees: how fast the output of each part grows with the weights."""

from typing import TYPE_CHECKING

from normgrowth.limit.result import Degrees, ModuleDegree
from normgrowth.report.figures.style import GRAY, INK, drawing, label, panels
from normgrowth.report.sentences.degrees import alike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 48


@drawing("Degree of each part of the model")
def by_module(result: Degrees) -> "Figure | None":
    """A row per module; equal blocks share a row, and the deepest modules are left out if there are too many rows."""
    from matplotlib.ticker import MaxNLocator

    rows = _rows(result)
    if not any(row.degree is not None for _, row in rows):
        return None
    figure, ax = panels(5.6, 0.9 + 0.17 * len(rows))
    exact = [(float(row.degree), y) for y, (_, row) in enumerate(rows) if row.degree is not None]
    lower = [(float(degree), y) for y, (_, row) in enumerate(rows) for degree in row.lower]
    x, y = zip(*exact, strict=True)
    ax.hlines(y, 0, x, color=GRAY, linewidth=0.8)
    ax.plot(x, y, "o", color=INK, markersize=4, label="degree")
    if lower:
        x, y = zip(*lower, strict=True)
        said = "lower parts, dropped in the limit"
        ax.plot(x, y, "o", color=GRAY, markerfacecolor="white", markersize=4, label=said)
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1))  # above the rows, beside the title
    for place, (_, row) in enumerate(rows):
        if row.degree is None:
            ax.text(0, place, " zero", va="center", fontsize=7, color=GRAY)
    names = [label(name or "(the model)") for name, _ in rows]
    ax.set_yticks(range(len(rows)), names, fontsize=7, parse_math=False)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.axvline(0, color=GRAY, linewidth=0.6, zorder=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("degree k: the output grows like $c^k$ with weights c·θ")
    ax.set_title(label(result.model), parse_math=False)
    return figure


def _rows(result: Degrees) -> list[tuple[str, ModuleDegree]]:
    """Rows of all modules, or of those whose names have few enough parts."""
    deepest = max((row.module.count(".") + 1 for row in result.modules), default=1)
    for depth in range(deepest, 0, -1):
        rows = alike(result.select(depth=depth).modules)
        if len(rows) <= MOST_ROWS:
            return rows
    return alike(result.select(depth=1).modules)[:MOST_ROWS]


FIGURES = {"by_module": by_module}
