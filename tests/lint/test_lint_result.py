"""Findings as a result: a sequence that is saved, loaded, printed, and that a trace has, too."""

import pytest
from synthetic_series import walk, write_series

import normgrowth as ng
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError

MATRIX = "transformer.h.0.attn.c_proj.weight"


@pytest.fixture
def series(tmp_path):
    """A tensor that is frozen, and final weights in an earlier step."""
    states = walk(8)
    for state in states:
        state[MATRIX] = states[0][MATRIX]
    states[2] = states[7]
    return write_series(tmp_path / "series", states)


def test_a_sequence_of_faults_and_remarks(series):
    found = ng.lint(series)
    assert [(f.kind, f.severity) for f in found] == [("frozen", "remark"), ("identical", "fault")]
    assert found.faults == (found[1],)
    assert found.remarks == found[:1]
    assert (len(found), found.tensors, found.of_tensors) == (2, 12, 12)
    assert found.to_pandas()["kind"].tolist() == ["frozen", "identical"]
    assert "1 fault, 1 remark." in str(found)


def test_saved_and_loaded(series, tmp_path):
    found = ng.lint(series, tmp_path / "out", include="blocks")
    again = ng.load(tmp_path / "out")
    assert isinstance(again, ng.Findings)
    assert again.findings == found.findings
    assert again.selection == Selection("blocks")
    assert again.checked == found.checked == "10 of 12 parameters (include blocks)"
    assert ng.lint(series, tmp_path / "out", overwrite=True).checked == "all 12 parameters"


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")
def test_a_trace_was_checked_when_it_was_measured(series, tmp_path):
    ng.trace(series, tmp_path / "out")
    expected = ng.lint(series, include="blocks")
    for path in series.iterdir():
        path.unlink()
    found = ng.lint(ng.load(tmp_path / "out"))
    assert found.findings == expected.findings
    assert found.checked == expected.checked
    assert found.steps == expected.steps


def test_a_trace_without_checks_is_refused(series):
    with pytest.raises(InputError, match="without integrity checks"):
        ng.lint(ng.trace(series, lint=False))
