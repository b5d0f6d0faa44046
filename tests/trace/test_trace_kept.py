"""What was measured stays: other requests and series are refused, pruned and moved checkpoints lose nothing."""

import os
import random
import shutil
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from range_server import RangeServer
from safetensors.torch import save_file
from synthetic_series import moved, tiny_state, walk, write_series

from normgrowth import InputError, Records, SeriesWarning, lint, load, trace
from normgrowth.engine import Threads
from normgrowth.errors import CheckpointChanged, FolderMismatch
from normgrowth.serialization.checksums import from_parquet, to_parquet
from normgrowth.trace.output.store import Store
from normgrowth.trace.plan import references
from normgrowth.trace.request import run_name
from normgrowth.workspace import read_json_object

quiet = pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")


def rows(records, steps=None):
    """Every number by what it is of; NaN as its bits."""
    table = records.table.to_pydict()
    keys = zip(*(table[c] for c in ("step", "level", "name", "quantity", "reference")), strict=True)
    bits = np.array(table["value"], np.float64).view(np.int64).tolist()
    return {key: value for key, value in zip(keys, bits, strict=True) if steps is None or key[0] in steps}


def contents(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "moments").iterdir()}


def prune(series, *steps):
    for step in steps:
        (series / f"step_{step}.safetensors").unlink()


# --- another request, another series ------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found", "wanted"),
    [
        ({"include": "all"}, {"include": "blocks"}, {"include": "all"}),
        ({"select": "mlp"}, {"select": None}, {"select": "mlp"}),
        ({"exclude": "mlp"}, {"exclude": None}, {"exclude": "mlp"}),
        ({"lags": (2,)}, {"lags": []}, {"lags": [2]}),
        ({"first": False}, {"first": True}, {"first": False}),
    ],
)
def test_another_request_is_refused_and_can_overwrite(tmp_path, options, found, wanted):
    series, out = write_series(tmp_path / "series", walk(4)), tmp_path / "out"
    trace(series, out)
    before = contents(out)
    with pytest.raises(FolderMismatch) as caught:
        trace(series, out, **options)
    assert caught.value.found == {"kind": "trace", **found}
    assert caught.value.wanted == {"kind": "trace", **wanted}
    assert contents(out) == before
    replaced = trace(series, out, overwrite=True, **options).records
    assert rows(replaced) == rows(trace(series, **options).records) == rows(Records.read(out))


@pytest.mark.parametrize("same_steps", [True, False])
def test_another_series_is_refused_and_names_both(tmp_path, same_steps):
    one, out = write_series(tmp_path / "one", walk(4)), tmp_path / "out"
    other = write_series(tmp_path / "other", walk(4, seed=50), every=100 if same_steps else 33)
    prune(other, 0)  # which both have
    trace(one, out)
    before = contents(out)
    with pytest.raises(FolderMismatch) as caught:
        trace(other, out)
    assert caught.value.found["source"] == str(one)
    assert caught.value.wanted["source"] == str(other)
    assert contents(out) == before
    assert rows(trace(other, out, overwrite=True).records) == rows(trace(other).records)


def test_another_model_is_refused(tmp_path):
    one, out = write_series(tmp_path / "one", walk(3)), tmp_path / "out"
    trace(one, out)
    before = contents(out)
    for options in ({"layers": 3}, {"width": 16}):
        with pytest.raises(FolderMismatch):
            trace(write_series(tmp_path / "other", walk(3, **options)), out)
    assert contents(out) == before


def test_lint_run_name_and_tokens_may_change_and_are_remembered(tmp_path):
    series, out = write_series(tmp_path / "series", walk(3)), tmp_path / "out"
    trace(series, out, lint=False)
    measured = stamps(out)
    named = trace(series, out, run="gpt", tokens_per_step=2048, lint=False).records
    again = trace(series, out, lint=False).records
    assert rows(again) == rows(named)
    assert again.distinct("run") == ["gpt"]
    assert stamps(out) == measured


