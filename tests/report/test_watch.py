"""The live table: sparklines, and what a person sees of a run that goes on."""

import io

import numpy as np
import pytest
from rich.console import Console

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
