"""What networks do: how saturated they are, what their heads attend to, how they go to their limit."""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from normgrowth.network.heads.heads import Heads, HeadTable
from normgrowth.network.saturation import EMBEDDINGS, LayerCurve, Saturation
from normgrowth.network.scaling import Scaling
from normgrowth.records import Records
from normgrowth.report.page.pieces import Axis, Chart, Curve, Map, Section, Table, column, words
from normgrowth.report.page.sections.runs import Run
from normgrowth.report.page.sections.trace import STEPS, few
from normgrowth.report.sentences.heads import KINDS, model_sentences, tables
from normgrowth.report.sentences.saturation import (
    EXCESS,
    checked_curves,
    layer_name,
    level_sentences,
    method_name,
    text_sentence,
)
from normgrowth.report.sentences.scaling import sentences as scaling_sentences
from normgrowth.report.wording import number, percent, visible

LOSSES = ("dev_loss", "train_loss")
LEVEL = Axis("saturation")


def learning_section(runs: Sequence[Run]) -> Section | None:
    """Losses over training, of runs that have them."""
    curves = []
    for run in runs:
        for dash, quantity in enumerate(LOSSES):
            steps, values = run.grids.model(quantity)
            if len(steps):
                name = quantity.replace("_", " ")
                label = f"{run.label}: {name}" if len(runs) > 1 else name
                curves.append(Curve(label, steps, values, run.label, run.colour, dash=dash))
    if not curves:
        return None
    ends = [f"{visible(c.label)} from {c.y[0]:.3f} to {c.y[-1]:.3f}." for c in curves]
    chart = Chart("loss", "Loss", few(ends), STEPS, Axis("nats per token"), curves)
    return Section("learning", "What was learned", items=[chart])


def saturation_section(runs: Sequence[Run], single: Sequence[Saturation]) -> Section | None:
    """Over training, where it was measured at several steps; by layer, of networks that were measured once."""
    items: list[Chart | Table] = []
    curves, said, texts = [], [], []
    for i, run in enumerate(runs):
        steps, values = run.grids.model("saturation")
        if len(steps) < 2:
            continue
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        curves.append(Curve(f"{prefix}to itself, saturated", steps, values, run.label, run.colour))
        others, theirs = run.grids.model("saturation_others")
        if len(others):
            label = f"{prefix}to other tokens, saturated"
            curves.append(Curve(label, others, theirs, run.label, run.colour, dash=2))
        grid = run.grids.of("layer", "saturation")
        shades = np.linspace(0, 1, max(len(grid.names), 2))
        for name, own, shade in zip(grid.names, grid.values.T, shades, strict=False):
            look = {"shade": float(shade), "dash": i, "shown": False}
            curves.append(Curve(f"{prefix}{name}", grid.steps, own, run.label, run.colour, **look))
        models = Saturation.from_records(run.records).models.values()
        text = next((text_sentence(model.text) for model in models), "")
        each = f", each {text}" if text else ""
        texts.append(f"{visible(run.label)}: saturation at {len(steps)} steps{each}.")
        said.append(f"{visible(run.label)}: from {values[0]:.3f} to {values[-1]:.3f}, mean over blocks.")
    if curves:
        items.append(Chart("saturation-steps", "Saturation during training", few(said), STEPS, LEVEL, curves))
    if single:
        items += _levels([line for result in single for line in checked_curves(result)], single)
        for result in single:
            for run, model in result.models.items():
                if text := text_sentence(model.text):
                    texts.append(f"{visible(run)}: {text}.")
    if not items:
        return None
    return Section("saturation", "How saturated the networks are", texts, items, [EXCESS])


def saturation_sentences(result: Saturation) -> list[str]:
    return [visible(text) for text in level_sentences(checked_curves(result))]


def _levels(lines: Sequence[LayerCurve], single: Sequence[Saturation]) -> list[Chart | Table]:
    """All networks over each other; of each the exact limit, or the scale that it was measured at."""
    last = max((layer for line in lines for layer in line.layers), default=None)
    if last is None:
        return []
    depth = range(EMBEDDINGS, last + 1)
    runs = list(dict.fromkeys(line.run for line in lines))
    first = {line.run: line.c for line in reversed(lines)}
    curves = []
    for line in lines:
        if line.c != first[line.run]:
            continue
        name = f"{line.run}, random" if line.baseline else line.run
        colour, dash = runs.index(line.run), int(line.baseline)
        places = [depth.index(layer) for layer in line.layers]
        curves.append(Curve(name, places, line.values, line.run, colour, dash=dash))
        if np.isfinite(line.others).any():
            label, shown = f"{name}, to other tokens", not line.baseline
            curves.append(Curve(label, places, line.others, line.run, colour, dash=2, shown=shown))
    ticks = tuple(layer_name(layer) for layer in depth)
    said = [text for result in single for text in saturation_sentences(result)]
    alt = few(said) or "Saturation of each layer."
    x = Axis("layer", ticks=ticks)
    columns = [words("layer", ticks)]
    for line in lines:
        at = dict(zip(line.layers, line.values, strict=True))
        method = method_name(line.c)
        title = f"{line.run}, {method}{', random baseline' if line.baseline else ''}"
        columns.append(column(title, [float(at.get(layer, np.nan)) for layer in depth], lambda x: f"{x:.3f}"))
    chart = Chart("levels", "Saturation by layer", alt, x, LEVEL, curves)
    return [chart, Table("Saturation by layer", columns)]


