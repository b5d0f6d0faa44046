"""Sentences on growth laws: the best law, its evidence, and the limits of that evidence."""

from math import inf, isfinite, isnan

from normgrowth.fit.result import LawFit, SeriesFit
from normgrowth.report.numbers import number

PAPER_LAW = "sqrt"


def verdict(fit: SeriesFit) -> list[str]:
    """Sentences on the best law, its evidence, and the limits of that evidence."""
    if fit.best_law is None:
        return [f"{_too_few(fit)}."]
    sentences = (_evidence, _independence, _held_out, _exponents)
    return [text for sentence in sentences if (text := sentence(fit))]


def _too_few(fit: SeriesFit) -> str:
    if fit.points < fit.points_needed:
        return f"Too few points to choose a law: {fit.points} of at least {fit.points_needed}"
    if not fit.weighed:
        return (
            f"Too few points to choose a law: of {fit.points}, fewer than {fit.points_needed} are not copies"
        )
    return (
        f"Too few effective points to choose a law: the residuals of the {fit.points} points are autocorrelated "
        f"({fit.autocorrelation:.2f}), so the effective sample size is about {number(fit.effective_points, 2)} of at "
        f"least {fit.points_needed}, which cannot tell growth from noise"
    )


def law_notes(fit: SeriesFit) -> list[str]:
    """The notes on each law."""
    return [f"{law.law}: {note}" for law in fit.values() for note in law.notes]


def _evidence(fit: SeriesFit) -> str:
    best = fit.best
    name = _name(best)
    text = f"{name[0].upper()}{name[1:]} has the most evidence: weight {best.weight:.2f}, r² = {r2(best.r2)}"
    others = [law for law in fit.values() if law is not best and isfinite(law.delta_effective)]
    if not others:
        return f"{text}."
    paper = fit.get(PAPER_LAW)
    rival = paper if paper in others else min(others, key=lambda law: law.delta_effective)
    delta = rival.delta_effective
    against = f"ahead of {_name(rival)} (r² = {r2(rival.r2)}) by ΔAICc = {delta:.1f}, {_strength(delta)}"
    near = [law.law for law in others if law is not rival and law.delta_effective < 2]
    undecided = f" Also within ΔAICc = 2: {', '.join(near)}." if near else ""
    return f"{text}; {against}.{undecided}"


def _independence(fit: SeriesFit) -> str:
    if fit.effective_points > 0.8 * fit.points:
        return ""
    text = (
        f"Residuals are autocorrelated ({fit.autocorrelation:.2f}): "
        f"the effective sample size of {fit.points} points is about {number(fit.effective_points, 2)}."
    )
    preferred = min(fit.values(), key=lambda law: law.delta_aicc)
    paper = fit.get(PAPER_LAW)
    if paper and preferred is not paper and isfinite(paper.delta_aicc):
        text += (
            f" If they were independent, AICc would prefer {preferred.law} to the paper's law "
            f"by {paper.delta_aicc:.1f}."
        )
    return text


def _held_out(fit: SeriesFit) -> str:
    known = [law for law in fit.values() if isfinite(law.held_out_error)]
    if len(known) < 2:
        return ""
    first = min(known, key=lambda law: law.held_out_error)
    compared = {PAPER_LAW: "the paper's law", fit.best.law: fit.best.law}
    rest = [
        f"{name} {share(fit[law].held_out_error)}"
        for law, name in compared.items()
        if law in fit and fit[law] is not first and isfinite(fit[law].held_out_error)
    ]
    others = f", {' and '.join(rest)}" if rest else ""
    best = f"{first.law} {share(first.held_out_error)}"
    return f"Held-out error (fitted to the first half, tested on the second): {best}{others}."


def _exponents(fit: SeriesFit) -> str:
    said = [
        f"p = {estimate(fit[law], 'p')} in {fit[law].formula}"
        for law in ("power", "power2")
        if law in fit and fit[law].fitted
    ]
    return f"Free exponents: {', '.join(said)}." if said else ""


def _name(law: LawFit) -> str:
    return f"the paper's law {law.formula}" if law.law == PAPER_LAW else f"the law {law.law} ({law.formula})"


def _strength(delta: float) -> str:
    if delta < 2:
        return "too little to decide"
    return "some evidence" if delta < 6 else "strong evidence" if delta < 10 else "decisive"


def estimate(law: LawFit, param: str) -> str:
    """The value of a parameter, with its interval: "0.56 [0.52, 0.61]"."""
    low, high = law.interval(param)
    between = "" if isnan(low) else f" [{_end(low)}, {_end(high)}]"
    return f"{number(law.params[param], 4)}{between}"


def _end(x: float) -> str:
    return {inf: "∞", -inf: "−∞"}.get(x) or number(x, 4)


def share(x: float) -> str:
    return f"{number(100 * x, 2)}%" if isfinite(x) else "-"


def r2(x: float) -> str:
    """r² with four decimals, or five if it is close to 1."""
    return "-" if not isfinite(x) else f"{x:.4f}" if x < 0.999 else f"{x:.5f}"
