"""The gradient's direction and the state of the optimizer in terminal, `watch` and page, where they were recorded."""

from io import StringIO

import torch
from rich.console import Console
from tracking.tiny_training import WholeTracker, backward, tiny

import normgrowth as ng
from normgrowth.report.numbers import small
from normgrowth.report.terminal.trace import show
from normgrowth.report.terminal.watch import watch_table

TITLES = ("Gradient and weights", "First moment of Adam", "Second moment of Adam", "Ratio of Adam")


def tracked(**options):
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1, **options) as tracker:
        for step in (1, 2):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
    return tracker


def printed(trace):
    console = Console(file=StringIO(), width=300)
    console.print(watch_table(trace, console))
    watched = console.file.getvalue()
    show(trace, console)
    return watched, console.file.getvalue().removeprefix(watched)


def test_they_are_shown(tmp_path):
    tracker = tracked(optimizer_state=True)
    trace = tracker.trace
    values = {
        name: trace.records.series(name)[1][-1]
        for name in ("first_moment_norm", "second_moment_norm", "moment_ratio", "gradient_alignment")
    }
    for text in printed(trace):
        for name, value in values.items():
            assert (small(value) if name == "gradient_alignment" else f"{value:.4g}") in text, name
    logged = tracker.latest()
    assert logged["gradient_alignment/model"] == values["gradient_alignment"]
    assert logged["moment_ratio/model"] == values["moment_ratio"]
    page = ng.report([trace], tmp_path / "page.html").path.read_text(encoding="utf-8")
    assert all(title in page for title in TITLES)


def test_they_are_absent_where_they_were_not_recorded(tmp_path):
    trace = tracked().trace
    assert not any("moment" in text for text in printed(trace))
    page = ng.report([trace], tmp_path / "page.html").path.read_text(encoding="utf-8")
    assert not any(title in page for title in TITLES)
