"""The folder of a run: on disk at once, whole after a kill, continued by the next run, never shared."""

import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import asdict
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from tracking.tiny_training import backward, row_of, tiny

import normgrowth
from normgrowth import InputError, Records, SeriesWarning, trace
from normgrowth.errors import FolderLocked, FolderMismatch, SchemaError
from normgrowth.results import Provenance
from normgrowth.serialization.checksums import seal_json
from normgrowth.serialization.record_schema import SCHEMA
from normgrowth.stored_result import StoredResult
from normgrowth.tracking.log import log_reader, step_log
from normgrowth.tracking.log.arrow_messages import batch_message, schema_message
from normgrowth.tracking.log.log_reader import encoded_parts
from normgrowth.tracking.log.step_file import KEY, header_length
from normgrowth.tracking.tracker import NormTracker
from normgrowth.workspace import Workspace, read_json_object, write_json


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
    return tracker.trace.records


@pytest.mark.parametrize("largest", [0, 2**30])
def test_the_folder_has_what_memory_has_at_any_time(tmp_path, monkeypatch, largest):
    """largest: logs up to this size become records.parquet when they are closed."""
    monkeypatch.setattr(step_log, "EXPORT_BYTES", largest)
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path / "run") as tracker:
        for step in range(1, 9):
            train(model, optimizer, [step])
            assert Records.read(tmp_path / "run").distinct("step") == list(range(step + 1))
        assert_equal(tracker.trace.records, whole_run())
    assert_equal(Records.read(tmp_path / "run"), whole_run())
    assert_equal(tracker.trace.records, whole_run())
    assert normgrowth.load(tmp_path / "run").to_json() == tracker.trace.to_json()
    fields = StoredResult.read(tmp_path / "run").fields
    assert (fields["kind"], fields["schema"], fields["tracked"]) == ("trace", SCHEMA, True)
    assert Provenance(**fields["provenance"]).version == version("normgrowth")
    assert not {"command", "made_by", "versions", "time"} & set(fields)
    names = [path.name for path in (tmp_path / "run").iterdir()]
    exported = ["records.json", "records.parquet"] if largest else []
    assert sorted(names) == [".lock", *exported, "request.json", "steps"]
    request = read_json_object(tmp_path / "run" / "request.json")
    assert (request["kind"], request["request"]["include"]) == ("tracker", "blocks")


def test_the_records_of_a_closed_tracker_are_a_stored_trace(tmp_path):
    """The files alone, without the log: an ordinary result."""
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path / "run") as tracker:
        train(model, optimizer, range(1, 4))
    measured = tracker.trace
    shutil.rmtree(tmp_path / "run" / "steps")
    found = normgrowth.load(tmp_path / "run")
    assert isinstance(found, normgrowth.Trace)
    assert found.steps == (0, 1, 2, 3)
    assert found.to_json() == measured.to_json()
    content = (tmp_path / "run" / "records.json").read_bytes()
    assert b"made_by" not in content
    assert b"command" not in content


def test_a_folder_of_a_tracker_belongs_to_it(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path):
        train(model, optimizer, [1])
    with pytest.raises(FolderMismatch, match=r"'tracker'.*'heads'"), Workspace.open(tmp_path, "heads", {}):
        pass
    for name in ("trace", "run"):
        write_json(tmp_path / "request.json", {"kind": name, "request": {}, "facts": {}})
        with pytest.raises(FolderMismatch, match="choose another folder"):
            NormTracker(model, optimizer, out=tmp_path, resume_step=0)


def test_a_part_is_an_arrow_stream(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=2, out=tmp_path) as tracker:
        train(model, optimizer, range(1, 7))
    with pa.ipc.open_stream(tmp_path / "steps" / "part-000.arrows") as stream:
        table = stream.read_all()
    assert table["step"].to_pylist() == [0, 2, 4, 6]
    sums = np.array(table["sums"].to_pylist()).reshape(4, *tracker._steps.recording.layout.shape)
    norm = tracker.trace.records.series("norm")[1]
    np.testing.assert_allclose(np.sqrt(sums[:, :, 0].sum(axis=1)), norm, rtol=1e-12)