def heads_section(found: Sequence[Records]) -> Section | None:
    items: list[Chart | Map | Table] = []
    said: list[str] = []
    results = [Heads.from_records(records) for records in found]
    for place, (result, heads) in enumerate((one, table) for one in results for table in tables(one)):
        said += [f"{visible(heads.run)}: {text}" for text in model_sentences(heads, result.tolerance)]
        for kinds, which in ((heads.kinds, "as it is"), (heads.saturated_kinds, "saturated")):
            if any(kinds):
                items.append(_atlas(heads, kinds, which, place))
        items.append(_head_table(heads))
    return Section("heads", "What the heads do", said, items) if items else None


def heads_sentences(records: Records) -> list[str]:
    """How many of which kind."""
    result = Heads.from_records(records)
    found = [(one, model_sentences(one, result.tolerance)) for one in tables(result)]
    return [f"{visible(one.run)}: {text}" for one, texts in found for text in texts[:1]]


def _atlas(heads: HeadTable, kinds: Sequence[str], which: str, place: int) -> Map:
    wide = max(heads.layers.count(layer) for layer in set(heads.layers))
    values = np.full((wide, len(heads.depth)), np.nan)
    texts = [[""] * len(heads.depth) for _ in range(wide)]
    seen = dict.fromkeys(heads.depth, 0)
    for name, layer, kind in zip(heads.names, heads.layers, kinds, strict=True):
        if layer is None:
            continue
        x, y = seen[layer], heads.depth.index(layer)
        seen[layer] += 1
        if kind not in KINDS:
            continue
        values[x, y] = KINDS.index(kind)
        texts[x][y] = f"{name}: {kind}"
    counts = ", ".join(f"{list(kinds).count(kind)} {kind}" for kind in KINDS if kind in kinds)
    x, y = Axis("head", ticks=tuple(map(str, range(wide)))), Axis("layer", ticks=tuple(map(str, heads.depth)))
    title = f"Heads of {heads.run}, {which}"
    slug = "atlas" if which == "as it is" else "atlas-saturated"
    alt = f"Heads by kind: {counts}."
    return Map(f"{slug}-{place}", title, alt, x, y, values, texts, kinds=KINDS)


def _head_table(heads: HeadTable) -> Table:
    method = heads.form[1]
    columns = [words("head", heads.names)]
    if any(heads.kinds):
        columns.append(words("kind", heads.kinds))
    if any(heads.saturated_kinds):
        columns.append(words("saturated", heads.saturated_kinds))
    for title, quantity, write in (
        ("attended, saturated", f"attended{method}", lambda x: number(x, 3)),
        ("of the visible", f"attended_share{method}", percent),
        ("entropy of log n", "entropy_share", percent),
        ("on the first", "first_share", percent),
        ("on the previous", "previous_share", percent),
        ("largest weight", "largest_share", percent),
        ("distance", "distance", lambda x: number(x, 3)),
    ):
        values = [float(value) for value in heads.of(quantity)]
        if any(map(isfinite, values)):
            columns.append(column(title, values, write))
    return Table(f"Heads of {heads.run}", columns)


def scaling_section(found: Sequence[Records]) -> Section | None:
    items: list[Chart] = []
    said: list[str] = []
    for place, records in enumerate(found):
        result = Scaling.from_records(records)
        groups = result.curves
        said += scaling_sentences(result)
        x = Axis("scale c of the weights", log=True)
        for quantity, title, label, log in (
            ("cosine_saturated", "Cosine to the saturated network", "cosine", False),
            ("scaling_error", "Distance to the saturated network", "relative error", True),
        ):
            curves = [
                Curve(group.run, group.scales, group.mean(quantity), group.run, i % 6, dash=i // 6)
                for i, group in enumerate(groups)
                if quantity in group.values
            ]
            if curves:
                alt = f"{title} as all weights grow, {len(curves)} networks."
                items.append(Chart(f"{quantity}-{place}", title, alt, x, Axis(label, log=log), curves))
    return Section("scaling", "On the way to the limit", said, items) if items else None
