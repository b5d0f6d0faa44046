"""What two runs show beside each other, in sentences: where they part, why, and how they grow."""

from normgrowth.compare.result import Comparison
from normgrowth.report.difference_grid import IDENTICAL
from normgrowth.report.sentences.parting_cause import cause, some
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
            f"They have no step in common but the first; a is shown at step {a.step:,}, b at step {b.step:,}."
        )
    return said


def verdict(result: Comparison) -> list[str]:
    """Where the two part and why, or that they do not; then what was compared."""
    aligned = result.alignment
    if not result.judged:
        said = ["They share no step or no tensor, so where they part cannot be said."]
    elif result.parted:
        said = [cause(one) for one in result.diagnoses]
    else:
        said = [_agreement(result)]
    if aligned.renamed:
        pairs = [f"{visible(a)} is {visible(b)} in b" for a, b in aligned.renamed.items()]
        said.append(f"{some(pairs)}.")
    for run, names in (("a", aligned.only_a), ("b", aligned.only_b)):
        if names:
            said.append(f"Only {run} has {some(list(map(visible, names)))}.")
    if result.judged and not result.parted and result.noise.blind_from is not None:
        said.append(
            f"From step {result.noise.blind_from:,} on, rounding may have grown so far that only large faults show; "
            "compare more steps in between, or give a control run."
        )
    return said


def _agreement(result: Comparison) -> str:
    aligned, noise = result.alignment, result.noise
    items = f"{len(aligned.names)} {aligned.level}{'s' if len(aligned.names) > 1 else ''}"
    first, last = aligned.first_step or 0, aligned.last_step or 0
    over = f"steps {first:,} to {last:,}" if last > first else f"step {last:,}"
    if noise.first_step is None or max(noise.first, noise.last) < IDENTICAL:
        return f"No difference: the norms of {items} are identical at {over}."
    growth = f", ×{noise.growth:.2f} a step" if noise.growth else ""
    sized = f"weights differ by {noise.first:.0e} at step {noise.first_step:,}{growth}"
    return f"No difference beyond rounding in {items} at {over} ({sized})."