def test_a_folder_without_its_request_is_refused_and_stays(tmp_path):
    series, out = write_series(tmp_path / "series", walk(3)), tmp_path / "out"
    expected = rows(trace(series, out).records)
    (out / "request.json").unlink()
    before = contents(out)
    for options in ({}, {"include": "all"}):
        with pytest.raises(FolderMismatch):
            trace(series, out, **options)
    with pytest.raises(FolderMismatch):
        trace(write_series(tmp_path / "other", walk(3, seed=9)), out)
    assert contents(out) == before
    assert rows(trace(series, out, overwrite=True).records) == expected


def test_a_failure_to_overwrite_with_keeps_what_was_there(tmp_path):
    series, out = write_series(tmp_path / "series", walk(3)), tmp_path / "out"
    trace(series, out)
    before = contents(out)
    for source, options in ((tmp_path / "typo", {}), (series, {"select": "typo"})):
        with pytest.raises(InputError):
            trace(source, out, overwrite=True, **options)
        assert contents(out) == before


# --- pruned -------------------------------------------------------------------------------------


@quiet
def test_steps_stay_when_their_checkpoints_are_gone(tmp_path):
    states, series, out = walk(34), tmp_path / "series", tmp_path / "out"
    write_series(series, states[:30])
    full = trace(series, out, lags=(2,)).records
    write_series(tmp_path / "rest", states)
    prune(series, *range(0, 2200, 100))
    for step in range(3000, 3400, 100):
        shutil.copy2(tmp_path / "rest" / f"step_{step}.safetensors", series)
    with pytest.warns(SeriesWarning) as said:
        result = trace(series, out, lags=(2,))
    records = result.records
    measured = range(0, 3000, 100)
    assert rows(records, measured) == rows(full)
    expected = rows(trace(tmp_path / "rest", lags=(2,)).records, range(3000, 3400, 100))
    found = rows(records, range(3000, 3400, 100))
    gone = {key for key in expected if key[4] == "first"}
    assert found.keys() == expected.keys() - gone
    for key, bits in found.items():  # fewer comparisons at a time may round the last bit otherwise
        one, other = np.array([bits, expected[key]]).view(np.float64)
        assert one == pytest.approx(other, rel=1e-12)
    notes = [str(warning.message) for warning in said]
    assert any(note.startswith("22 of 34 steps") for note in notes)
    assert any(note.startswith("4 steps have no comparison with their first") for note in notes)
    assert result.steps == tuple(range(0, 3400, 100))
    assert rows(trace(series, out, lags=(2,)).records) == rows(records)  # and stays so


@quiet
def test_all_checkpoints_are_gone_and_new_ones_came(tmp_path):
    states, series, out = walk(6), tmp_path / "series", tmp_path / "out"
    write_series(series, states[:3])
    full = trace(series, out).records
    write_series(series, states)
    prune(series, 0, 100, 200)
    result = trace(series, out)
    records = result.records
    assert rows(records, (0, 100, 200)) == rows(full)
    assert list(records.series("norm")[0]) == [0, 100, 200, 300, 400, 500]
    assert list(records.series("cosine")[0]) == [100, 200, 400, 500]  # 300 is not compared with another
    assert list(records.series("cosine", reference="first")[0]) == [100, 200]
    assert list(records.series("total_growth")[0]) == [100, 200]  # no sum over an unknown interval
    assert sum("no comparison" in note for note in result.notes) == 2


@quiet
def test_a_step_that_comes_late_is_compared_with_what_is_there(tmp_path):
    states, series, out = walk(5), tmp_path / "series", tmp_path / "out"
    write_series(series, states)
    shutil.move(series / "step_200.safetensors", tmp_path / "late.safetensors")
    trace(series, out)
    shutil.move(tmp_path / "late.safetensors", series / "step_200.safetensors")
    prune(series, 300)  # was compared with 100, which is not its previous checkpoint any more
    records = trace(series, out).records
    assert list(records.series("norm")[0]) == [0, 100, 200, 300, 400]
    assert list(records.series("cosine")[0]) == [100, 200, 400]
    assert list(records.series("cosine", reference="first")[0]) == [100, 200, 300, 400]


