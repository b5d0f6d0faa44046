"""Growth laws in the terminal: all laws of one series, or the best law of each of several series."""

from typing import TYPE_CHECKING

from normgrowth.fit.points import points
from normgrowth.fit.result import Fits, SeriesFit
from normgrowth.report.columns.fits import fitted, law_columns, series_columns
from normgrowth.report.sentences.fits import PAPER_LAW, best_law_counts, law_notes, verdict
from normgrowth.report.terminal.console import say, say_counted, say_most_important, say_problems, show_table

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
        of_model = [] if whole is fits else [f"Norm of the model: {verdict(whole.only)[0]}"]
        _one(fit, fits.confidence, remarks, of_model, console)
    else:
        say(console, f"{fits.source}: {len(fits.series)} series", "bold")
        say_counted(console, fits.parameters)
        _several(list(fits.series.values()), remarks, console)
    say_problems(console, fits)


def _one(
    fit: SeriesFit, confidence: float, remarks: list[str], of_model: list[str], console: "Console"
) -> None:
    """A row for each law, then the verdict; of_model: that on the model, if the table has the matrices."""
    show_table(console, law_columns(fit, confidence))
    best, *evidence = verdict(fit)
    of_points, of_laws = ([f"note: {note}" for note in found] for found in (fit.notes, law_notes(fit)))
    say_most_important(console, [best, *remarks, *of_points, *evidence, *of_model, *of_laws])


def _several(fits: list[SeriesFit], remarks: list[str], console: "Console") -> None:
    """Print a row for each series, with its best law next to the paper's."""

    show_table(console, series_columns(fits))
    texts = []
    if (counts := best_law_counts(fits)) and len(fits[0]) > 1:
        texts.append(f"Best law of {len(fits)} series: {counts}.")
        paper = [law for fit in fits if (law := fitted(fit, PAPER_LAW)) is not None]
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
