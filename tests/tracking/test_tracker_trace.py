"""A tracker gives a `Trace`: in memory, from its folder while it runs, and after its end."""

import numpy as np
import pytest
import torch
from tracking.tiny_training import backward, tiny

import normgrowth as ng
from normgrowth import Trace
from normgrowth.tracking.tracker import NormTracker


def run_of(out=None, steps=12, **options):
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tracker = NormTracker(model, optimizer, every=1, out=out, include="all", **options)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return tracker, optimizer


def test_the_trace_of_a_tracker():
    tracker, _ = run_of()
    trace = tracker.trace
    assert type(trace) is Trace
    assert trace.tracked
    assert trace.steps[-1] == 12
    assert (trace.optimizer, trace.every, trace.ranks) == ("AdamW", 1, 1)
    assert trace.selection is not None
    assert trace.selection.include == "all"
    assert trace.counted is not None
    assert trace.counted.tensors == trace.counted.of_tensors
    assert trace.provenance.version
    assert "12 measured steps" in str(trace)


def test_verbs_accept_it():
    tracker, _ = run_of()
    trace = tracker.trace
    steps, norms = trace.records.series("norm")
    fits = ng.fit(trace, bootstrap=0)
    assert fits.best.r2 == ng.fit(steps, norms, bootstrap=0).best.r2
    found = ng.dynamics(trace, "constant:lr=0.01")
    assert found.budget is not None
    for name in trace.plot.names:
        getattr(trace.plot, name)()


def test_a_folder_is_loaded_while_the_run_goes_on(tmp_path):
    tracker, _optimizer = run_of(tmp_path / "norms", steps=3)
    running = ng.load(tmp_path / "norms")
    assert isinstance(running, Trace)
    assert running.to_json() == tracker.trace.to_json()
    tracker.close()
    ended = ng.load(tmp_path / "norms")
    assert ended.to_json() == running.to_json()
    saved = tracker.trace.save(tmp_path / "copy")
    again = ng.load(saved)
    assert isinstance(again, Trace)
    assert again.tracked
    assert again.to_json() == running.to_json()


def test_before_the_first_step_it_is_empty():
    tracker, _ = run_of(steps=0)
    assert tracker.trace.steps == ()
    assert str(tracker.trace).endswith("no steps measured yet")
    with pytest.raises(ng.InputError):
        tracker.trace.plot()


def test_without_the_level_of_the_model_its_steps_are_known():
    tracker, _ = run_of(steps=2, levels=["layer"])
    assert tracker.trace.steps[-2:] == (1, 2)
    assert np.isfinite(tracker.trace.matrix("norm").values).all()