def test_without_a_close_records_are_written_when_the_tracker_goes(tmp_path):
    model, optimizer = start()
    NormTracker(model, optimizer, every=1, out=tmp_path)
    train(model, optimizer, range(1, 4))
    assert not (tmp_path / "records.parquet").exists()
    del optimizer  # whose hooks hold the tracker
    gc.collect()
    assert StoredResult.read_files(tmp_path).records.distinct("step") == [0, 1, 2, 3]


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
    with NormTracker(model, optimizer, every=1, out=out, resume_step=back) as tracker:
        assert tracker.trace.records.distinct("step") == (list(range(back + 1)) if back else [])
        train(model, optimizer, range(back + 1, 11))
    assert_equal(Records.read(out), whole_run(10))
    assert StoredResult.read(out).fields["notes"] == ([f"resumed at step {back}"] if back else [])


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
    paths = os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *sys.path])
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})
    try:
        deadline = time.monotonic() + 180  # a busy machine
        while not (said.exists() and said.read_text().count("\n") >= 30):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(FolderLocked):
            NormTracker(*start(), out=out, resume_step=0)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = int(said.read_text().split("\n")[-2])
    steps = Records.read(out).distinct("step")
    assert steps == list(range(len(steps)))
    assert done <= len(steps) <= done + 1  # it may have been killed before it could say so
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=out, resume_step=done) as tracker:
        train(model, optimizer, [done + 1])
    assert tracker.trace.records.distinct("step") == list(range(done + 2))
    first = whole_run(4).where(step=4)
    assert_equal(tracker.trace.records.where(step=4), first)


def test_a_step_that_was_cut_short_is_left_out(tmp_path):
    model, optimizer = start()
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    train(model, optimizer, range(1, 5))
    path = tmp_path / "steps" / "part-000.arrows"
    content = path.read_bytes()
    for cut in (1, 8, 1000):
        path.write_bytes(content[:-cut])
        assert Records.read(tmp_path).distinct("step") == [0, 1, 2, 3]
    path.write_bytes(content[:200])  # killed while it wrote the header
    assert encoded_parts(tmp_path) == []
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"part-000.arrows: not readable"):
        Records.read(tmp_path)
    path.write_bytes(content)
    tracker.close()
    assert Records.read(tmp_path).distinct("step") == [0, 1, 2, 3, 4]


def test_two_trackers_in_one_folder_are_refused(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path):
        for step in (None, 0, 5):
            with pytest.raises(FolderLocked):
                NormTracker(model, optimizer, out=tmp_path, resume_step=step)
        train(model, optimizer, [1])
    NormTracker(model, optimizer, out=tmp_path, resume_step=1).close()


