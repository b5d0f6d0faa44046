"""The section of single weights: shares that grew or changed sign, and quantiles of |θ/θ₀|."""

from collections.abc import Sequence

import numpy as np

from normgrowth.report.numbers import number, percent
from normgrowth.report.page.content import ShownRun
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Section, Table, column, words
from normgrowth.report.sentences.trace import role_name, scalars_sentence
from normgrowth.text import visible

QUANTILES = {"50": "median", "05": "5%", "25": "25%", "75": "75%", "95": "95%"}
SHARES = {"share_grown": "grew in magnitude", "share_sign_changed": "changed sign"}


def scalar_sections(runs: Sequence[ShownRun]) -> list[Section]:
    """The section of the runs that compare single weights with the first checkpoint; nothing without such runs."""
    runs = [run for run in runs if len(run.grids.model("share_grown", "first")[0])]
    if not runs:
        return []
    said = [
        f"{visible(run.label)}: {scalars_sentence(run.grids)}"
        if len(runs) > 1
        else scalars_sentence(run.grids)
        for run in runs
    ]
    return [
        Section("scalars", "How single weights grow", said, [_quantiles(runs), _shares(runs), _table(runs)])
    ]


def _quantiles(runs: Sequence[ShownRun]) -> Chart:
    curves = []
    for run in runs:
        for q, name in QUANTILES.items():
            steps, logs = run.grids.model(f"log_ratio_q{q}", "first")
            look = {"dash": 0 if q == "50" else 1, "provenance": run.provenance}
            curves.append(
                ChartCurve(_label(runs, run, name), steps, np.exp(logs), run.label, run.color, **look)
            )
    alt = "Quantiles of the ratios of all single weights to their first values, in magnitude."
    label = "|θ/θ₀| of single weights"
    return Chart("scalar_ratios", "Growth of single weights", alt, STEPS, ChartAxis(label, log=True), curves)


def _shares(runs: Sequence[ShownRun]) -> Chart:
    curves = []
    for run in runs:
        for dash, (quantity, name) in enumerate(SHARES.items()):
            steps, values = run.grids.model(quantity, "first")
            look = {"dash": dash, "provenance": run.provenance}
            curves.append(ChartCurve(_label(runs, run, name), steps, values, run.label, run.color, **look))
    alt = "The share of single weights that are larger in magnitude than at the first checkpoint, or of other sign."
    return Chart("scalar_shares", "Weights that grew or changed sign", alt, STEPS, ChartAxis("share"), curves)


def _label(runs: Sequence[ShownRun], run: ShownRun, name: str) -> str:
    return f"{run.label}: {name}" if len(runs) > 1 else name


def _table(runs: Sequence[ShownRun]) -> Table:
    """A row for each layer, each role, each part and the model."""
    rows = [
        (run, level, name)
        for run in runs
        for level in ("layer", "role", "part", "model")
        for name in run.grids.of(level, "share_grown", "first").names
    ]

    def values(quantity: str) -> list[float]:
        return [
            run.grids.value(level, name, quantity, run.grids.steps[-1], "first") for run, level, name in rows
        ]

    columns = [
        *([words("run", [run.label for run, *_ in rows])] if len(runs) > 1 else []),
        words("level", [level for _, level, _ in rows]),
        words("name", [role_name(name) if level == "role" else name for _, level, name in rows]),
        *(column(name, values(quantity), percent) for quantity, name in SHARES.items()),
        *(
            column(
                f"{name} of |θ/θ₀|",
                np.exp(values(f"log_ratio_q{q}")).tolist(),
                lambda ratio: number(ratio, 3),
            )
            for q, name in sorted(QUANTILES.items())
        ),
    ]
    return Table("Single weights at the last checkpoint", columns)
