"""Growth laws in the terminal: all laws of one series, or the best law of each of several series."""

from collections.abc import Callable
from math import isfinite, isnan, nan
from typing import TYPE_CHECKING

from normgrowth.fit.points import points
from normgrowth.fit.result import Fits, LawFit, SeriesFit
from normgrowth.report.numbers import number
from normgrowth.report.sentences.fits import (
    PAPER_LAW,
    best_law,
    best_law_counts,
    estimate,
    law_notes,
    r2,
    share,
    verdict,
)
from normgrowth.report.terminal.console import Cells, say, say_counted, say_most_important, say_problems
from normgrowth.report.terminal.console import show as show_table

if TYPE_CHECKING:
    from rich.console import Console


def show(fits: Fits, console: "Console", *, full: bool = False) -> None:
    """Print a row for each law of one series, or for each of several series. full: print every law of each series."""
    if full and len(fits.series) > 1:
        for name in fits.series:
            show(fits.select(name), console)
        return
    whole, fits = fits, fits.leading
    remarks = [f"note: {note}" for note in fits.notes]
    if len(fits.series) == 1:
        fit = fits.only
        title = ", ".join(part for part in (fits.source, fit.name) if part)
        say(console, f"{f'{title}: ' if title else ''}{points(fit.points)}", "bold")
        say_counted(console, fits.parameters)
        more = [] if whole is fits else [f"Norm of the model: {verdict(whole.only)[0]}"]
        _one(fit, fits.confidence, [*more, *remarks], console)
    else:
        say(console, f"{fits.source}: {len(fits.series)} series", "bold")
        say_counted(console, fits.parameters)
        _several(list(fits.series.values()), remarks, console)
    say_problems(console, fits)


def _one(fit: SeriesFit, confidence: float, remarks: list[str], console: "Console") -> None:
    """A row for each law, then the verdict."""
    laws = list(fit.values())
    columns = [
        Cells("law", [law.law for law in laws], right=False),
        Cells("formula", [law.formula for law in laws], 4, right=False),
        Cells("r²", [r2(law.r2) for law in laws]),
        Cells("held-out\nerror", [share(law.held_out_error) for law in laws], 2),
        Cells("AICc", [_tenth(law.aicc) for law in laws], 3),
        Cells("ΔAICc if\nindependent", [_tenth(law.delta_aicc) for law in laws], 1),
        Cells("ΔAICc", [_tenth(law.delta_effective) for law in laws]),
        Cells("weight", [f"{law.weight:.3f}" if isfinite(law.aicc) else "-" for law in laws]),
        Cells(f"parameters [{100 * confidence:g}%]", [_params(law) for law in laws], right=False),
    ]
    show_table(console, columns)
    best, *evidence = verdict(fit)
    of_points, of_laws = ([f"note: {note}" for note in found] for found in (fit.notes, law_notes(fit)))
    say_most_important(console, [best, *remarks, *of_points, *evidence, *of_laws])


def _several(fits: list[SeriesFit], remarks: list[str], console: "Console") -> None:
    """Print a row for each series, with its best law next to the paper's."""

    def column(title: str, law: str | None, key: str, write: Callable[[float], str], rank: int = 0) -> Cells:
        found = [_fitted(fit, law or fit.best_law) for fit in fits]
        return Cells(title, [write(nan if one is None else getattr(one, key)) for one in found], rank)

    def exponent(law: str, rank: int) -> Cells:
        found = [_fitted(fit, law) for fit in fits]
        return Cells(
            f"p of {law}", ["-" if one is None else estimate(one, "p") for one in found], rank, False
        )

    columns = [
        Cells("series", [fit.name for fit in fits], right=False),
        Cells("points", [f"{fit.points:,}" for fit in fits], 3),
        Cells("effective\npoints", [number(fit.effective_points, 2) for fit in fits], 2),
        Cells("best law" if len(fits[0]) > 1 else "law", [best_law(fit) or "-" for fit in fits], right=False),
        column("weight", None, "weight", lambda x: "-" if isnan(x) else f"{x:.2f}"),
        column("r²\nof best", None, "r2", r2),
        column("r²\nof sqrt", PAPER_LAW, "r2", r2),
        column("ΔAICc\nof sqrt", PAPER_LAW, "delta_effective", _tenth, 1),
        column("held-out error\nof sqrt", PAPER_LAW, "held_out_error", share, 4),
        exponent("power", 1),
        exponent("power2", 2),
    ]
    show_table(console, columns)
    texts = []
    if (counts := best_law_counts(fits)) and len(fits[0]) > 1:
        texts.append(f"Best law of {len(fits)} series: {counts}.")
        paper = [law for fit in fits if (law := _fitted(fit, PAPER_LAW)) is not None]
        behind = sum(law.delta_effective > 2 for law in paper)
        if paper:
            texts.append(f"The paper's law is worse by more than 2 in AICc in {behind} series.")
    texts += remarks
    for fit in fits:
        texts += [f"note: {fit.name}: {note}" for note in fit.notes]
        if not fit.best_law:
            reason = next((f"not fitted: {law.reason}" for law in fit.values() if law.reason), "")
            texts.append(f"note: {fit.name}: {reason or verdict(fit)[0]}")
    say_most_important(console, texts)


def _fitted(fit: SeriesFit, law: str | None) -> LawFit | None:
    found = fit.get(law or "")
    return found if found is not None and found.fitted else None


def _tenth(x: float) -> str:
    return f"{x:,.1f}" if isfinite(x) else "-"


def _params(law: LawFit) -> str:
    if not law.fitted:
        return f"not fitted: {law.reason}"
    return "; ".join(f"{name} {estimate(law, name)}" for name in law.params)
