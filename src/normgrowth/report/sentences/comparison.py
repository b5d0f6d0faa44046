"""What two traces side by side show, in sentences."""

from normgrowth.compare.result import Comparison


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
