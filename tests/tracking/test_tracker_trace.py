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
    assert "13 measured steps" in str(trace)


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


def test_step_0_has_the_norms_before_the_first_step(tmp_path):
    model = tiny()
    at_start = {name: p.detach().double().norm().item() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with NormTracker(model, optimizer, every=5, out=tmp_path, include="all") as tracker:
        for step in range(1, 11):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
    records = tracker.trace.records
    assert tracker.trace.steps == (0, 5, 10)
    for name, norm in at_start.items():
        assert records.series("norm", level="tensor", name=name)[1][0] == pytest.approx(norm, rel=1e-6)
    whole = np.sqrt(sum(norm**2 for norm in at_start.values()))
    assert records.series("norm")[1][0] == pytest.approx(whole, rel=1e-6)
    assert set(records.where(step=0).distinct("quantity")) == {"norm", "rms", "largest", "numel", "nonfinite"}
    with pytest.raises(ng.InputError, match="single optimizer steps with gaps"):
        ng.dynamics(tracker.trace, "constant:lr=0.01")


def test_the_budget_of_all_steps_is_the_growth_since_step_0():
    tracker, _ = run_of()
    norms = tracker.trace.records.series("norm")[1]
    steps, growth = tracker.trace.records.series("total_growth")
    assert steps.tolist() == list(range(1, 13))
    np.testing.assert_allclose(growth, norms[1:] ** 2 - norms[0] ** 2, rtol=1e-9)


def test_a_run_that_starts_again_replaces_step_0(tmp_path):
    for seed in (0, 1):
        model = tiny(seed)
        norm = np.sqrt(sum(float(p.detach().double().square().sum()) for p in model.parameters()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with NormTracker(model, optimizer, every=1, out=tmp_path, include="all", resume_step=0) as tracker:
            backward(model, 1)
            optimizer.step()
        assert tracker.trace.steps == (0, 1)
        assert tracker.trace.records.series("norm")[1][0] == pytest.approx(norm, rel=1e-6)


def test_before_the_first_step_it_is_empty():
    tracker, _ = run_of(steps=0)
    assert tracker.trace.steps == ()
    assert str(tracker.trace).endswith("no steps measured yet")
    with pytest.raises(ng.InputError):
        tracker.trace.plot()


def test_without_the_level_of_the_model_its_steps_are_known():
    tracker, _ = run_of(steps=2, levels=["layer"])
    assert tracker.trace.steps == (0, 1, 2)
    assert np.isfinite(tracker.trace.matrix("norm").values).all()