@quiet
def test_findings_stay_when_checkpoints_are_gone(tmp_path):
    states, series, out = walk(10), tmp_path / "series", tmp_path / "out"
    states[5] = tiny_state(99)
    write_series(series, states[:8])
    faults = [f for f in trace(series, out).findings or () if f.severity == "fault"]
    assert [(f.kind, f.step) for f in faults] == [("run", 500)]
    write_series(tmp_path / "more", states)
    prune(series, *range(0, 800, 100))
    for step in (800, 900):
        shutil.copy2(tmp_path / "more" / f"step_{step}.safetensors", series)
    found = trace(series, out)
    assert [f for f in found.findings or () if f.severity == "fault"] == faults
    assert not any("without integrity checks" in note for note in found.notes)
    expected = lint(tmp_path / "more", include="blocks")
    assert [f.kind for f in expected] == [f.kind for f in found.findings or ()]


@quiet
def test_a_stranger_after_a_gap_is_found(tmp_path):
    states, series, out = walk(10), tmp_path / "series", tmp_path / "out"
    write_series(series, states[:6])
    trace(series, out)
    prune(series, *range(0, 600, 100))
    states[7] = tiny_state(99)
    write_series(tmp_path / "more", states)
    for step in range(600, 1000, 100):
        shutil.copy2(tmp_path / "more" / f"step_{step}.safetensors", series)
    found = trace(series, out).findings
    assert [(f.kind, f.step) for f in found or () if f.severity == "fault"] == [("run", 700)]


@quiet
def test_a_remote_series_that_was_pruned(tmp_path):
    states, series, out = walk(7), tmp_path / "series", tmp_path / "out"
    write_series(series, states)
    whole = trace(series, run="x").records
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for step in (500, 600):
        (series / f"step_{step}.safetensors").rename(hidden / f"step_{step}.safetensors")
    with RangeServer(series) as server:
        trace(server.url, out, run="x")
        prune(series, 0, 100, 200, 300)
        for path in hidden.iterdir():
            path.rename(series / path.name)
        records = trace(server.url, out).records
    assert rows(records, range(0, 500, 100)) == rows(whole, range(0, 500, 100))
    assert list(records.series("cosine")[0]) == [100, 200, 300, 400, 500, 600]
    assert list(records.series("cosine", reference="first")[0]) == [100, 200, 300, 400]
    np.testing.assert_array_equal(records.series("cosine")[1], whole.series("cosine")[1])


@quiet
def test_a_hub_series_that_was_pruned(tmp_path):
    from hub_server import HubServer

    folders, out = {}, tmp_path / "out"
    for i, state in enumerate(walk(5)):
        folder = folders[f"step{i * 10}"] = tmp_path / "hub" / f"step{i * 10}"
        folder.mkdir(parents=True)
        save_file(state, folder / "model.safetensors")
    whole = trace(tmp_path / "hub", run="x").records
    with HubServer({"org/tiny": {name: folders[name] for name in ("step0", "step10", "step20")}}) as server:
        trace("hf://org/tiny@step*", out, endpoint=server.endpoint, run="x")
    with HubServer({"org/tiny": {name: folders[name] for name in ("step20", "step30", "step40")}}) as server:
        records = trace("hf://org/tiny@step*", out, endpoint=server.endpoint).records
    for quantity in ("norm", "cosine", "total_growth"):
        np.testing.assert_array_equal(records.series(quantity), whole.series(quantity))
    assert list(records.series("cosine", reference="first")[0]) == [10, 20]


# --- moved, copied, restarted -------------------------------------------------------------------


