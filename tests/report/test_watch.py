"""The live table: sparklines, and what a person sees of a run that goes on."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console

import normgrowth as ng
from normgrowth.cli.main import main
from normgrowth.records import Block, Records
from normgrowth.report.terminal.watch import BARS, sparkline, watch_table
from normgrowth.stored_result import StoredResult
from normgrowth.trace.result import Trace


def test_sparklines():
    assert sparkline(np.array([0.0, 1.0])) == BARS[0] + BARS[-1]
    assert sparkline(np.arange(8.0)) == BARS
    assert sparkline(np.ones(3)) == BARS[0] * 3
    assert sparkline(np.array([1.0, np.nan, 2.0])) == BARS[0] + " " + BARS[-1]
    assert sparkline(np.full(4, np.nan)) == "    "
    assert sparkline(np.zeros(0)) == ""
    assert len(sparkline(np.arange(1000.0), 24)) == 24
    # Each bar is the mean of its part: one spike among hundreds does not flatten the rest.
    assert sparkline(np.repeat([0.0, 1.0, 2.0], 100), 3) == BARS[0] + BARS[4] + BARS[-1]


@pytest.fixture
def records():
    steps = [10, 20, 30]
    norms = np.array([[3.0, 4.0], [3.3, 4.4], [3.6, 4.8]])
    values = {"norm": norms, "angle": norms / 100, "gradient_norm": norms / 10}
    model = {"norm": np.array([[5.0], [5.5], [6.0]]), "relative_step": np.array([[0.01], [0.02], [0.03]])}
    layers = Block("layer", ["layer.0", "layer.[red]1"], [0, 1], [None, None], steps, values)
    blocks = [layers, Block("model", ["model"], [None], [None], steps, model)]
    fields = {"notes": ["resumed at step 5"]}
    return Trace.from_stored(StoredResult(Records.from_blocks("run", blocks), fields))


def shown(records, width=120):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    console.print(watch_table(records, console))
    return out.getvalue()


def test_the_table_has_the_last_values_and_the_way_there(records):
    text = shown(records)
    assert "run: step 30, 3 measured" in text
    assert "layer.[red]1" in text  # a name is a name, and no markup
    (model,) = [line for line in text.splitlines() if line.startswith("model")]
    assert "6.000" in model
    assert "1.2000" in model  # 6 of 5
    assert "0.03" in model
    assert BARS[0] in text
    assert "resumed at step 5" in text
    assert "equi-" not in text, "nothing was measured of it"


def test_it_fits_a_narrow_terminal(records):
    assert max(map(len, shown(records, 40).splitlines())) <= 40


def test_a_run_without_steps_says_so():
    block = Block("model", ["model"], [None], [None], [], {"norm": np.zeros((0, 1))})
    empty = Trace.from_records(Records.from_blocks("run", [block]))
    assert "nothing measured yet" in shown(empty)


def test_matrices_that_gains_hide_come_first():
    steps, none = [0, 10], [None]
    parts = {"norm": np.array([[1.0, 3.0], [2.0, 3.0]])}
    blocks = [
        Block("layer", ["layer.0"], [0], none, steps, {"norm": np.array([[10.0], [13.0]]) ** 0.5}),
        Block("part", ["matrices", "vectors"], none * 2, none * 2, steps, parts),
        Block("model", ["model"], none, none, steps, {"norm": np.array([[10.0], [13.0]]) ** 0.5}),
    ]
    text = shown(Trace.from_records(Records.from_blocks("run", blocks)))
    names = [
        word for line in text.splitlines() if (word := line.split(" ")[0]) in ("matrices", "model", "layer.0")
    ]
    assert names == ["matrices", "model", "layer.0"]
    assert "layer.0" in text
    own = Block("layer_matrices", ["layer.0"], [0], none, steps, {"norm": np.array([[1.0], [2.0]])})
    text = shown(Trace.from_records(Records.from_blocks("run", [*blocks, own])))
    (row,) = [line for line in text.splitlines() if line.startswith("layer.0")]
    assert list(map(float, row.split()[1:3])) == [2, 2]
    assert "(matrices)" in text


@pytest.mark.parametrize("layers", ["all", "none"])
def test_a_run_in_progress_shows_its_matrices(tmp_path, layers, capsys):
    """Read from the log of a tracker that has not written its result yet."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    torch.nn.init.constant_(model[0].weight, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ng.NormTracker(model, optimizer, every=1, out=tmp_path / "norms", include="all"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).square().sum().backward()
            optimizer.step()
        assert main(["watch", str(tmp_path / "norms"), "--once", "--layers", layers]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("matrices"))
    assert lines[first + 1].startswith("model")
