"""A trace as a result: saved and loaded, printed, drawn, and read from folders of earlier versions."""

import json

import numpy as np
import pytest
from synthetic_series import walk, write_series

import normgrowth as ng
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.records import Block, Records
from normgrowth.stored_result import StoredResult
from normgrowth.trace.result import Trace
from normgrowth.trace.sampling.finding import Finding


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("result")


@pytest.fixture(scope="module")
def traced(folder) -> Trace:
    states = walk(5)
    states[3]["transformer.h.0.attn.c_attn.weight"] = states[2]["transformer.h.0.attn.c_attn.weight"]
    series = write_series(folder / "series", states)
    with pytest.warns(ng.SeriesWarning, match="stale"):
        return ng.trace(series, folder / "out", lags=(2,), tokens_per_step=8.0, run="mine")


def test_fields_say_what_was_measured(traced, folder):
    assert traced.steps == (0, 100, 200, 300, 400)
    assert traced.step_origins == ("name",) * 5
    assert traced.checkpoints[1].endswith("step_100.safetensors")
    assert traced.source == str(folder / "series")
    assert traced.run == "mine"
    assert traced.selection == Selection("blocks")
    assert traced.lags == (2,)
    assert traced.tokens_per_step == 8
    assert [finding.kind for finding in traced.findings or ()] == ["stale"]
    assert traced.provenance.version
    assert not traced.tracked


@pytest.mark.parametrize("written", ["by trace", "by save"])
def test_load_gives_the_same_trace(traced, folder, written):
    place = folder / "out" if written == "by trace" else traced.save(folder / "saved")
    found = ng.load(place)
    assert isinstance(found, Trace)
    assert str(found.records.to_rows()) == str(traced.records.to_rows())
    assert all(isinstance(finding, Finding) for finding in found.findings or ())
    for name in ("source", "run", "steps", "selection", "counted", "lags", "findings", "notes", "provenance"):
        assert getattr(found, name) == getattr(traced, name)


def test_it_prints_and_draws_itself(traced):
    assert "steps 0 to 400, 5 checkpoints" in str(traced)
    assert traced.parameters in str(traced)
    assert traced.plot.names == ["norm_direction", "alignment_step", "angle", "budget", "roles"]
    assert len(traced.plot(overlay=[traced]).axes[0].lines) == 2
    assert traced.plot.roles().axes
    assert json.loads(json.dumps(traced.to_json()))["kind"] == "trace"


def test_fields_are_typed_and_those_of_other_commands_are_left_out(traced):
    fields = {
        "kind": "trace",
        "source": "x",
        "selection": {"include": "all"},
        "findings": [
            {"step": 1, "name": "w", "kind": "stale", "why": "y", "label": "f", "severity": "fault"}
        ],
        "provenance": {"version": "0.1", "created": "2026-01-01T00:00:00Z"},
    }
    found = Trace.from_stored(StoredResult(traced.records, fields))
    assert found.findings == (Finding(1, "w", "stale", "y", "f"),)
    assert found.selection == Selection("all")
    assert (found.provenance.version, found.provenance.created) == ("0.1", "2026-01-01T00:00:00Z")
    assert (found.run, found.steps) == ("mine", traced.steps)
    trained = Trace.from_stored(StoredResult(traced.records, {"kind": "run", "steps": 400}))
    assert trained.tracked
    assert trained.steps == traced.steps


def test_a_trace_from_records_of_several_runs_has_all_their_names():
    block = Block("model", ["model"], [None], [None], [1, 2], {"norm": np.ones((2, 1))})
    records = Records.joined([Records.from_blocks(run, [block]) for run in ("a", "b")])
    assert Trace.from_records(records).run == "a, b"
    assert Trace.from_records(records.where(run="b")).run == "b"