def test_a_folder_that_was_moved_is_not_measured_again(tmp_path, monkeypatch):
    series, out = write_series(tmp_path / "series", walk(4)), tmp_path / "out"
    expected = rows(trace(series, out).records)
    measured = stamps(out)
    series.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    for source in ("elsewhere", tmp_path / "elsewhere", str(tmp_path / "elsewhere" / "step_*.safetensors")):
        records = trace(source, out).records
        assert rows(records) == expected
        assert records.distinct("run") == ["series"]
    assert stamps(out) == measured
    assert read_json_object(out / "request.json")["facts"]["where"].startswith(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("how", ["copied", "saved again", "pytorch"])
def test_the_same_weights_in_other_files_are_the_same_series(tmp_path, how):
    states, out = walk(4), tmp_path / "out"
    series, other = write_series(tmp_path / "series", states), tmp_path / "other"
    expected = rows(trace(series, out).records)
    if how == "copied":
        shutil.copytree(series, other, copy_function=shutil.copy)
    elif how == "saved again":
        write_series(series, states)
        other = series
    else:
        other.mkdir()
        for i, state in enumerate(states):
            torch.save({"model": state, "step": 100 * i}, other / f"step_{100 * i}.pt")
    assert rows(trace(other, out).records) == expected
    after = stamps(out)
    assert rows(trace(other, out).records) == expected
    assert stamps(out) == after  # known by their new files now


def test_changed_files_are_read_again_in_stripes_too(tmp_path):
    states, out = walk(4), tmp_path / "out"
    series = write_series(tmp_path / "series", states)
    expected = rows(trace(series, out).records)
    write_series(series, states)
    with closing(Threads(2)) as engine:
        assert rows(trace(series, out, engine=engine).records) == expected
        write_series(series, walk(4, seed=70))
        with pytest.raises(CheckpointChanged):
            trace(series, out, engine=engine)


@pytest.mark.parametrize("moved_too", [False, True])
def test_a_run_restarted_into_the_same_folder_is_no_mixture(tmp_path, moved_too):
    states, out = walk(5), tmp_path / "out"
    series = write_series(tmp_path / "series", states[:4])
    expected = rows(trace(series, out).records)
    before = contents(out)
    restarted = [*states[:2], *walk(5, seed=70)[2:]]
    write_series(series, restarted)
    if moved_too:
        series = series.rename(tmp_path / "elsewhere")
        with pytest.raises(FolderMismatch):
            trace(series, out)
    else:
        with pytest.raises(CheckpointChanged, match="step 200") as caught:
            trace(series, out)
        assert caught.value.step == 200
    assert contents(out) == before
    assert rows(Records.read(out)) == expected


@quiet
def test_a_checkpoint_that_could_not_be_read_is_measured_when_it_can(tmp_path):
    states, series, out = walk(4), tmp_path / "series", tmp_path / "out"
    write_series(series, states)
    path = series / "step_200.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])  # still being written
    with pytest.raises(InputError):
        trace(series, out)
    path.write_bytes(whole)
    assert rows(trace(series, out).records) == rows(trace(series).records)


# --- damage -------------------------------------------------------------------------------------


def flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@quiet
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_never_change_records(tmp_path, seed):
    """Of every file that is kept: measured again, or an error; never other numbers."""
    series, out = write_series(tmp_path / "series", walk(4)), tmp_path / "out"
    expected = trace(series, out)
    whole, rng = contents(out), random.Random(seed)
    again = 0
    for _ in range(40):
        path = out / rng.choice(sorted(whole))
        flip(path, rng)
        try:
            found = trace(series, out)
        except InputError:
            found = load(out) if path.name == "request.json" else None
        if found is not None:
            again += path.parent.name == "moments"
            assert rows(found.records) == rows(expected.records)
            assert found.findings == expected.findings
        for name, content in whole.items():
            (out / name).write_bytes(content)
    assert again > 10


def without(column):
    return lambda table: table.drop_columns([column])


def with_type(column, kind):
    def changed(table):
        at = table.schema.get_field_index(column)
        return table.set_column(at, column, table[column].cast(kind, safe=False))

    return changed


def with_null(column):
    def changed(table):
        values = table[column].to_pylist()
        nulled = pa.array([None, *values[1:]], table.schema.field(column).type)
        return table.set_column(table.schema.get_field_index(column), column, nulled)

    return changed


@quiet
@pytest.mark.parametrize(
    "change",
    [
        *map(without, ["square", "look:sketch", "look:stored", "look:start", "look:dtype", "name"]),
        with_type("nonfinite", pa.float64()),
        with_type("square", pa.decimal128(38, 10)),
        with_type("largest", pa.string()),
        *map(with_null, ["square", "numel", "name"]),
    ],
)
def test_stored_sums_of_another_shape_are_measured_again(tmp_path, change):
    """The checksum is right, but the columns are not those of a trace."""
    series, out = write_series(tmp_path / "series", walk(4)), tmp_path / "out"
    expected = trace(series, out)
    for path in sorted((out / "moments").iterdir()):
        whole = path.read_bytes()
        path.write_bytes(to_parquet(change(from_parquet(whole)[0]), use_dictionary=False)[0])
        found = trace(series, out)
        assert rows(found.records) == rows(expected.records)
        assert found.findings == expected.findings
        assert path.read_bytes() == whole


def test_samples_are_kept_as_arrays(tmp_path):
    trace(write_series(tmp_path / "series", walk(3)), tmp_path / "out")
    for stored in Store(tmp_path / "out").load().values():
        parts = [*stored.sample["sketch"], *stored.sample.get("origin", [])]
        assert len(parts) >= len(stored.names)
        assert {type(part) for part in parts} == {np.ndarray}
        assert {part.dtype for part in stored.sample["sketch"]} == {np.dtype(np.float32)}


@quiet
def test_flipped_bits_in_stripes_are_noticed(tmp_path, monkeypatch):
    store, rng = Store(tmp_path), random.Random(0)
    result = {"rows:0": np.arange(12.0).reshape(2, 6), "buffer": np.array(["", "mask"])}
    store.begin_stripes(["a", "b"], ["a", "b"])
    store.save_stripe("key", result)
    for name in ("key.npz", "steps.json"):
        path = tmp_path / "stripes" / name
        whole = path.read_bytes()
        for _ in range(100):
            flip(path, rng)
            if name == "key.npz":
                assert store.load_stripe("key") is None
            else:
                assert store.begin_stripes(["a"], ["a", "b"]) in (["a"], ["a", "b"])
            path.write_bytes(whole)
    assert all(np.array_equal(store.load_stripe("key")[name], result[name]) for name in result)


@quiet
def test_damage_of_a_step_whose_checkpoint_is_gone_is_said(tmp_path):
    series, out = write_series(tmp_path / "series", walk(6)), tmp_path / "out"
    whole = trace(series, out).records
    prune(series, 0, 100, 200)
    flip(out / "moments" / "step-000000100.parquet", random.Random(1))
    for _ in range(2):
        result = trace(series, out)
        records = result.records
        assert any("1 steps are lost" in note for note in result.notes)
        assert list(records.series("norm")[0]) == [0, 200, 300, 400, 500]
        assert list(records.series("cosine")[0]) == [200, 300, 400, 500]  # with those that were previous
        totals = {key: value for key, value in rows(whole).items() if not key[3].startswith("total_")}
        found = rows(records)
        assert found == {key: value for key, value in totals.items() if key[0] != 100}
    assert rows(Records.read(out)) == found


# --- whatever happens ---------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sets(st.integers(0, 11), min_size=1, max_size=5)),
        st.tuples(st.just("prune"), st.sets(st.integers(0, 11), max_size=4)),
        st.tuples(st.just("move"), st.none()),
        st.tuples(st.just("kill"), st.integers(0, 3)),
        st.tuples(st.just("trace"), st.none()),
    ),
    max_size=10,
)
STATES = [{"h.0.mlp.weight": torch.full((3, 4), 1.0)}]
for number in range(1, 12):
    STATES.append(moved(STATES[-1], number))