def test_records_are_not_overwritten_by_chance(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path / "run"):
        train(model, optimizer, [1, 2])
    with pytest.raises(InputError, match=r"up to step 2; pass resume_step="):
        NormTracker(model, optimizer, out=tmp_path / "run")
    assert Records.read(tmp_path / "run").distinct("step") == [0, 1, 2]
    save_file({"layers.0.weight": torch.ones(2, 2)}, tmp_path / "step-1.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace(tmp_path / "step-1.safetensors", tmp_path / "traced", include="all")
    with pytest.raises(InputError, match="holds the result of 'trace'"):
        NormTracker(model, optimizer, out=tmp_path / "traced", resume_step=0)
    with pytest.raises(InputError, match="out must not be an empty string"):
        NormTracker(model, optimizer, out="")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        NormTracker(model, optimizer, out=tmp_path / "file")
    with pytest.raises(InputError, match="resume_step must be >= 0, got -1"):
        NormTracker(model, optimizer, resume_step=-1)


def test_a_full_disk_stops_neither_the_training_nor_the_log(tmp_path):
    """Files may not grow beyond a limit, as on a disk that is full, until there is room again."""
    model, optimizer = start()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path / "run")
    train(model, optimizer, [1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.warns(SeriesWarning, match="cannot write .*File too large") as told:
            train(model, optimizer, range(2, 7))
        assert len(told) == 1
        assert Records.read(tmp_path / "run").distinct("step") == [0, 1]
        assert tracker.trace.records.distinct("step") == [0, 1, 2, 3, 4, 5, 6]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    train(model, optimizer, [7])  # there is room again: nothing is lost, and no close is needed
    assert_equal(Records.read(tmp_path / "run"), whole_run(7))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.warns(SeriesWarning, match="cannot write"):
            train(model, optimizer, [8])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    tracker.close()
    assert_equal(Records.read(tmp_path / "run"), whole_run(8))


def test_a_disk_that_stays_full_keeps_what_was_written(tmp_path):
    model, optimizer = start()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    train(model, optimizer, [1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.warns(SeriesWarning, match="cannot write"):
            train(model, optimizer, [2])
        with pytest.warns(SeriesWarning, match="the last steps could not be written"):
            tracker.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Records.read(tmp_path).distinct("step") == [0, 1]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
    assert tracker.trace.records.distinct("step") == [0, 1, 2]
    NormTracker(model, optimizer, out=tmp_path, resume_step=1).close()  # and the folder is free


def test_first_weights_are_gone_in_a_resumed_run(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path, compare_first=True):
        train(model, optimizer, [1])
    with pytest.warns(SeriesWarning, match="the first weights are not available"):
        tracker = NormTracker(model, optimizer, every=1, out=tmp_path, compare_first=True, resume_step=1)
    train(model, optimizer, [2])
    tracker.close()
    assert "angle to first" in row_of(tracker.trace.records, 1, "model", "model")
    assert "angle to first" not in row_of(tracker.trace.records, 2, "model", "model")
    assert "angle" in row_of(tracker.trace.records, 2, "model", "model")


def test_a_flipped_bit_in_a_log_is_noticed(tmp_path):
    """A step is left out with a note; a damaged header is refused or changes nothing. No number is ever a wrong one."""
    model, optimizer = start()
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    train(model, optimizer, range(1, 6))
    path = tmp_path / "steps" / "part-000.arrows"
    content = path.read_bytes()
    whole = Records.read(tmp_path)
    header = header_length(np.frombuffer(content, np.uint8))
    step = (len(content) - header) // 6
    random = np.random.default_rng(0)
    refused = 0
    for place in [*random.integers(0, header, 60), *random.integers(header, len(content), 60)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << random.integers(8)
        path.write_bytes(flipped)
        if place < header:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SeriesWarning)
                    found = Records.read(tmp_path)
            except InputError:
                refused += 1
                continue
            if len(found):  # a flag of the format that nobody reads
                assert_equal(found, whole)
            continue
        with pytest.warns(SeriesWarning, match=r"part-000.arrows: skipped 1 damaged of 6 steps"):
            stored = StoredResult.read(tmp_path)
        found = stored.records
        assert "skipped 1 damaged" in stored.fields["notes"][-1]
        lost = (place - header) // step
        assert found.distinct("step") == [i for i in range(6) if i != lost]
        if 0 < lost < 5:  # a sum over all steps is not told without one of them
            assert "total_growth" not in found.distinct("quantity")
        else:
            assert_equal(found, Records(whole.table.filter(whole.table["step"].to_numpy() != lost)))
    assert refused > 50
    path.write_bytes(content)
    tracker.close()
    assert_equal(Records.read(tmp_path), whole)


def test_a_log_of_an_earlier_version_is_refused(tmp_path):
    """It has no request.json, and its header no kind and no schema."""
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path) as tracker:
        train(model, optimizer, [1, 2])
    path = tmp_path / "steps" / "part-000.arrows"
    values = tracker._steps.recording.layout.shape[0] * tracker._steps.recording.layout.shape[1]
    header = {
        "layout": asdict(tracker._steps.recording.layout),
        "made_by": {"command": "tracker"},
        "from_step": -1,
    }
    header |= {"step_bytes": len(batch_message(values)) + 8 * (values + 2)}
    path.write_bytes(schema_message(values, {KEY.decode(): json.dumps(seal_json(header))}))
    for name in ("request.json", "records.json", "records.parquet"):
        (tmp_path / name).unlink()
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(SchemaError, match=r"part-000.arrows: schema: missing") as caught:
        normgrowth.load(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    for step in (None, 0, 2):
        with pytest.raises(FolderMismatch, match="earlier version; choose another folder"):
            NormTracker(model, optimizer, out=tmp_path, resume_step=step)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_run_is_resumed_several_times_and_back(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path, run="run") as tracker:
        train(model, optimizer, range(1, 6))
    with pytest.raises(InputError, match="up to step 5; pass resume_step="):
        NormTracker(model, optimizer, out=tmp_path)
    with NormTracker(model, optimizer, every=1, out=tmp_path, resume_step=5) as tracker:
        train(model, optimizer, range(6, 9))
    assert_equal(Records.read(tmp_path), whole_run(8))
    assert StoredResult.read(tmp_path).fields["notes"] == ["resumed at step 5"]
    with NormTracker(model, optimizer, every=1, out=tmp_path, resume_step=8):
        before = sorted((tmp_path / "steps").iterdir())
    assert sorted((tmp_path / "steps").iterdir()) == before  # nothing was measured
    with NormTracker(model, optimizer, every=1, out=tmp_path, resume_step=3) as tracker:
        assert_equal(tracker.trace.records, whole_run(3))
    assert_equal(Records.read(tmp_path), whole_run(3))


def test_a_resumed_run_does_not_repeat_its_warnings_and_knows_its_decay(tmp_path):
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4, bias=False)])})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)

    def step(value=float("nan")):
        model["layers"][0].weight.grad = torch.full((4, 4), value)
        optimizer.step()

    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    step(1.0)
    with pytest.warns(SeriesWarning, match="NaN"):
        step()
    tracker.close()
    assert tracker._steps._decay_so_far["layers.0.weight"] == pytest.approx(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with NormTracker(model, optimizer, every=1, out=tmp_path, resume_step=2) as tracker:
            step()
    assert tracker._steps._decay_so_far["layers.0.weight"] == pytest.approx(0.15)
    with (
        NormTracker(model, optimizer, every=1, out=tmp_path, resume_step=1),
        pytest.warns(SeriesWarning, match="NaN"),
    ):
        step()  # the warning was on a step that is dropped
    notes = StoredResult.read(tmp_path).fields["notes"]
    assert [note.split(":")[0] for note in notes] == ["resumed at step 1", "step 2", "step 2"]


def test_a_log_never_grows_in_memory_and_is_never_rewritten(tmp_path):
    """The files of a run only ever grow by one message a step, also where each step has a warning."""
    model, optimizer = start()
    tracker = NormTracker(model, optimizer, every=1, out=tmp_path)
    path = tmp_path / "steps" / "part-000.arrows"
    sizes, kept = [], b""
    for step in range(1, 6):
        train(model, optimizer, [step])
        tracker._log.note(step, "a remark")
        content = path.read_bytes()
        assert content.startswith(kept)
        sizes.append(len(content) - len(kept))
        kept = content
    assert len(set(sizes[1:])) == 1
    assert not tracker._log._files.queued()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "notes.jsonl", "request.json", "steps"]
    tracker.close()
    assert StoredResult.read(tmp_path).fields["notes"] == ["a remark"] * 5


