"""Lint beside a trace: what `lint` finds, without reading anything twice, and whole after an interruption."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from synthetic_series import tiny_state, walk, write_series

from normgrowth import lint, trace
from normgrowth.errors import SeriesWarning
from normgrowth.trace.sampling import sample_log
from normgrowth.trace.sampling.finding import SHOWN

STEPS = 8


def honest(folder: Path) -> Path:
    return write_series(folder, walk(STEPS))


def copied(folder: Path) -> Path:
    honest(folder)
    (folder / "step_300.safetensors").write_bytes((folder / "step_700.safetensors").read_bytes())
    return folder


def stranger(folder: Path) -> Path:
    honest(folder)
    save_file(tiny_state(99), folder / "step_500.safetensors")
    return folder


def stale(folder: Path) -> Path:
    states = walk(STEPS)
    name = next(name for name in states[0] if "attn" in name and name.endswith("weight"))
    states[4][name] = states[3][name].clone()
    return write_series(folder, states)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("made", "kind"),
    [(copied, "identical"), (stranger, "run"), (stale, "stale")],
    ids=["copied", "stranger", "stale"],
)
def test_a_trace_finds_what_lint_finds_wherever_it_was_cut(tmp_path, made, kind, first):
    series = made(tmp_path / "series")
    expected = tuple(lint(series, include="blocks"))
    assert [finding.kind for finding in expected if finding.severity == "fault"] == [kind]
    out = tmp_path / "out"
    with pytest.warns(SeriesWarning, match=rf"\({kind}\)"):
        assert trace(series, out, first=first).findings == expected
    files = sorted((out / "moments").iterdir())
    for lost in (files[-1:], files[4:], files[3:5], files[1:], [], files):
        for path in lost:
            path.unlink()
        with pytest.warns(SeriesWarning, match=rf"\({kind}\)"):
            assert trace(series, out, first=first).findings == expected


def test_an_honest_series_is_not_spoken_of(tmp_path):
    findings = trace(honest(tmp_path / "series"), tmp_path / "out").findings
    assert not [finding for finding in findings or () if finding.severity == "fault"]


def test_what_was_measured_without_a_look_is_said(tmp_path):
    series, out = copied(tmp_path / "series"), tmp_path / "out"
    assert trace(series, out, lint=False).findings is None
    with pytest.warns(
        SeriesWarning, match="8 of 8 checkpoints were measured earlier without integrity checks"
    ):
        assert trace(series, out).findings == ()


def test_another_first_checkpoint_takes_the_ground_from_stored_looks(tmp_path):
    series, out = copied(tmp_path / "series"), tmp_path / "out"
    (series / "step_0.safetensors").rename(tmp_path / "step_0.safetensors")
    with pytest.warns(SeriesWarning, match="identical"):
        trace(series, out, first=False)
    (tmp_path / "step_0.safetensors").rename(series / "step_0.safetensors")
    with pytest.warns(SeriesWarning, match="checkpoints were measured earlier"):
        trace(series, out, first=False)


def test_too_many_tensors_are_left_to_lint(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_log, "MOST_TENSORS", 3)
    with pytest.warns(SeriesWarning, match="too many tensors .* for integrity checks"):
        trace(copied(tmp_path / "series"))


def test_many_faults_are_counted_and_all_are_in_the_records(tmp_path):
    states = walk(2 * STEPS)
    for i in range(1, 2 * STEPS - 1, 2):
        states[i] = states[-1]
    series = write_series(tmp_path / "series", states)
    with pytest.warns(SeriesWarning) as said:
        findings = trace(series).findings
    faults = [finding for finding in findings or () if finding.severity == "fault"]
    assert len(faults) == STEPS - 1
    lines = [str(warning.message) for warning in said]
    assert len(lines) == SHOWN + 1
    assert lines[-1] == f"{len(faults) - SHOWN} more faults; run `normgrowth lint` to see all of them"


def test_nan_is_told_once(tmp_path):
    states = walk(STEPS)
    next(iter(states[4].values())).view(-1)[0] = torch.nan
    with pytest.warns(SeriesWarning) as said:
        found = trace(write_series(tmp_path / "series", states), include="all").findings
    assert len([w for w in said if "NaN" in str(w.message)]) == 1
    assert "nonfinite" in {finding.kind for finding in found or ()}
