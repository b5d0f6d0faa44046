"""Sections of quantities that only some runs have: single weights, and normalized margins of language models."""

from collections.abc import Sequence
from math import nan

import numpy as np

from normgrowth.report.columns.trace import scalar_columns
from normgrowth.report.numbers import number, percent
from normgrowth.report.page.content import ShownRun
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, Section
from normgrowth.report.quantities import QUANTILES, SHARES
from normgrowth.report.sentences.trace import role_name, scalars_sentence
from normgrowth.report.table_columns import Table, numbers, one_line, words
from normgrowth.text import visible

MARGINS = (
    "The margin of a token is its logit minus the largest logit of another token. It is divided by ‖θ‖ᵏ, k the degree "
    "of the logits, so that growing weights alone do not change it. Only models that rank all training tokens first "
    "have a positive least margin."
)


def scalar_sections(runs: Sequence[ShownRun]) -> list[Section]:
    """The section of the runs that compare single weights with the first checkpoint; nothing without such runs."""
    runs = [run for run in runs if len(run.grids.model("share_grown", "first")[0])]
    if not runs:
        return []
    said = [f"{visible(run.prefix)}{scalars_sentence(run.grids)}" for run in runs]
    return [
        Section("scalars", "How single weights grow", said, [_quantiles(runs), _shares(runs), _table(runs)])
    ]


def _quantiles(runs: Sequence[ShownRun]) -> Chart:
    curves = []
    for run in runs:
        for q, name in QUANTILES.items():
            steps, logs = run.grids.model(f"log_ratio_q{q}", "first")
            curves.append(run.curve(f"{run.prefix}{name}", steps, np.exp(logs), dash=int(q != "50")))
    alt = "Quantiles of the ratios of all single weights to their first values, in magnitude."
    label = "|θ/θ₀| of single weights"
    return Chart("scalar_ratios", "Growth of single weights", alt, STEPS, ChartAxis(label, log=True), curves)


def _shares(runs: Sequence[ShownRun]) -> Chart:
    curves = [
        curve
        for run in runs
        for dash, (quantity, name) in enumerate(SHARES.items())
        for curve in run.curves(quantity, f"{run.prefix}{one_line(name)}", reference="first", dash=dash)
    ]
    alt = "The share of single weights that are larger in magnitude than at the first checkpoint, or of other sign."
    return Chart("scalar_shares", "Weights that grew or changed sign", alt, STEPS, ChartAxis("share"), curves)


def _table(runs: Sequence[ShownRun]) -> Table:
    """A row for each layer, each role, each part and the model."""
    rows = [
        (run, level, name)
        for run in runs
        for level in (run.grids.layer_level, "role", "part", "model")
        for name in run.grids.of(level, "share_grown", "first").names
    ]
    columns = [
        *([words("run", [run.label for run, *_ in rows])] if len(runs) > 1 else []),
        words("level", [level for _, level, _ in rows]),
        words("name", [role_name(name) if level == "role" else name for _, level, name in rows]),
        *scalar_columns([(run.grids, level, name) for run, level, name in rows]),
    ]
    return Table("Single weights at the last checkpoint", columns)


def margin_sections(runs: Sequence[ShownRun]) -> list[Section]:
    """A chart and a table of the normalized margins of training tokens; nothing if no run measured them."""
    runs = [run for run in runs if len(run.grids.model("normalized_margin")[0])]
    return (
        [Section("margins", "Normalized margins", [MARGINS], [_margin_chart(runs), _margin_table(runs)])]
        if runs
        else []
    )


def _margin_chart(runs: Sequence[ShownRun]) -> Chart:
    curves = [curve for run in runs for curve in run.curves("normalized_margin", run.label)]
    rising = [visible(run.label) for run in runs if _rises(run)]
    alt = f"The median rises over the later half of training in {len(rising)} of {len(runs)} models."
    return Chart("margins", "Median normalized margin", alt, STEPS, ChartAxis("median margin / ‖θ‖ᵏ"), curves)


def _rises(run: ShownRun) -> bool:
    half, last = _at(run, "normalized_margin")[1:]
    return last > half


def _at(run: ShownRun, quantity: str) -> tuple[float, float, float]:
    """The value at the first checkpoint, at the first one of the later half of training, and at the last one."""
    steps, values = run.grids.model(quantity)
    if not len(steps):
        return nan, nan, nan
    half = min(int(steps.searchsorted(steps[-1] / 2)), max(len(steps) - 2, 0))
    return float(values[0]), float(values[half]), float(values[-1])


def _margin_table(runs: Sequence[ShownRun]) -> Table:
    medians = [_at(run, "normalized_margin") for run in runs]
    last = {
        name: [_at(run, name)[-1] for run in runs]
        for name in ("normalized_margin_least", "share_separated", "logit_degree")
    }
    columns = [
        words("run", [run.label for run in runs]),
        *(
            numbers(f"median {when}", [values[place] for values in medians], _short)
            for place, when in enumerate(("at first", "at half", "at last"))
        ),
        numbers("least at last", last["normalized_margin_least"], _short),
        numbers("training tokens ranked first", last["share_separated"], percent),
        numbers("degree k", last["logit_degree"], lambda k: f"{k:g}"),
    ]
    return Table("Normalized margins of training tokens", columns)


def _short(value: float) -> str:
    return number(value, 3)
