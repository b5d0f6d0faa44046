"""The folder of a run: on disk at once, whole after a kill, continued by the next run, never shared."""

import gc
import os
import resource
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tracking.tiny_training import backward, row_of, tiny

from normgrowth import InputError, Records, SeriesWarning, trace
from normgrowth.errors import FolderMismatch
from normgrowth.tracking import step_log as journal
from normgrowth.tracking.tracker import NormTracker


def start(seed=0):
    model = tiny(seed)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


def assert_equal(found, wanted):
    key = ("run", "step", "level", "name", "quantity")
    mine = {tuple(row[k] for k in key): row["value"] for row in found.table.to_pylist()}
    theirs = {tuple(row[k] for k in key): row["value"] for row in wanted.table.to_pylist()}
    assert len(mine) == len(found)
    assert mine.keys() == theirs.keys()
    np.testing.assert_array_equal(list(mine.values()), [theirs[row] for row in mine])


def whole_run(steps=8):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, run="run") as tracker:
        train(model, optimizer, range(1, steps + 1))
    return tracker.records


@pytest.mark.parametrize("patience", [0, 100, 1e9])
def test_the_folder_has_what_memory_has_however_often_records_are_written(tmp_path, monkeypatch, patience):
    monkeypatch.setattr(journal, "PATIENCE", patience)
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path / "run") as tracker:
        for step in range(1, 9):
            train(model, optimizer, [step])
            assert journal.read(tmp_path / "run").distinct("step") == list(range(1, step + 1))
            seen = Records.read(tmp_path / "run").distinct("step")  # whole at any time, if not up to date
            assert seen == list(range(1, len(seen) + 1))
            assert len(seen) == {0: step, 1e9: 1}.get(patience, len(seen))
        assert_equal(tracker.records, whole_run())
    assert_equal(Records.read(tmp_path / "run"), whole_run())
    assert_equal(tracker.records, whole_run())
    assert Records.read(tmp_path / "run").made_by["command"] == "tracker"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock",
        "records.json",
        "records.parquet",
    ]


def test_without_a_close_the_last_steps_are_written_when_the_tracker_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "PATIENCE", 1e9)
    model, optimizer = start()
    NormTracker(model, optimizer, every=1, out=tmp_path)
    train(model, optimizer, range(1, 4))
    assert Records.read(tmp_path).distinct("step") == [1]
    del optimizer  # whose hooks hold the tracker
    gc.collect()
    assert Records.read(tmp_path).distinct("step") == [1, 2, 3]


@pytest.mark.parametrize("back", [0, 3, 8])
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(tmp_path, back):
    out = tmp_path / "run"
    model, optimizer = start()
    kept = {}
    with NormTracker(model, optimizer, every=1, out=out):
        for step in range(1, 9):
            kept[step - 1] = [p.detach().clone() for p in model.parameters()], optimizer.state_dict()
            kept[step - 1] = torch.utils._pytree.tree_map(
                lambda x: x.clone() if isinstance(x, torch.Tensor) else x, kept[step - 1]
            )
            train(model, optimizer, [step])
        kept[8] = [p.detach().clone() for p in model.parameters()], optimizer.state_dict()
    weights, state = kept[back]
    model, optimizer = start(seed=1)
    with torch.no_grad():
        for p, saved in zip(model.parameters(), weights, strict=True):
            p.copy_(saved)
    optimizer.load_state_dict(state)
    with NormTracker(model, optimizer, every=1, out=out, step=back) as tracker:
        assert tracker.records.distinct("step") == list(range(1, back + 1))
        train(model, optimizer, range(back + 1, 11))
    assert_equal(Records.read(out), whole_run(10))
    assert Records.read(out).made_by["notes"] == ([f"resumed at step {back}"] if back else [])


def test_what_a_kill_leaves(tmp_path):
    """SIGKILL in the middle of training; every step that was done is there, and a new run can go on."""
    out, said = tmp_path / "run", tmp_path / "said"
    code = (
        "from tracking.test_tracker_folder import *\n"
        "model, optimizer = start()\n"
        f"tracker, said = NormTracker(model, optimizer, every=1, out={str(out)!r}), open({str(said)!r}, 'w')\n"
        "for step in range(1, 100000):\n"
        "    train(model, optimizer, [step])\n"
        "    print(step, file=said, flush=True)\n"
    )
    folder = os.path.dirname(os.path.dirname(__file__))
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": folder})
    try:
        deadline = time.monotonic() + 60
        while not (said.exists() and said.read_text().count("\n") >= 30):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(InputError, match="another tracker"):
            NormTracker(*start(), out=out, step=0)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = int(said.read_text().split("\n")[-2])
    steps = journal.read(out).distinct("step")
    assert steps == list(range(1, len(steps) + 1))
    assert done <= len(steps) <= done + 1  # it may have been killed before it could say so
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=out, step=done) as tracker:
        train(model, optimizer, [done + 1])
    assert tracker.records.distinct("step") == list(range(1, done + 2))
    first = whole_run(4).where(step=4)
    assert_equal(tracker.records.where(step=4), first)


def test_a_step_that_was_cut_short_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "PATIENCE", 1e9)
    model, optimizer = start()
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    train(model, optimizer, range(1, 5))
    path = tmp_path / "journal"
    content = path.read_bytes()
    for cut in (1, 8, 1000):
        path.write_bytes(content[:-cut])
        assert journal.read(tmp_path).distinct("step") == [1, 2, 3]
    path.write_bytes(content)
    # A kill between writing the records and beginning the journal anew: steps are in both.
    journal.read(tmp_path).write(tmp_path)
    assert_equal(journal.read(tmp_path).where(level="model"), tracker.records.where(level="model"))
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="journal: not readable as JSON"):
        journal.read(tmp_path)
    path.write_bytes(content)
    tracker.close()
    assert Records.read(tmp_path).distinct("step") == [1, 2, 3, 4]


