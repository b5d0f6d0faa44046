"""Sentences on a comparison of two runs: where they diverge, why, and at which step their growth is compared."""

from normgrowth.compare.result import Comparison
from normgrowth.report.difference_grid import IDENTICAL
from normgrowth.report.sentences.parting_cause import cause, optimizer_settings, some
from normgrowth.text import visible


def sentences(result: Comparison) -> list[str]:
    """Whether the norms are comparable, and at which steps they are compared."""
    a, b = result.a, result.b
    said = []
    if not result.comparable:
        said.append("The two traces count different parameters, so their norms are not comparable.")
    if result.matched:
        said.append(f"Compared at step {a.step:,}, the last step that both have.")
    else:
        said.append(
            f"The runs share no step after the first; a is shown at step {a.step:,}, b at step {b.step:,}."
        )
    return said


def verdict(result: Comparison) -> list[str]:
    """Where and why the runs diverge, or that they agree; then renamed tensors and tensors of one run only."""
    aligned = result.alignment
    if not result.judged:
        said = ["The runs share no step or no tensor, so they cannot be compared."]
    elif result.parted:
        said = [cause(one, result.partings, result.settings) for one in result.diagnoses]
    else:
        said = [_agreement(result)]
    said += _left_out(result)
    if aligned.renamed:
        pairs = [f"{visible(a)} is called {visible(b)} in b" for a, b in aligned.renamed.items()]
        said.append(f"{some(pairs)}.")
    if result.settings and not any(one.cause == "optimizer" for one in result.diagnoses):
        said.append(optimizer_settings(result.settings))
    if result.control and result.noise.source != "control":
        said.append("The control run is identical to a, so the noise floor follows from the dtypes alone.")
    for run, names in (("a", aligned.only_a), ("b", aligned.only_b)):
        if names:
            said.append(f"Only {run} has {some(list(map(visible, names)))}.")
    if result.judged and not result.parted and result.noise.blind_from is not None:
        said.append(
            f"From step {result.noise.blind_from:,} on, rounding differences may hide all but large faults; "
            "compare more steps in between, or give a control run."
        )
    return said


def _left_out(result: Comparison) -> list[str]:
    """Which parameters were compared, if others were not measured."""
    measured = [
        visible(side.parameters) for side in (result.a, result.b) if side.left_out and side.parameters
    ]
    if not measured or not result.judged:
        return []
    return [
        f"Only some parameters were measured: {' and '.join(dict.fromkeys(measured))}. Differences in the others are "
        'not found; include="all" measures all.'
    ]


def _agreement(result: Comparison) -> str:
    aligned, noise = result.alignment, result.noise
    items = f"{len(aligned.names)} {aligned.level}{'s' if len(aligned.names) > 1 else ''}"
    first, last = aligned.first_step or 0, aligned.last_step or 0
    over = f"steps {first:,} to {last:,}" if last > first else f"step {last:,}"
    if noise.first_step is None or max(noise.first, noise.last) < IDENTICAL:
        return f"No difference: the norms of {items} are identical at {over}."
    growth = f", ×{noise.growth:.2f} per step" if noise.growth else ""
    sized = f"weights differ by {noise.first:.0e} at step {noise.first_step:,}{growth}"
    return f"No difference beyond rounding in {items} at {over} ({sized})."
