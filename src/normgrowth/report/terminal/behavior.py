"""Behavior in the terminal: a table for each model, then sentences."""

from typing import TYPE_CHECKING

from normgrowth.network.behavior.result import Behavior
from normgrowth.report.columns.behavior import columns
from normgrowth.report.sentences.behavior import by_run, sentences
from normgrowth.report.sentences.saturation import text_sentence
from normgrowth.report.terminal.console import say, say_each, say_remarks, show_table

if TYPE_CHECKING:
    from rich.console import Console


def show(result: Behavior, console: "Console") -> None:
    for run, networks in by_run(result).items():
        known = result.models.get(run)
        task = "masked tokens" if result.objective.get(run) == "masked" else "the next token"
        text = text_sentence(known.text) if known else ""
        say(console, f"{run}: predicts {task}{f', {text}' if text else ''}", "bold")
        show_table(console, columns(networks))
    say_each(console, sentences(result))
    if result.bootstrap:
        say(console, f"[…]: {result.confidence:.0%} interval over sentences (bootstrap).", "dim")
    say_remarks(console, result)