def test_two_trackers_in_one_folder_are_refused(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path):
        for step in (None, 0, 5):
            with pytest.raises(InputError, match="another tracker"):
                NormTracker(model, optimizer, out=tmp_path, step=step)
        train(model, optimizer, [1])
    NormTracker(model, optimizer, out=tmp_path, step=1).close()


def test_records_are_not_overwritten_by_chance(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path / "run"):
        train(model, optimizer, [1, 2])
    with pytest.raises(InputError, match=r"up to step 2; give step="):
        NormTracker(model, optimizer, out=tmp_path / "run")
    assert Records.read(tmp_path / "run").distinct("step") == [1, 2]
    save_file({"layers.0.weight": torch.ones(2, 2)}, tmp_path / "step-1.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace(tmp_path / "step-1.safetensors", tmp_path / "traced", include="all")
    with pytest.raises(InputError, match="has records of trace"):
        NormTracker(model, optimizer, out=tmp_path / "traced", step=0)
    with pytest.raises(InputError, match="empty name"):
        NormTracker(model, optimizer, out="")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        NormTracker(model, optimizer, out=tmp_path / "file")
    with pytest.raises(InputError, match="step must be 0 or more"):
        NormTracker(model, optimizer, step=-1)


def test_a_full_disk_stops_the_writing_and_not_the_training(tmp_path):
    """Files may not grow beyond a limit, as on a disk that is full, until there is room again."""
    model, optimizer = start()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path / "run")
    train(model, optimizer, [1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.warns(SeriesWarning, match="stopped writing .*File too large") as told:
            train(model, optimizer, range(2, 7))
        assert len(told) == 1
        assert journal.read(tmp_path / "run").distinct("step") == [1]
        assert tracker.records.distinct("step") == [1, 2, 3, 4, 5, 6]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    tracker.close()
    assert_equal(Records.read(tmp_path / "run"), whole_run(6))


def test_a_disk_that_stays_full_keeps_what_was_written(tmp_path):
    model, optimizer = start()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    train(model, optimizer, [1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.warns(SeriesWarning, match="stopped writing"):
            train(model, optimizer, [2])
        with pytest.warns(SeriesWarning, match="the last steps could not be written"):
            tracker.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Records.read(tmp_path).distinct("step") == [1]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
    assert tracker.records.distinct("step") == [1, 2]
    NormTracker(model, optimizer, out=tmp_path, step=1).close()  # and the folder is free


def test_first_weights_are_gone_in_a_resumed_run(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path, first=True):
        train(model, optimizer, [1])
    with pytest.warns(SeriesWarning, match="the first weights are gone"):
        tracker = NormTracker(model, optimizer, every=1, out=tmp_path, first=True, step=1)
    train(model, optimizer, [2])
    tracker.close()
    assert "angle to first" in row_of(tracker.records, 1, "model", "model")
    assert "angle to first" not in row_of(tracker.records, 2, "model", "model")
    assert "angle" in row_of(tracker.records, 2, "model", "model")


def test_a_flipped_bit_in_a_journal_is_noticed(tmp_path):
    """The header is refused, and a step is left out with a note; no number is ever a wrong one."""
    model, optimizer = start()
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    tracker._journal._not_before = float("inf")
    train(model, optimizer, range(1, 6))
    path = tmp_path / "journal"
    content = path.read_bytes()
    whole = journal.read(tmp_path)
    header = content.index(b"\n")
    step = (len(content) - header - 1) // 5
    random = np.random.default_rng(0)
    for place in random.integers(0, len(content), 60):
        flipped = bytearray(content)
        flipped[place] ^= 1 << random.integers(8)
        path.write_bytes(flipped)
        if place <= header:
            with pytest.raises(InputError, match="journal: "):
                journal.read(tmp_path)
            continue
        with pytest.warns(SeriesWarning, match="journal: 1 of 5 steps are damaged and left out"):
            found = journal.read(tmp_path)
        assert "left out" in found.made_by["notes"][-1]
        lost = (place - header - 1) // step + 1
        assert found.distinct("step") == [i for i in range(1, 6) if i != lost]
        if lost < 5:  # a sum over all steps is not told without one of them
            assert "total_growth" not in found.distinct("quantity")
        else:
            assert_equal(found, Records(whole.table.filter(whole.table["step"].to_numpy() != lost), {}))
    path.write_bytes(content)
    tracker.close()
    assert_equal(Records.read(tmp_path), whole)


def test_a_run_that_counts_other_parameters_does_not_go_on_in_the_same_records(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path):
        train(model, optimizer, [1, 2])
    before = Records.read(tmp_path)
    with pytest.raises(
        FolderMismatch, match=r"include blocks, not .* with include all; resume with the same"
    ) as refused:
        NormTracker(model, optimizer, every=1, out=tmp_path, include="all", step=2)
    assert (refused.value.found["include"], refused.value.wanted["include"]) == ("blocks", "all")
    assert "--overwrite" not in str(refused.value)  # a tracker has none
    with pytest.raises(FolderMismatch, match=r"select None, not .* with select weight"):
        NormTracker(model, optimizer, every=1, out=tmp_path, select="weight", step=1)
    assert_equal(Records.read(tmp_path), before)
    NormTracker(model, optimizer, every=5, out=tmp_path, step=2).close()  # the same parameters
    with NormTracker(model, optimizer, every=1, out=tmp_path, include="all", step=0):  # begins anew
        train(model, optimizer, [1])
    assert Records.read(tmp_path).made_by["selection"]["include"] == "all"
