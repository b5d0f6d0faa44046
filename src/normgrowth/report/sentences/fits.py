"""Sentences on growth laws: the best law or those between which nothing is decided, and the limits of the evidence."""

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite, isnan

from normgrowth.fit.result import UNDECIDED, LawFit, SeriesFit
from normgrowth.report.numbers import number

PAPER_LAW = "sqrt"
STRONG = 6.0  # ΔAICc from which a law is called excluded, if the sample size is measured


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
    ranked = sorted(_weighed(fit), key=lambda law: law.delta_effective)
    if len(ranked) == 1:
        return f"{_capital(_name(ranked[0]))} was fitted alone: r² = {r2(ranked[0].r2)}."
    if fit.undecided:
        near = ", ".join(f"{law} ({fit[law].weight:.2f})" for law in fit.undecided)
        text = f"Undecided between {near}: weights of evidence, ΔAICc of at most {UNDECIDED:g}"
    else:
        text = (
            f"{_capital(_name(fit.best))} has the most evidence: weight {fit.best.weight:.2f}, "
            f"r² = {r2(fit.best.r2)}"
        )
    behind = [law for law in ranked if law.delta_effective > UNDECIDED]
    strong = STRONG if fit.effective_points >= fit.weighed_points else inf
    weaker = _with_deltas([law for law in behind if law.delta_effective <= strong])
    excluded = _with_deltas([law for law in behind if law.delta_effective > strong])
    less = f"; less evidence for {weaker}" if weaker else ""
    return f"{text}{less}{f'; excluded: {excluded}' if excluded else ''}."


def _weighed(fit: SeriesFit) -> list[LawFit]:
    return [law for law in fit.values() if isfinite(law.delta_effective)]


def _with_deltas(laws: list[LawFit]) -> str:
    """The laws with their distance to the best one: "sqrt (ΔAICc 4.2), linear (16.8)"."""
    said = [f"{law.law} ({'' if i else 'ΔAICc '}{law.delta_effective:,.1f})" for i, law in enumerate(laws)]
    return ", ".join(said)


def _independence(fit: SeriesFit) -> str:
    if fit.effective_points > 0.8 * fit.points:
        return ""
    text = (
        f"Residuals are autocorrelated ({fit.autocorrelation:.2f}): "
        f"the effective sample size of {fit.points} points is about {number(fit.effective_points, 2)}."
    )
    if fit.effective_points < fit.weighed_points and len(_weighed(fit)) > 1:
        text += (
            f" The weights use {fit.weighed_points:g}, the smallest value for laws with up to "
            f"{fit.weighed_points - 1:g} parameters: they rank the laws and do not test them."
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
    if not known:
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


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def best_law(fit: SeriesFit) -> str:
    """The best law, or those between which nothing is decided: "undecided: sqrt2, power"; "" if none is chosen."""
    if fit.undecided:
        return f"undecided: {', '.join(fit.undecided)}"
    return fit.best_law or ""


def best_law_with_r2(fit: SeriesFit) -> str:
    """The best law with its r²; without r² if nothing is decided."""
    return f"{fit.best_law}, r² = {r2(fit.best.r2)}" if fit.best_law and not fit.undecided else best_law(fit)


def best_law_counts(fits: Sequence[SeriesFit], most: int | None = None) -> str:
    """How often each law is best: "sqrt2 in 3, power in 1, undecided in 8"."""
    best = Counter(fit.best_law for fit in fits if fit.best_law and not fit.undecided)
    said = [f"{law} in {count}" for law, count in best.most_common(most)]
    undecided = sum(bool(fit.undecided) for fit in fits)
    return ", ".join([*said, *([f"undecided in {undecided}"] if undecided else [])])


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
