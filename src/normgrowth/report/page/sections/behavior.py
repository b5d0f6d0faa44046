"""Predictions of language models, soft and saturated."""

from math import nan

import numpy as np

from normgrowth.network.behavior.result import Behavior, NetworkBehavior
from normgrowth.report.numbers import percent
from normgrowth.report.page.content import Content
from normgrowth.report.page.pieces import (
    Chart,
    ChartAxis,
    ChartCurve,
    Section,
    SummaryRow,
    Table,
    column,
    words,
)
from normgrowth.report.sentences.behavior import by_run, sentences, title, with_interval
from normgrowth.text import visible


def sections(content: Content) -> list[Section]:
    items: list[Chart | Table] = []
    said: list[str] = []
    for place, result in enumerate(content.results(Behavior)):
        said += sentences(result)
        runs = by_run(result)
        curves = []
        for i, (run, networks) in enumerate(runs.items()):
            finite = [one for one in networks if one.network in ("soft", "scaled")]
            scales = np.array([1.0 if one.c is None else one.c for one in finite])
            agreement = np.array([one.agreement.value for one in finite])
            curves.append(ChartCurve(run, scales, agreement, run, i % 6, dash=i // 6))
        shown = "Predictions that stay the same as the weights grow"
        alt = f"{shown}, {len(curves)} models."
        x, y = ChartAxis("scale c of the weights", log=True), ChartAxis("share of the tokens")
        items.append(Chart(f"agreement-{place}", shown, alt, x, y, curves))
        items += [_table(run, networks) for run, networks in runs.items()]
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


def _table(run: str, networks: list[NetworkBehavior]) -> Table:
    columns = [words("network", [title(one) for one in networks])]
    for name, quantity, write in (
        ("same top token as soft", "agreement", percent),
        ("accuracy", "accuracy", percent),
        ("loss (nats)", "loss", lambda x: f"{x:.4g}"),
        ("legal", "legal_share", percent),
    ):
        found = [getattr(one, quantity) for one in networks]
        if any(found):
            columns.append(column(name, [nan if one is None else one.value for one in found], write))
    random = [one.agreement.random for one in networks]
    if np.isfinite(random).any():
        columns.append(column("same top token, random weights", random, percent))
    return Table(f"Predictions of {run}", columns)
