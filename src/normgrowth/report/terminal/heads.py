"""What heads do: a table by layer and sentences. `head_figures` draws them.

Everything comes from records: the kinds of heads and the patterns of a sentence lie in `made_by`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.report.terminal.console import Cells, new_console, say, say_remarks, show
from normgrowth.report.wording import measured_with, number, percent

if TYPE_CHECKING:
    from rich.console import Console

Floats = NDArray[np.float64]
KINDS = ("argmax-like", "previous-token", "sink", "mean-like", "in between")
# kind -> what makes it clear
CLEAREST = {
    "argmax-like": "largest_share",
    "previous-token": "previous_share",
    "sink": "first_share",
    "mean-like": "entropy_share",
}
MOST_SHOWN = 4  # heads beside each other


@dataclass(frozen=True)
class Heads:
    """The heads of one model at its last step: of each, its layer, its quantities, its kinds."""

    run: str
    step: int
    names: list[str]
    layers: list[int | None]
    values: dict[str, Floats]  # quantity -> (heads,)
    by_layer: dict[int, dict[str, float]]
    model: dict[str, float]
    kinds: list[str]  # "" if not known
    saturated_kinds: list[str]
    made_by: Mapping[str, Any]

    def of(self, quantity: str) -> Floats:
        return self.values.get(quantity, np.full(len(self.names), nan))

    @property
    def depth(self) -> list[int]:
        return sorted({layer for layer in self.layers if layer is not None})

    @property
    def form(self) -> tuple[str, str]:
        """What is closest to the published form of Figure 3: a quantity, and the method's suffix of it."""
        for quantity in ("attended_window", "attended"):
            for name in self.values:
                if name == quantity or name.startswith(f"{quantity}_c"):
                    return quantity, name.removeprefix(quantity)
        return "", ""


def models(records: Records) -> list[Heads]:
    """A model for each run, in the order of the records."""
    found = []
    for run in records.distinct("run"):
        rows = records.where(run=run).table.to_pylist()
        step = max((row["step"] for row in rows if row["level"] == "head"), default=None)
        if step is None:
            continue
        made_by = records.made_by.get("runs", {}).get(run, records.made_by)
        found.append(_heads(run, step, [row for row in rows if row["step"] == step], made_by))
    if not found:
        raise InputError("these records hold no heads; `normgrowth heads MODEL -o DIR` makes them")
    return found


def _heads(run: str, step: int, rows: list[dict[str, Any]], made_by: Mapping[str, Any]) -> Heads:
    own = [row for row in rows if row["level"] == "head"]
    layers = {row["name"]: row["layer"] for row in own}
    place = {name: i for i, name in enumerate(layers)}
    values: dict[str, Floats] = {}
    for row in own:
        values.setdefault(row["quantity"], np.full(len(place), nan))[place[row["name"]]] = row["value"]
    by_layer: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["level"] == "layer":
            by_layer.setdefault(row["layer"], {})[row["quantity"]] = row["value"]
    kinds, saturated = (made_by.get(key, {}) for key in ("kinds", "saturated_kinds"))
    return Heads(
        run,
        step,
        list(layers),
        list(layers.values()),
        values,
        by_layer,
        {row["quantity"]: row["value"] for row in rows if row["level"] == "model"},
        [kinds.get(name, "") for name in layers],
        [saturated.get(name, "") for name in layers],
        made_by,
    )


def print_heads(records: Records, console: "Console | None" = None) -> None:
    """A table for each model: a row for each layer and one for the model; then what it says, in words."""
    console = console or new_console()
    for heads in models(records):
        said = [f"{len(heads.names)} heads", measured_with(heads.model, heads.made_by)]
        say(console, f"{heads.run}: {', '.join(filter(None, said))}", "bold")
        show(console, _columns(heads), last_bold=True)
        for sentence in sentences(heads):
            say(console, sentence)
    say_remarks(console, records)