@quiet
@given(events=EVENTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_events_gives_the_numbers_of_the_whole_series(tmp_path_factory, events):
    """Every comparison that was possible at some time while its neighbors were known is there, and no other."""
    folder = tmp_path_factory.mktemp("events")
    series, out, moves = folder / "series0", folder / "out", 0
    write_series(folder / "all", STATES, every=1)
    series.mkdir()
    known: set[int] = set()  # steps that were measured
    made: set[tuple[int, int]] = set()  # comparisons that were made
    save = Store.save
    records = None

    def run(at_most=None):
        nonlocal records
        there = {int(path.stem.removeprefix("step_")) for path in series.iterdir()}
        if not there or (known and moves_since and not there & known):
            return
        saved = []

        def counting(store, stored):
            if at_most is not None and len(saved) >= at_most:
                raise KeyboardInterrupt
            save(store, stored)
            saved.append(stored.step)
            known.add(stored.step)
            made.update((stored.step, other) for other in stored.pairs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "save", counting)
            try:
                records = trace(series, out, lags=(2,), run="x", workers=1).records
            except KeyboardInterrupt:
                return
        steps = sorted(known)
        assert steps == sorted(known | there)
        whole = folder / f"whole{len(list(folder.iterdir()))}"
        whole.mkdir()
        for step in steps:
            os.link(folder / "all" / f"step_{step}.safetensors", whole / f"step_{step}.safetensors")
        expected = trace(whole, lags=(2,), run="x", workers=1).records
        found = rows(records)
        everything = rows(expected)
        assert found.items() <= everything.items()
        for label in ("previous", "first", "lag2"):
            wanted = {
                steps[i]
                for i in range(len(steps))
                if label in (refs := references(i, (2,), True)) and (steps[i], steps[refs[label]]) in made
            }
            assert {key[0] for key in found if key[3:] == ("cosine", label)} == wanted
        assert {key[0] for key in found if key[3] == "norm"} == set(steps)
        possible = {
            (steps[i], steps[p])
            for i in range(len(steps))
            for p in references(i, (2,), True).values()
            if {steps[i], steps[p]} <= there
        }
        assert possible <= made

    moves_since = False
    for what, argument in [*events, ("trace", None)]:
        match what:
            case "add":
                for step in argument:
                    target = series / f"step_{step}.safetensors"
                    if not target.exists():
                        os.link(folder / "all" / target.name, target)
            case "prune":
                for step in argument:
                    (series / f"step_{step}.safetensors").unlink(missing_ok=True)
            case "move":
                moves, moves_since = moves + 1, True
                series = series.rename(folder / f"series{moves}")
            case "kill":
                run(argument)
            case "trace":
                run()
                moves_since = False


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("runs/gpt", "gpt"),
        ("runs/gpt/", "gpt"),
        ("runs/gpt/step_100.pt", "step_100.pt"),
        ("runs/gpt/step_*.safetensors", "gpt"),
        ("runs/*/last.pt", "runs"),
        (["runs/gpt/step_1.pt", "runs/gpt/step_2.pt"], "gpt"),
        (["runs/gpt/a/step_1.pt", "runs/gpt/b/step_*.pt"], "gpt"),
        (["runs/gpt"], "gpt"),
        ("https://user:secret@host/runs/gpt/?token=x", "gpt"),
        ("s3://bucket/runs/gpt/step_*.safetensors", "gpt"),
        ("hf://org/pythia@step*", "pythia"),
    ],
)
def test_what_a_run_is_called(tmp_path, monkeypatch, source, name):
    monkeypatch.chdir(tmp_path)
    assert run_name(source) == name


def test_a_run_in_this_folder_is_called_by_its_name(tmp_path, monkeypatch):
    series = write_series(tmp_path / "gpt", walk(2))
    monkeypatch.chdir(series)
    assert trace(".").records.distinct("run") == ["gpt"]
    assert trace("step_*.safetensors").records.distinct("run") == ["gpt"]


@quiet
def test_where_a_step_comes_from_is_known_when_its_checkpoint_is_gone(tmp_path):
    series, out = tmp_path / "series", tmp_path / "out"
    series.mkdir()
    for count, state in enumerate(walk(3), 1):
        torch.save({"model": state, "global_step": 500 * count}, series / f"ckpt-{count}.pt")
    assert trace(series, out).step_origins == ("stored",) * 3
    (series / "ckpt-1.pt").unlink()
    (series / "ckpt-2.pt").unlink()
    again = trace(series, out)
    assert again.steps == (500, 1000, 1500)
    assert again.step_origins == ("stored",) * 3
