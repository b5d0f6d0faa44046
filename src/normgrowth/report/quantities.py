"""How the quantities of a trace are shown: declared once for tables, charts and figures."""

from collections.abc import Callable
from dataclasses import dataclass

from normgrowth.report.numbers import cosine, number, percent, small


def rough(value: float) -> str:
    return number(value, 4)


@dataclass(frozen=True)
class Quantity:
    """A quantity, for tables, charts and figures.

    column, rank: its column in tables. chart: the title of its chart on the page; "" if it has none of its own.
    axis: the label of its axis; {before} stands for the earlier weights. log: whether the axis is logarithmic at first.
    zero: what a value of 0 means. between: whether it compares two states of the weights.
    """

    column: str
    write: Callable[[float], str]
    rank: int = 0
    chart: str = ""
    axis: str = ""
    log: bool = False
    zero: str = ""
    between: bool = False


# By quantity, and by quantity and reference. Charts are in this order.
QUANTITIES = {
    "norm": Quantity("norm", number, axis="norm ‖θ‖"),
    "rms": Quantity("rms", rough, 6),
    "largest": Quantity("largest", rough),
    "cosine": Quantity(*("cosine to\nprevious", cosine, 1, "Direction", "cosine to {before}"), between=True),
    "cosine first": Quantity(
        *("cosine\nto first", cosine, 3, "Distance from the start", "cosine to the first checkpoint")
    ),
    "angle": Quantity(*("angle", rough, 3, "Angle", "angle to {before} (rad)"), log=True, between=True),
    "equilibrium_angle": Quantity("equilibrium\nangle", rough, 6),
    "alignment": Quantity(
        *("alignment", small, 2, "Alignment", "alignment cos(δ, θ)"), zero="random steps", between=True
    ),
    "step_size": Quantity(
        *("step size", rough, 4, "Size of the steps", "step size ‖δ‖"), log=True, between=True
    ),
    "relative_step": Quantity(
        *("relative step", rough, 5, "Size of the steps, relative", "‖δ‖ / ‖θ‖"), log=True, between=True
    ),
    "gradient_norm": Quantity("gradient", rough, 4, "Gradients", "gradient norm", log=True),
    "gradient_alignment": Quantity(
        *("gradient\nalignment", small, 2, "Gradient and weights", "cos(gradient, θ)"),
        zero="random gradients",
    ),
    "first_moment_norm": Quantity("first\nmoment", rough, 5, "First moment of Adam", "‖m‖", log=True),
    "second_moment_norm": Quantity("second\nmoment", rough, 5, "Second moment of Adam", "‖√v‖", log=True),
    "moment_ratio": Quantity("moment\nratio", rough, 3, "Ratio of Adam's moments", "‖m‖ / ‖√v‖", log=True),
    "lora_update_norm": Quantity("LoRA\nupdate", rough, 1, "LoRA updates", "‖BA‖ · scale"),
    "total_share_steps": Quantity("growth\nby steps", percent, 1),
}
# Only some traces have them: LoRA updates, the gradient and the state of the optimizer.
OPTIONAL = (
    "lora_update_norm",
    "gradient_alignment",
    "first_moment_norm",
    "second_moment_norm",
    "moment_ratio",
)
# The growth of ‖θ‖² and its two terms, by the suffix of "total_growth".
TERMS = {"": "growth\nof ‖θ‖²", "_steps": "by\nsteps", "_alignment": "by\nalignment"}
# Of single weights, compared with the first checkpoint.
SHARES = {"share_grown": "grew in\nmagnitude", "share_sign_changed": "changed\nsign"}
QUANTILES = {"05": "5%", "25": "25%", "50": "median", "75": "75%", "95": "95%"}
