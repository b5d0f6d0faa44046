"""The table of attention heads: a row for each layer."""

from collections import Counter
from collections.abc import Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from normgrowth.network.heads.result import Heads, HeadTable
from normgrowth.report.numbers import percent
from normgrowth.report.sentences.heads import KINDS, factor, few, model_sentences, tables
from normgrowth.report.sentences.saturation import text_sentence
from normgrowth.report.table_columns import Column, words
from normgrowth.report.terminal.console import say, say_remarks, show_table

if TYPE_CHECKING:
    from rich.console import Console


def show(result: Heads, console: "Console") -> None:
    """A table for each model, with a row for each layer and one for the model, then sentences."""
    for heads in tables(result):
        known = result.models.get(heads.run)
        said = [f"{len(heads.names)} heads", text_sentence(known.model.text) if known else ""]
        say(console, f"{heads.run}: {', '.join(filter(None, said))}", "bold")
        show_table(console, _columns(heads, result.window), last_bold=True)
        for sentence in model_sentences(heads, result.tolerance):
            say(console, sentence)
    say_remarks(console, result)


def _columns(heads: HeadTable, window: int | None) -> list[Column]:
    rows = [*(heads.by_layer.get(layer, {}) for layer in heads.depth), heads.model]

    def column(title: str, name: str, write: Any, rank: int) -> Column:
        return Column(title, [write(row.get(name, nan)) for row in rows], rank=rank)

    columns = [words("layer", [*map(str, heads.depth), "all"])]
    for kind in KINDS if any(heads.kinds) else ():
        columns.append(Column(_broken(kind), _counts(heads, heads.kinds, kind)))
    columns += [
        column("attended\nin limit", "attended", few, 1),
        column("of the\nvisible", "attended_share", percent, 2),
        column("entropy\n/ log n", "entropy_share", percent, 3),
        column("effective\ne^H", "effective", few, 6),
        column("first\ntoken", "first_share", percent, 4),
        column("previous\ntoken", "previous_share", percent, 5),
        column("distance", "distance", few, 7),
        column("distance\nin limit", "attended_distance", few, 5),
        column("largest\nlogit", "largest_logit", few, 8),
        column("gap", "gap", few, 8),
        column("scale to\nbe hard", "hard_scale", factor, 5),
        column("change when\nsaturated", "saturated_distance", _share, 4),
    ]
    if "learned_sink_share" in heads.model:
        columns.append(column("on learned\nsink", "learned_sink_share", percent, 4))
    if heads.form == "attended_window":
        columns.append(column(f"attended in\nwindows of {window}", "attended_window", few, 3))
    return columns


def _counts(heads: HeadTable, kinds: Sequence[str], kind: str) -> list[str]:
    by_layer = Counter(layer for layer, own in zip(heads.layers, kinds, strict=True) if own == kind)
    return [*(str(by_layer[layer] or "·") for layer in heads.depth), str(sum(by_layer.values()))]


def _broken(kind: str) -> str:
    return kind.replace("-", "-\n", 1).replace(" ", "\n", 1)


def _share(x: float) -> str:
    return f"{x:.3f}" if isfinite(x) else "-"
