"""What two traces side by side show, in sentences."""

from normgrowth.compare.result import Comparison


def sentences(result: Comparison) -> list[str]:
    """Whether their norms can be compared, and at which steps they are."""
    a, b = result.a, result.b
    said = []
    if not result.comparable:
        said.append("The two count different parameters: their norms are not comparable.")
    if result.matched:
        said.append(f"Both at step {a.step:,}, the last that they share.")
    else:
        last = f"a at its last, {a.step:,}; b at its last, {b.step:,}"
        said.append(f"They share no step after their first: {last}.")
    return said
