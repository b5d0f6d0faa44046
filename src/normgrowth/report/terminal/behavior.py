"""The table of behavior: a row for each network, from the soft to the saturated one."""

from math import isfinite
from typing import TYPE_CHECKING

from normgrowth.network.behavior.result import Behavior, Estimate
from normgrowth.report.numbers import percent
from normgrowth.report.sentences.behavior import by_run, sentences, title, with_interval
from normgrowth.report.sentences.saturation import text_sentence
from normgrowth.report.terminal.console import Cells, say, say_remarks
from normgrowth.report.terminal.console import show as show_columns

if TYPE_CHECKING:
    from rich.console import Console


def show(result: Behavior, console: "Console") -> None:
    for run, networks in by_run(result).items():
        known = result.models.get(run)
        task = "masked tokens" if result.objective.get(run) == "masked" else "the next token"
        text = text_sentence(known.text) if known else ""
        say(console, f"{run}: predicts {task}{f', {text}' if text else ''}", "bold")
        columns = [Cells("network", [title(one) for one in networks], right=False)]
        columns += [
            Cells("same top\ntoken as soft", [with_interval(one.agreement) for one in networks]),
            Cells("accuracy", [with_interval(one.accuracy) for one in networks]),
            Cells("loss\n(nats)", [_nats(one.loss) for one in networks], 1),
        ]
        if any(one.legal_share for one in networks):
            columns.append(Cells("legal", [with_interval(one.legal_share) for one in networks]))
        if result.random_init:
            columns += [
                Cells(
                    "same top token\n(random weights)", [percent(one.agreement.random) for one in networks], 2
                ),
                Cells("accuracy\n(random weights)", [percent(one.accuracy.random) for one in networks], 3),
            ]
        show_columns(console, columns)
    for sentence in sentences(result):
        say(console, sentence)
    if result.bootstrap:
        say(console, f"[…]: {result.confidence:.0%} interval over sentences (bootstrap).", "dim")
    say_remarks(console, result)


def _nats(estimate: Estimate | None) -> str:
    if estimate is None or not isfinite(estimate.value):
        return "-"
    ends = f" [{estimate.low:.4g}, {estimate.high:.4g}]" if isfinite(estimate.low) else ""
    return f"{estimate.value:.4g}{ends}"
