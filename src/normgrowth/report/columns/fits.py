"""Growth laws: all laws of one series, or the best law of each of several series."""

from collections.abc import Callable, Sequence
from math import isfinite, nan

from normgrowth.fit.result import LawFit, SeriesFit
from normgrowth.report.numbers import number
from normgrowth.report.sentences.fits import PAPER_LAW, best_law, estimate, r2, share
from normgrowth.report.table_columns import Column, numbers, words


def law_columns(fit: SeriesFit, confidence: float) -> list[Column]:
    """A row for each law of one series."""
    laws = list(fit.values())
    return [
        words("law", [law.law for law in laws]),
        words("formula", [law.formula for law in laws], 4),
        numbers("r²", [law.r2 for law in laws], r2),
        numbers("held-out\nerror", [law.held_out_error for law in laws], share, 2),
        numbers("AICc", [law.aicc for law in laws], _tenth, 3),
        numbers("ΔAICc if\nindependent", [law.delta_aicc for law in laws], _tenth, 1),
        numbers("ΔAICc", [law.delta_effective for law in laws], _tenth),
        numbers("weight", [law.weight if isfinite(law.aicc) else nan for law in laws], "{:.3f}".format),
        words(f"parameters [{100 * confidence:g}%]", [_parameters(law) for law in laws]),
    ]


def series_columns(fits: Sequence[SeriesFit]) -> list[Column]:
    """A row for each series, with its best law next to the paper's."""

    def of(
        title: str,
        law: str | None,
        value: Callable[[LawFit], float],
        write: Callable[[float], str],
        rank: int = 0,
    ) -> Column:
        found = [fitted(fit, law or fit.best_law) for fit in fits]
        return numbers(title, [None if one is None else value(one) for one in found], write, rank)

    def exponent(law: str, rank: int) -> Column:
        found = [fitted(fit, law) for fit in fits]
        cells = ["-" if one is None else estimate(one, "p") for one in found]
        values = [nan if one is None else one.params["p"] for one in found]
        return Column(f"p of {law}", cells, values, rank, right=False)

    return [
        words("series", [fit.name for fit in fits]),
        numbers("points", [fit.points for fit in fits], "{:,.0f}".format, 3),
        numbers("effective\npoints", [fit.effective_points for fit in fits], lambda x: number(x, 2), 2),
        words("best law" if len(fits[0]) > 1 else "law", [best_law(fit) or "-" for fit in fits]),
        of("weight", None, lambda law: law.weight, "{:.2f}".format),
        of("r²\nof best", None, lambda law: law.r2, r2),
        of("r²\nof sqrt", PAPER_LAW, lambda law: law.r2, r2),
        of("ΔAICc\nof sqrt", PAPER_LAW, lambda law: law.delta_effective, _tenth, 1),
        of("held-out error\nof sqrt", PAPER_LAW, lambda law: law.held_out_error, share, 4),
        exponent("power", 1),
        exponent("power2", 2),
    ]


def fitted(fit: SeriesFit, law: str | None) -> LawFit | None:
    found = fit.get(law or "")
    return found if found is not None and found.fitted else None


def _tenth(x: float) -> str:
    return f"{x:,.1f}"


def _parameters(law: LawFit) -> str:
    if not law.fitted:
        return f"not fitted: {law.reason}"
    return "; ".join(f"{name} {estimate(law, name)}" for name in law.params)
