"""Figures of growth laws: measured points with fitted laws, and residuals."""

from typing import TYPE_CHECKING

import numpy as np

from normgrowth.fit.result import Fits, LawFit, SeriesFit
from normgrowth.report.figures.style import (
    BLUE,
    GRAY,
    INK,
    ORANGE,
    drawing,
    label,
    panels,
    step_axis,
    value_axis,
)
from normgrowth.report.sentences.fits import PAPER_LAW, r2

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (BLUE, ORANGE, "#009e73", "#d55e00")
MOST_LAWS = 4  # curves for one series
CURVE = 400  # points per curve


@drawing("Growth laws and measured norms")
def figure_laws(fits: Fits) -> "Figure | None":
    """Measured points with the best law, the paper's law and close rivals; for several series, the best law of each."""
    fits = fits.leading
    drawn = [fit for fit in fits.series.values() if fit.points]
    if not drawn:
        return None
    figure, ax = panels(4.8, 3.2)
    if len(fits.series) == 1:
        _one(ax, drawn[0])
        ax.legend()
    else:
        _several(ax, drawn)
    ax.set_title(label(fits.source, 48), parse_math=False)
    ax.set_ylabel("norm ‖θ‖" if fits.quantity == "norm" else label(fits.quantity))
    _steps(ax, drawn)
    value_axis(ax, zero_below=0.5)
    return figure


@drawing("Residuals of the growth laws")
def figure_residuals(fits: Fits) -> "Figure | None":
    """Measured minus fitted norms, for the main laws of one series or the best law of each of several."""
    fits = fits.leading
    drawn = [fit for fit in fits.series.values() if fit.points and chosen_laws(fit)]
    if not drawn:
        return None
    figure, ax = panels(4.8, 2.9)
    if len(fits.series) == 1:
        for law, color in zip(chosen_laws(drawn[0]), COLORS, strict=False):
            _residuals(ax, drawn[0], law, color, law.law)
        ax.legend()
    else:
        for fit, color in zip(drawn, _shades(len(drawn)), strict=True):
            _residuals(ax, fit, chosen_laws(fit)[0], color, fit.name)
    ax.axhline(0, color=GRAY, linewidth=0.6, zorder=0)
    ax.set_title("residuals of the laws" if len(fits.series) == 1 else "residuals of the best laws")
    ax.set_ylabel("measured − fitted")
    _steps(ax, drawn)
    value_axis(ax)
    return figure


FIGURES = {"laws": figure_laws, "residuals": figure_residuals}


def chosen_laws(fit: SeriesFit) -> list[LawFit]:
    """The laws to draw: the best, the paper's, and those within 2 in AICc."""
    fitted = sorted((law for law in fit.values() if law.fitted), key=lambda law: -law.weight)
    if fit.best_law is None:
        return [fit[PAPER_LAW]] if PAPER_LAW in fit and fit[PAPER_LAW].fitted else fitted[:1]
    others = [law for law in fitted[1:] if law.law == PAPER_LAW or law.delta_effective < 2]
    others.sort(key=lambda law: law.law != PAPER_LAW)
    return [fitted[0], *others][:MOST_LAWS]


def _one(ax: "Axes", fit: SeriesFit) -> None:
    size = 4.0 if fit.points <= 60 else 2.5
    ax.plot(fit.steps, fit.measured, "o", color=INK, markersize=size, markeredgewidth=0, label="measured")
    at = np.linspace(fit.steps[0], fit.steps[-1], CURVE)
    for law, color in zip(chosen_laws(fit), COLORS, strict=False):
        said = f"{law.law}: {law.formula}, r² = {r2(law.r2)}"
        dashes = "-" if law.law == fit.best_law else (0, (4, 2))
        ax.plot(at, law.predict(at), color=color, linewidth=1.4, linestyle=dashes, label=said)


def _several(ax: "Axes", fits: list[SeriesFit]) -> None:
    for fit, color in zip(fits, _shades(len(fits)), strict=True):
        ax.plot(fit.steps, fit.measured, "o", color=color, markersize=2.5, markeredgewidth=0)
        at = np.linspace(fit.steps[0], fit.steps[-1], CURVE)
        for law in chosen_laws(fit)[:1]:
            ax.plot(at, law.predict(at), color=color, linewidth=1.0, label=label(fit.name))
    if len(fits) <= 8:
        ax.legend()


def _residuals(ax: "Axes", fit: SeriesFit, law: LawFit, color: str, name: str) -> None:
    ax.plot(
        fit.steps, fit.residuals(law.law), "o-", color=color, markersize=2.5, linewidth=0.8, label=label(name)
    )


def _shades(count: int) -> list[str]:
    import matplotlib
    from matplotlib.colors import to_hex

    return [to_hex(shade) for shade in matplotlib.colormaps["viridis"](np.linspace(0.9, 0.0, max(count, 2)))][
        :count
    ]


def _steps(ax: "Axes", fits: list[SeriesFit]) -> None:
    ends = [step for fit in fits for step in (fit.steps[0], fit.steps[-1])]
    step_axis(ax, [int(min(ends)), int(max(ends))])
