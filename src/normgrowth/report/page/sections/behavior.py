"""Predictions of language models, soft and saturated."""

import numpy as np

from normgrowth.network.behavior.result import Behavior, NetworkBehavior
from normgrowth.report.columns.behavior import columns
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import Chart, ChartAxis, ChartCurve, Section, SummaryRow
from normgrowth.report.sentences.behavior import by_run, sentences, with_interval
from normgrowth.report.table_columns import Table
from normgrowth.text import visible


def sections(content: Content) -> list[Section]:
    results = content.results(Behavior)
    items: list[Chart | Table] = []
    for place, result in enumerate(results):
        runs = by_run(result)
        items.append(_chart(runs, place))
        items += [Table(f"Predictions of {run}", columns(networks)) for run, networks in runs.items()]
    said = [text for result in results for text in sentences(result)]
    return [Section("behavior", "What saturated language models predict", said, items)] if items else []


def rows(content: Content) -> list[SummaryRow]:
    """A row for each model: its top tokens that the saturated network keeps."""
    found = []
    for result in content.results(Behavior):
        for run, networks in by_run(result).items():
            kept = [one.agreement for one in networks if one.network == "saturated"]
            said = f"saturated: {with_interval(kept[0])} of the top tokens stay the same" if kept else ""
            found.append(SummaryRow(visible(run), "behavior", found=said))
    return found


def summary(content: Content) -> list[str]:
    return [visible(text) for result in content.results(Behavior) for text in sentences(result)]


def _chart(runs: dict[str, list[NetworkBehavior]], place: int) -> Chart:
    curves = []
    for i, (run, networks) in enumerate(runs.items()):
        finite = [one for one in networks if one.network in ("soft", "scaled")]
        scales = np.array([1.0 if one.c is None else one.c for one in finite])
        agreement = np.array([one.agreement.value for one in finite])
        curves.append(ChartCurve(run, scales, agreement, run, i % 6, dash=i // 6))
    title = "Predictions that stay the same as the weights grow"
    x, y = ChartAxis("scale c of the weights", log=True), ChartAxis("share of the tokens")
    return Chart(f"agreement-{place}", title, f"{title}, {len(curves)} models.", x, y, curves)
