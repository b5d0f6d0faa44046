"""The figure of a reproduction: a row per claim, colored by verdict. `reproduce` writes the paper's own figures."""

from typing import TYPE_CHECKING

from normgrowth.paper.reproduction import Reproduction
from normgrowth.report.figures.style import BLUE, GRAY, ORANGE, drawing, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"holds": BLUE, "holds in part": "#8ab4d8", "does not hold": ORANGE}


@drawing("Claims of the paper by verdict")
def figure_verdicts(result: Reproduction) -> "Figure | None":
    from matplotlib.patches import Patch

    if not result.claims:
        return None
    figure, ax = panels(7.2, 0.8 + 0.22 * len(result.claims))
    colors = [COLORS.get(claim.verdict, GRAY) for claim in result.claims]
    ax.barh(range(len(colors)), 1, color=colors)
    ax.set_yticks(range(len(colors)), [f"{claim.id} ({claim.where})" for claim in result.claims])
    ax.set_xticks([])
    ax.invert_yaxis()
    found = dict.fromkeys(claim.verdict for claim in result.claims)
    handles = [Patch(color=COLORS.get(verdict, GRAY), label=verdict) for verdict in found]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


FIGURES = {"verdicts": figure_verdicts}
