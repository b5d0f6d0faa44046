"""The section of normalized margins (section 2.1 of the paper) of language models."""

from collections.abc import Sequence
from math import nan

from normgrowth.report.numbers import number, percent
from normgrowth.report.page.content import ShownRun
from normgrowth.report.page.pieces import STEPS, Chart, ChartAxis, ChartCurve, Section, Table, column, words
from normgrowth.text import visible

SAID = (
    "The margin of a token is its logit minus the largest logit of another token. It is divided by ‖θ‖ᵏ, k the degree "
    "of the logits, so that growing weights alone do not change it. Only models that rank all training tokens first "
    "have a positive least margin."
)


def margin_sections(runs: Sequence[ShownRun]) -> list[Section]:
    """A chart and a table of the normalized margins of training tokens; nothing if no run measured them."""
    runs = [run for run in runs if len(run.grids.model("normalized_margin")[0])]
    return [Section("margins", "Normalized margins", [SAID], [_chart(runs), _table(runs)])] if runs else []


def _chart(runs: Sequence[ShownRun]) -> Chart:
    curves = [
        ChartCurve(
            run.label, *run.grids.model("normalized_margin"), run.label, run.color, provenance=run.provenance
        )
        for run in runs
    ]
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


def _table(runs: Sequence[ShownRun]) -> Table:
    medians = [_at(run, "normalized_margin") for run in runs]
    last = {
        name: [_at(run, name)[-1] for run in runs]
        for name in ("normalized_margin_least", "share_separated", "logit_degree")
    }
    columns = [
        words("run", [run.label for run in runs]),
        *(
            column(f"median {when}", [values[place] for values in medians], _short)
            for place, when in enumerate(("at first", "at half", "at last"))
        ),
        column("least at last", last["normalized_margin_least"], _short),
        column("training tokens ranked first", last["share_separated"], percent),
        column("degree k", last["logit_degree"], lambda k: f"{k:g}"),
    ]
    return Table("Normalized margins of training tokens", columns)


def _short(value: float) -> str:
    return number(value, 3)
