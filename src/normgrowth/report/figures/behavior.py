"""Figure of behavior: agreement, accuracy and loss of a language model against c, and in the limit."""

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.network.behavior.result import Behavior, NetworkBehavior
from normgrowth.report.figures.style import BLUE, GRAY, INK, ORANGE, drawing, label, panels
from normgrowth.report.sentences.behavior import by_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = (("agreement", "same top token as soft", BLUE), ("accuracy", "accuracy", ORANGE))
LIMIT = 6.0  # the saturated network is drawn behind a break, at the last c times this factor
WIDE = 50.0  # losses that span more than this factor get a logarithmic axis


@drawing("Predictions as the weights grow")
def predictions(result: Behavior) -> "Figure | None":
    """A row for each model: shares on the left, loss on the right; the last point is the saturated network."""
    runs = by_run(result)
    if not runs:
        return None
    figure, axes = panels(7.2, 0.8 + 2.1 * len(runs), len(runs), 2, squeeze=False, sharex="row")
    for (left, right), (run, networks) in zip(axes, runs.items(), strict=True):
        for quantity, name, color in SHARES:
            _draw(left, networks, quantity, name, color)
        if any(one.legal_share for one in networks):
            _draw(left, networks, "legal_share", "legal", GRAY)
        _draw(right, networks, "loss", "loss", BLUE)
        left.set_title(label(run), parse_math=False)
        left.set_ylim(0, 1.02)
        left.set_ylabel("share of the tokens")
        right.set_ylabel("loss (nats)")
        left.legend(fontsize=7, frameon=True, facecolor="white", edgecolor="none", framealpha=1)
        losses = [one.loss.value for one in networks if one.loss and isfinite(one.loss.value)]
        if losses and min(losses) > 0 and max(losses) > WIDE * min(losses):
            right.set_yscale("log")
        _scale_axis(left, networks, "agreement")
        _scale_axis(right, networks, "loss")
    return figure


def _scale_axis(ax: "Axes", networks: list[NetworkBehavior], quantity: str) -> None:
    """A logarithmic axis of c; a break and a label of its own for the saturated network, if it has the quantity."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    ax.set_xscale("log")
    ax.set_xlabel("scale c of the weights")
    last = max((one.c for one in networks if one.c), default=1.0)
    powers = np.arange(int(np.floor(np.log10(last))) + 1)
    ticks = [10.0**power for power in powers[:: -(-len(powers) // 5)]]
    names = [f"$10^{{{np.log10(tick):.0f}}}$" if tick > 1000 else f"{tick:g}" for tick in ticks]
    saturated = any(one.network == "saturated" and getattr(one, quantity) for one in networks)
    ax.set_xticks(
        [*ticks, *([LIMIT * last] if saturated else [])], [*names, *(["saturated"] if saturated else [])]
    )
    ax.xaxis.set_minor_locator(FixedLocator([]))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0.8, 1.8 * (LIMIT * last if saturated else last))
    if saturated:
        ax.axvline(np.sqrt(LIMIT) * last, color=GRAY, linewidth=0.8, linestyle=(0, (2, 2)))
        marks = {"color": INK, "fontsize": 9, "ha": "center", "va": "center"}
        ax.text(np.sqrt(LIMIT) * last, 0, "//", transform=ax.get_xaxis_transform(), **marks)


def _draw(ax: "Axes", networks: list[NetworkBehavior], quantity: str, name: str, color: str) -> None:
    """A curve over c from 1, the soft network, and points for the saturated network and hard attention."""
    finite = [one for one in networks if one.network in ("soft", "scaled")]
    places = [1.0 if one.c is None else one.c for one in finite]
    _points(ax, places, finite, quantity, color, {"marker": ".", "label": name})
    last = LIMIT * max(places, default=1.0)
    limit = [one for one in networks if one.network == "saturated"]
    _points(ax, [last] * len(limit), limit, quantity, color, {"marker": "s", "linestyle": ""})
    hard = [one for one in networks if one.network == "hard_attention"]
    look = {"marker": "x", "linestyle": "", "label": f"{name}, hard attention"}
    _points(ax, [1.0] * len(hard), hard, quantity, color, look)


def _points(
    ax: "Axes",
    places: list[float],
    networks: list[NetworkBehavior],
    quantity: str,
    color: str,
    look: dict[str, Any],
) -> None:
    known = [
        (place, found)
        for place, one in zip(places, networks, strict=True)
        if (found := getattr(one, quantity))
    ]
    if not known:
        return
    x = [place for place, _ in known]
    values = np.array([[found.value, found.low, found.high] for _, found in known])
    errors = np.nan_to_num(np.abs(values[:, 1:] - values[:, :1])).T
    ax.errorbar(x, values[:, 0], errors, color=color, linewidth=1.0, elinewidth=0.8, markersize=4, **look)


FIGURES = {"predictions": predictions}