def test_a_run_that_counts_other_parameters_does_not_go_on_in_the_same_records(tmp_path):
    model, optimizer = start()
    with NormTracker(model, optimizer, every=1, out=tmp_path):
        train(model, optimizer, [1, 2])
    before = Records.read(tmp_path)
    with pytest.raises(
        FolderMismatch, match=r"include: blocks, not .* with include: all; resume with the same"
    ) as refused:
        NormTracker(model, optimizer, every=1, out=tmp_path, include="all", resume_step=2)
    assert (refused.value.found["include"], refused.value.wanted["include"]) == ("blocks", "all")
    assert "--overwrite" not in str(refused.value)  # a tracker has none
    with pytest.raises(FolderMismatch, match=r"select: none, not .* with select: weight"):
        NormTracker(model, optimizer, every=1, out=tmp_path, select="weight", resume_step=1)
    assert_equal(Records.read(tmp_path), before)
    NormTracker(model, optimizer, every=5, out=tmp_path, resume_step=2).close()  # the same parameters
    with NormTracker(model, optimizer, every=1, out=tmp_path, include="all", resume_step=0):  # begins anew
        train(model, optimizer, [1])
    assert StoredResult.read(tmp_path).fields["selection"]["include"] == "all"


def long_log(folder, steps, tensors=20):
    """A log of many steps, whose sums are those of the first."""
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(tensors // 2))})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracker = NormTracker(model, optimizer, every=1, out=folder, warn=False)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for step in range(2, steps + 1):
        tracker._log.append(step, tracker._steps.latest)
    tracker.close()


def test_a_long_log_takes_little_more_memory_than_its_values(tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "EXPORT_BYTES", 0)
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", 2**20)
    long_log(tmp_path / "run", 2000)
    records = normgrowth.load(tmp_path / "run").records
    assert len(records) > 2**20
    assert records.table.get_total_buffer_size() < 12 * len(records)  # 8 of them for the value
    alone = records.where(level="layer", quantity="norm", name="layer.3")
    assert alone.distinct("step") == list(range(2001))
    totals = records.series("total_growth")[1]
    growth = records.series("growth")[1]
    np.testing.assert_allclose(totals, np.cumsum(growth), rtol=1e-9)  # across chunks of the log


def test_only_the_levels_that_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "EXPORT_BYTES", 0)
    long_log(tmp_path / "run", 5)
    whole = normgrowth.load(tmp_path / "run").records
    some = normgrowth.load(tmp_path / "run", levels=["model", "layer"]).records
    wanted = {
        row for row in map(str, whole.to_rows()) if "'level': 'model'" in row or "'level': 'layer'" in row
    }
    assert set(map(str, some.to_rows())) == wanted
    norms = normgrowth.load(tmp_path / "run", levels={"model": None, "tensor": ["norm"]}).records
    assert norms.where(level="tensor").distinct("quantity") == ["norm"]
    assert len(norms.where(level="model")) == len(whole.where(level="model"))