def _columns(heads: Heads) -> list[Cells]:
    rows = [*(heads.by_layer.get(layer, {}) for layer in heads.depth), heads.model]
    quantity, method = heads.form

    def column(title: str, name: str, write: Any, rank: int) -> Cells:
        return Cells(title, [write(row.get(name, nan)) for row in rows], rank)

    columns = [Cells("layer", [*map(str, heads.depth), "all"], right=False)]
    for kind in KINDS if any(heads.kinds) else ():
        columns.append(Cells(_broken(kind), _counts(heads, heads.kinds, kind)))
    columns += [
        column("attended,\nsaturated", f"attended{method}", _few, 1),
        column("of the\nvisible", f"attended_share{method}", percent, 2),
        column("entropy\nof log n", "entropy_share", percent, 3),
        column("effective\ne^H", "effective", _few, 6),
        column("on the\nfirst", "first_share", percent, 4),
        column("on the\nprevious", "previous_share", percent, 5),
        column("distance", "distance", _few, 7),
        column("largest\nlogit", "largest_logit", _few, 8),
        column("gap", "gap", _few, 8),
        column("hard at\nscores ×", "hard_scale", _factor, 5),
        column("to its\nsaturated self", "saturated_distance", _share, 4),
    ]
    if "learned_sink_share" in heads.model:
        columns.append(column("on the\nlearned sink", "learned_sink_share", percent, 4))
    if quantity == "attended_window":
        window = heads.made_by.get("window")
        columns.append(column(f"attended in\nwindows of {window}", f"attended_window{method}", _few, 3))
    return columns


def sentences(heads: Heads) -> list[str]:
    """What the heads of a model do, in plain words."""
    found, total = [], len(heads.names)
    for kinds, where in (
        (heads.kinds, "in the network itself"),
        (heads.saturated_kinds, "in its saturated self"),
    ):
        if any(kinds):
            counts = Counter(kinds)
            words = [f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]]
            found.append(f"Of {total} heads, {where}: {', '.join(words)}.")
    _, method = heads.form
    attended, spread = heads.of(f"attended{method}"), heads.of(f"attended_spread{method}")
    if np.isfinite(attended).all():
        one, every = int((spread <= 1e-9).sum()), int((spread >= 1 - 1e-9).sum())
        rest = f"; {every} attend to all visible ones" if every else ""
        found.append(
            f"Saturated, {one} of {total} heads attend to exactly one position, always{rest}. "
            f"A query sees {_few(heads.model.get('visible', nan))} positions on average."
        )
    scale = heads.model.get("hard_scale", nan)
    if isfinite(scale):
        left = heads.made_by.get("tolerance", 0.01)
        found.append(
            f"Scores {_factor(scale)} times as large would make the median head hard: for 9 queries of 10, "
            f"{percent(left)} of the weight beside the largest."
        )
    elif scale == inf:
        found.append(
            "No factor on its scores makes the median head hard: more than one query in ten has a tie."
        )
    return found


def clearest(records: Records, run: str, most: int = MOST_SHOWN) -> list[str]:
    """The names of heads worth a look: the clearest of each kind, then those with most weight on one position."""
    heads = next(one for one in models(records) if one.run == run)
    found: list[str] = []
    for kind, quantity in CLEAREST.items():
        own = np.array([name == kind for name in heads.kinds])
        if own.any():
            found.append(heads.names[int(np.where(own, heads.of(quantity), -inf).argmax())])
    rest = np.argsort(-heads.of("largest_share"))
    found += [heads.names[i] for i in rest if heads.names[i] not in found]
    return sorted(found[:most], key=heads.names.index)


def _counts(heads: Heads, kinds: Sequence[str], kind: str) -> list[str]:
    by_layer = Counter(layer for layer, own in zip(heads.layers, kinds, strict=True) if own == kind)
    return [*(str(by_layer[layer] or "·") for layer in heads.depth), str(sum(by_layer.values()))]


def _broken(kind: str) -> str:
    return kind.replace("-", "-\n", 1).replace(" ", "\n", 1)


def _few(x: float) -> str:
    return number(x, 3 if abs(x) < 100 else 4) if isfinite(x) else "-"


def _share(x: float) -> str:
    return f"{x:.3f}" if isfinite(x) else "-"


def _factor(x: float) -> str:
    return "∞" if x == inf else number(x, 3) if x < 100 else number(x, 4)
