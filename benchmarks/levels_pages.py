"""Make the pictures and tables of docs/saturation.md from the records in docs/records."""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path

from pages import DOCS, fill, picture, table

from normgrowth.network.saturation.result import LayerCurve, Saturation
from normgrowth.network.scaling.result import Scaling
from normgrowth.paper.discrepancies.departures import published_line
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published.figure2 import RUNS
from normgrowth.paper.published.figure2 import figure2 as published_levels
from normgrowth.paper.published.figure4 import figure4 as published_curves
from normgrowth.paper.stages import figure2_forms as forms
from normgrowth.report.figures.saturation import heat_map
from normgrowth.report.sentences.saturation import sentences as saturation_sentences
from normgrowth.report.sentences.scaling import sentences as scaling_sentences
from normgrowth.results import load


def write(folder: Path) -> None:
    """Write the pictures and tables for which there are records."""
    made = {name: make(folder / name) for name, make in SECTIONS.items() if (folder / name).exists()}
    fill(DOCS / "saturation.md", made)


def _saturation(folder: Path) -> Saturation:
    found = load(folder)
    assert isinstance(found, Saturation)
    return found


def span(line: LayerCurve) -> str:
    blocks = line.values[line.blocks]
    return f"{blocks.min():.2f} to {blocks.max():.2f}".replace("-", "−")


def figure2(folder: Path) -> str:
    result, published = _saturation(folder), published_levels()
    picture(result.plot.levels(published=published), "levels_figure2")
    theirs = {line.run.removesuffix(", decoder"): line for line in published.curves if line.baseline}
    rows = [
        "| model | exact limit | c = 1000 | mean | to other tokens, mean | published, c = 1000 | mean |",
        "|---|---|---|---|---|---|---|",
    ]
    own = {(line.run, line.c): line for line in result.curves}
    for run in dict.fromkeys(run for run, _ in own):
        exact, scaled = own[run, inf], own[run, 1000.0]
        beside = theirs[run]
        others = f"{exact.others[1:].mean():.3f}".replace("nan", "not measured")
        cells = (
            run,
            span(exact),
            span(scaled),
            f"{scaled.mean:.3f}",
            others,
            span(beside),
            f"{beside.mean:.3f}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def t5_initialization(folder: Path) -> str:
    found = _saturation(folder).curves
    (theirs,) = (line for line in published_levels().curves if line.run == RUNS["t5-base"] and line.baseline)
    rows = ["| initial weights | layer 0 | layer 5 | layer 11 | mean of blocks |", "|---|---|---|---|---|"]
    for line in found:
        at = dict(zip(line.layers, line.values, strict=True))
        factor = line.run.removeprefix("factor ")
        name = "as transformers draws them" if factor == "1" else f"{factor} times that"
        rows.append(f"| {name} | {at[0]:.2f} | {at[5]:.2f} | {at[11]:.2f} | {line.mean:.2f} |")
    at = dict(zip(theirs.layers, theirs.values, strict=True))
    rows.append(f"| published | {at[0]:.2f} | {at[5]:.2f} | {at[11]:.2f} | {theirs.mean:.2f} |")
    return "\n".join(rows)


def figure2_forms(folder: Path) -> str:
    evidence = Evidence({"figure2_forms": _saturation(folder)})
    known, columns = evidence.figure2_forms, ("first layer", "last layer", "mean")
    lines = {"published": published_line("t5-base"), **{form: known[form] for form in forms.FORMS}}
    rows = [
        [name, *(f"{level:.2f}" for level in (line[0], line[-1], line.mean()))]
        for name, line in lines.items()
    ]
    return table(("random T5-base, c = 1000", *columns), rows)


def minilm(folder: Path) -> str:
    result = _saturation(folder)
    drawn = heat_map(result)
    assert drawn is not None
    picture(drawn, "levels_minilm")
    rows = [
        "| layer | trained, exact | to other tokens | random baseline | to other tokens | trained, c = 1000 |",
        "|---|---|---|---|---|---|",
    ]
    found = {(line.c, line.baseline): line for line in result.curves}
    trained, random = found[inf, False], found[inf, True]
    scaled = found[1000.0, False]
    for i in trained.blocks:
        level = [f"{one.values[i]:.3f} ± {one.errors[i]:.3f}" for one in (trained, random, scaled)]
        other = [f"{one.others[i]:.3f}" for one in (trained, random)]
        cells = (str(trained.layers[i]), level[0], other[0], level[1], other[1], level[2])
        rows.append(f"| {' | '.join(cells)} |".replace("| -", "| −"))
    means = (trained.mean, trained.others[1:].mean(), random.mean, random.others[1:].mean(), scaled.mean)
    rows.append(f"| mean | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return "\n".join(rows)


def figure4(folder: Path) -> str:
    result, published = load(folder), published_curves()
    assert isinstance(result, Scaling)
    picture(result.plot(published=published), "levels_figure4")
    return "\n".join(f"- {sentence}" for sentence in scaling_sentences(result, published))


def training(folder: Path) -> str:
    result = _saturation(folder)
    picture(result.plot.levels(), "levels_training")
    return " ".join(saturation_sentences(result))


def cost(file: Path) -> str:
    found = json.loads(file.read_text(encoding="utf-8"))
    return (
        f"On {found['model']} and {found['sentences']} sentences ({found['tokens']:,} tokens): "
        f"{found['of the passes']:.2f} times the sum of the three passes that it makes, each timed alone; one sentence "
        f"at a time takes {found['one at a time']:.1f} times as long."
    )


SECTIONS: dict[str, Callable[[Path], str]] = {
    "figure2": figure2,
    "t5_initialization": t5_initialization,
    "figure2_forms": figure2_forms,
    "minilm": minilm,
    "figure4": figure4,
    "training": training,
    "levels_cost.json": cost,
}
