"""Scaling curves: cosine to the saturated network against c, and how the error vanishes (the paper's Figure 4).

Dark lines are networks without biases, red lines networks with biases. A band spans the seeds. Published lines are gray
and labeled as published.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.network.scaling.result import Scaling, ScalingCurves
from normgrowth.report.figures.style import GRAY, INK, Layers, drawing, label, line, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
RED = "#d55e00"
TITLES = {
    "paper_pre_norm": "paper's pre-norm x + LN(f(x))",
    "usual_pre_norm": "usual pre-norm x + f(LN(x))",
    "post_norm": "post-norm LN(x + f(x))",
}


@drawing("Cosine to the saturated network as weights grow")
def curves(result: Scaling, published: Scaling | None = None) -> "Figure":
    """Cosine against c and distance against ‖cθ‖, a column for each kind of network. published: drawn in gray."""
    own = result.curves
    kinds = list(dict.fromkeys(group.kind for group in own))
    figure, axes = panels(1.2 + 2.9 * len(kinds), 4.9, 2, len(kinds), squeeze=False, sharey="row")
    quantity = "cosine_flattened" if published else "cosine_saturated"
    for (top, bottom), kind in zip(axes.T, kinds, strict=True):
        members = [group for group in own if group.kind == kind]
        if len(own) == 1:
            _draw_layers(figure, result, top, bottom)
        for group in members:
            _draw_group(top, group, group.scales, quantity, np.mean)
            _draw_group(bottom, group, group.mean("scaled_norm"), "scaling_error", _geometric)
        for group in published.curves if published else []:
            if group.kind == kind:
                look = {"marker": "o" if group.bias else "s", "markersize": 3.2, "linestyle": ""}
                look |= {"markerfacecolor": "none", "markeredgecolor": GRAY, "markeredgewidth": 0.8}
                name = f"published as {'with' if group.bias else 'without'} biases"
                top.plot(group.scales, group.mean("cosine_flattened"), label=name, zorder=1, **look)
        top.set_title(TITLES.get(kind, label(kind)), parse_math=False)
        top.set_xscale("log")
        top.set_xlabel("scale c of the weights")
        top.axhline(1, color=GRAY, linewidth=0.6, zorder=0)
        bottom.set_xscale("log")
        bottom.set_yscale("log")
        bottom.set_xlabel("norm of the weights ‖cθ‖")
        top.legend(loc="lower right", fontsize=7)
    how = "all tokens as one vector" if published else "mean over tokens"
    axes[0, 0].set_ylabel(f"cosine to the saturated network\n({how})")
    axes[1, 0].set_ylabel("relative error\n‖f(x; cθ)/cᵏ − limit‖")
    return figure


def _draw_group(
    ax: "Axes", group: ScalingCurves, x: Floats, quantity: str, middle: Callable[..., Any]
) -> None:
    values = group.of(quantity)
    color = RED if group.bias else INK
    name = {None: "last state", True: "measured, with biases", False: "measured, without biases"}[group.bias]
    line(ax, x, middle(values, axis=0), color=color, label=name, marker="", zorder=3)
    if len(values) > 1:
        ax.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0, zorder=2)


def _geometric(values: Floats, axis: int) -> Floats:
    with np.errstate(divide="ignore"):
        return np.exp(np.log(values).mean(axis))


def _draw_layers(figure: "Figure", result: Scaling, top: "Axes", bottom: "Axes") -> None:
    layers = Layers(result.matrix("cosine_saturated"))
    for ax, quantity in ((top, "cosine_saturated"), (bottom, "scaling_error")):
        found = result.matrix(quantity)
        x = found.steps if ax is top else result.curves[0].mean("scaled_norm")
        for name in found.names:
            line(ax, x, found.curve(name), color=layers.color(name), linewidth=0.9, marker="")
    layers.key(figure, [top, bottom])


FIGURES = {"curves": curves}
