"""Examples run as tests: the demo's series is really trained, traced and drawn."""

import runpy
import sys
from pathlib import Path

import numpy as np
import torch

from normgrowth import trace

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_tiny_series_learns_and_can_be_traced(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["tiny_series.py", str(tmp_path / "series"), "--steps", "20", "--every", "5"]
    )
    state = torch.random.get_rng_state()
    try:
        runpy.run_path(str(EXAMPLES / "tiny_series.py"), run_name="__main__")
    finally:
        torch.random.set_rng_state(state)
    first, last = (
        float(word) for word in capsys.readouterr().out.split("loss ")[1].split(" nats")[0].split(" -> ")
    )
    assert last < first - 0.5
    records = trace(tmp_path / "series").records
    steps, norms = records.series("norm")
    assert list(steps) == [0, 5, 10, 15, 20]
    assert (np.diff(norms) > 0).all()
    assert records.where(level="layer").distinct("name") == [f"layer.{i}" for i in range(4)]
