"""How close networks are to their saturated limit: over training, and by layer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from normgrowth.lab.run import Run
from normgrowth.network.measured import TextInfo
from normgrowth.network.saturation.result import EMBEDDINGS, LayerCurve, Saturation
from normgrowth.report.columns.saturation import columns
from normgrowth.report.page.content import Content, ShownRun
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Section, SummaryRow, few
from normgrowth.report.sentences.saturation import (
    ERRORS,
    EXCESS,
    checked_curves,
    layer_name,
    level_sentences,
    method_name,
    text_sentence,
)
from normgrowth.report.table_columns import Table
from normgrowth.text import visible

LEVEL = ChartAxis("saturation")


def sections(content: Content) -> list[Section]:
    """Saturation over training for series, and by layer for networks measured at one checkpoint."""
    single = _single(content)
    items: list[Chart | Table] = []
    curves, said, texts = [], [], []
    for i, run in enumerate(content.runs):
        steps, values = run.grids.model("saturation")
        if len(steps) < 2:
            continue
        curves.append(run.curve(f"{run.prefix}to itself, saturated", steps, values, dash=0))
        curves += run.curves("saturation_others", f"{run.prefix}to other tokens, saturated", dash=2)
        grid = run.grids.of("layer", "saturation")
        shades = np.linspace(0, 1, max(len(grid.names), 2)).tolist()
        for name, own, shade in zip(grid.names, grid.values.T, shades, strict=False):
            curves.append(run.curve(f"{run.prefix}{name}", grid.steps, own, shade=shade, dash=i, shown=False))
        text = text_sentence(_text(run))
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
        return []
    return [
        Section(
            "saturation",
            "How saturated the networks are",
            texts,
            items,
            [EXCESS, *([ERRORS] if single else [])],
        )
    ]


def rows(content: Content) -> list[SummaryRow]:
    """A row for each network that was measured at one checkpoint, at the first c."""
    found = []
    for result in _single(content):
        curves = checked_curves(result)
        for line in curves:
            if line.c != curves[0].c or line.baseline:
                continue
            others = line.others[line.blocks]
            known = len(others) and np.isfinite(others).all()
            more = f", to other tokens {others.mean():.3f}" if known else ""
            said = f"saturation {line.mean:.3f}{more} ({method_name(line.c)})"
            found.append(SummaryRow(visible(line.run), "saturation", found=said))
    return found


def _single(content: Content) -> list[Saturation]:
    """The results of networks measured at one checkpoint."""
    found = []
    for result in content.results(Saturation):
        for run in result.records.distinct("run"):
            rows = result.records.where(run=run)
            if len(rows.where(level="model").distinct("step")) < 2:
                models = {name: model for name, model in result.models.items() if name == run}
                found.append(replace(result, records=rows, models=models))
    return found


def _sentences(result: Saturation) -> list[str]:
    return [visible(text) for text in level_sentences(checked_curves(result))]


def _text(run: ShownRun) -> TextInfo:
    """The text on which the network was measured."""
    if isinstance(run.result, Saturation):
        known = run.result.models.get(run.grids.run) or next(iter(run.result.models.values()), None)
        return TextInfo() if known is None else known.text
    sizes = {unit: run.grids.model(f"evaluation_{unit}")[1] for unit in ("sentences", "tokens")}
    counts = {unit: int(values[-1]) for unit, values in sizes.items() if len(values)}
    source = run.result.corpus.name if isinstance(run.result, Run) and counts else ""
    return TextInfo(source, sentences=counts.get("sentences"), tokens=counts.get("tokens"))


def _levels(lines: Sequence[LayerCurve], single: Sequence[Saturation]) -> list[Chart | Table]:
    """A chart and a table of all networks, each compared with its exact limit or at the first measured c."""
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
        color, dash = runs.index(line.run), int(line.baseline)
        places = [depth.index(layer) for layer in line.layers]
        curves.append(ChartCurve(name, places, line.values, line.run, color, dash=dash))
        if np.isfinite(line.others).any():
            label, shown = f"{name}, to other tokens", not line.baseline
            curves.append(ChartCurve(label, places, line.others, line.run, color, dash=2, shown=shown))
    ticks = tuple(layer_name(layer) for layer in depth)
    said = [text for result in single for text in _sentences(result)]
    alt = few(said) or "Saturation of each layer."
    x = ChartAxis("layer", ticks=ticks)
    chart = Chart("levels", "Saturation by layer", alt, x, LEVEL, curves)
    return [chart, Table("Saturation by layer", columns(lines))]