@pytest.mark.parametrize("verb", ["fit", "dynamics", "page", "plot"])
def test_verbs_do_not_read_the_quantities_of_tensors(verb, tmp_path, monkeypatch):
    """And return the same as for a trace with all rows."""
    from normgrowth.cli.main import main
    from normgrowth.report.page.collect import collect

    monkeypatch.setattr(step_log, "EXPORT_BYTES", 0)
    run = tmp_path / "run"
    long_log(run, 12)
    whole = normgrowth.load(run)
    read, plain = [], log_reader.read_run
    monkeypatch.setattr(log_reader, "read_run", lambda *given: read.append(plain(*given)) or read[-1])
    if verb == "fit":
        assert normgrowth.fit(run, bootstrap=0)["sqrt"].r2 == normgrowth.fit(whole, bootstrap=0)["sqrt"].r2
    elif verb == "dynamics":
        found, wanted = normgrowth.dynamics(run), normgrowth.dynamics(whole)
        assert found.uniformity == wanted.uniformity
        assert_equal(found.records, wanted.records)
    elif verb == "page":
        shown = collect([run])[0].result.records
        for level in ("model", "layer", "role"):
            assert_equal(shown.where(level=level), whole.records.where(level=level))
    else:
        assert main(["plot", str(run), "-o", str(tmp_path / "figures"), "--formats", "svg"]) == 0
        drawn = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
        assert len(drawn) >= len(whole.plot.names)
    assert len(read) == 1
    tensors = read[0].records.where(level="tensor")
    assert set(tensors.distinct("quantity")) <= {"norm", "nonfinite"}


def test_fit_names_all_levels_of_a_log(tmp_path):
    long_log(tmp_path / "run", 5)
    with pytest.raises(InputError, match=r"known levels: tensor, layer, layer_matrices, role, part, model"):
        normgrowth.fit(tmp_path / "run", level="head")
