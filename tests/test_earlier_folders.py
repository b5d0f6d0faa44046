"""The records of docs/ are typed results; folders of earlier versions are refused in one line and not overwritten."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from own_folders import make_sweep, make_train, run
from synthetic_series import walk, write_series

import normgrowth
from normgrowth.errors import FolderMismatch, InputError, SchemaError
from normgrowth.records import Records
from normgrowth.results import KINDS, load_all, type_of
from normgrowth.serialization.record_schema import SCHEMA
from normgrowth.stored_result import PAIRED, SIDECAR, StoredResult
from normgrowth.workspace import REQUEST, read_json_object, write_json

KEPT = Path(__file__).parent.parent / "docs" / "records"
LAB = sorted(path.name for path in (KEPT / "lab").iterdir())
DEMO = sorted(path.name for path in (KEPT / "demo" / "models").iterdir())
TYPES = {
    "figure2": normgrowth.Saturation,
    "figure4": normgrowth.Scaling,
    "minilm": normgrowth.Saturation,
    "t5_initialization": normgrowth.Saturation,
    "figure2_forms": normgrowth.Saturation,
    "training": normgrowth.Saturation,
    "decay/adamw": normgrowth.Sweep,
    "decay/adamw-default": normgrowth.Sweep,
    "decay/sgd": normgrowth.Sweep,
    **{f"lab/{name}": normgrowth.Run for name in LAB},
    **{f"lab/{name}/trace": normgrowth.Trace for name in LAB},
    **{f"lab/{name}/heads": normgrowth.Heads for name in LAB},
    **{
        f"lab/{name}/behavior": normgrowth.Behavior
        for name in LAB
        if (KEPT / "lab" / name / "behavior").is_dir()
    },
    **{f"demo/models/{name}": normgrowth.Run for name in DEMO},
    **{f"demo/models/{name}/trace": normgrowth.Trace for name in DEMO},
    **{f"demo/models/{name}/heads": normgrowth.Heads for name in DEMO},
    **{f"demo/models/{name}/behavior": normgrowth.Behavior for name in DEMO},
}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_folder_is_here():
    found = {path.parent.relative_to(KEPT).as_posix() for path in KEPT.rglob("records.parquet")}
    assert found == set(TYPES)
    assert len(LAB) == 13
    assert {path.relative_to(KEPT).as_posix() for path, _ in load_all(KEPT / "lab")} == {
        f"lab/{name}" for name in LAB
    }


@pytest.mark.parametrize("name", TYPES)
def test_it_is_a_typed_result_with_the_numbers_of_its_table(name, tmp_path):
    folder, fields = KEPT / name, read_json_object(KEPT / name / SIDECAR)
    assert fields["schema"] == SCHEMA
    assert type_of(fields["kind"]) is TYPES[name]
    assert not {"command", "made_by", "versions", "runs", "scope"} & set(fields)
    found = normgrowth.load(folder)
    assert type(found) is TYPES[name]
    assert found.records.table.num_rows == pq.read_metadata(folder / "records.parquet").num_rows > 0
    again = normgrowth.load(found.save(tmp_path / "out"))
    assert type(again) is type(found)
    assert again.to_json() == found.to_json()
    assert str(again) == str(found)


@pytest.mark.parametrize("name", LAB)
def test_a_language_model_has_its_run_its_trace_and_its_heads(name):
    run, trace, heads = (normgrowth.load(KEPT / "lab" / name / part) for part in ("", "trace", "heads"))
    assert isinstance(run, normgrowth.Run)
    assert isinstance(trace, normgrowth.Trace)
    assert isinstance(heads, normgrowth.Heads)
    assert {one.records.single_run() for one in (run, trace, heads)} == {name}
    assert run.evaluations[-1].step == run.steps == trace.steps[-1]
    assert run.test is not None
    steps, norms = trace.records.series("norm")
    assert trace.steps == tuple(steps.tolist())
    assert trace.matrix("norm", by="model").values[:, 0].tolist() == norms.tolist()
    (table,) = heads.tables
    assert len(table.names) == run.settings.layers * run.settings.heads
    assert set(heads.models[name].saturated_kinds) == set(table.names)


def test_scales_and_seeds_of_figure_4_are_columns():
    found = normgrowth.load(KEPT / "figure4")
    assert isinstance(found, normgrowth.Scaling)
    assert len({(one.run, one.seed) for one in found.networks}) == len(found.networks) == 18
    for one in found.networks:
        rows = found.records.where(run=one.run, seed=one.seed)
        for level, quantity in (("model", "scaling_error"), ("layer", "cosine_saturated")):
            matrix = found.matrix(quantity, level, run=one.run, seed=one.seed)
            own = rows.matrix(quantity, level=level, axis="scale")
            assert matrix.steps.tolist() == own.steps.tolist()
            assert (matrix.values == own.values).all()


def as_schema_1(folder):
    """The fields as earlier versions wrote them: a command, and neither kind nor schema."""
    fields = read_json_object(folder / SIDECAR)
    (folder / REQUEST).unlink(missing_ok=True)
    old = {key: value for key, value in fields.items() if key not in ("kind", "schema", "provenance")}
    write_json(folder / SIDECAR, {**old, "command": fields["kind"]})
    assert PAIRED in old


@pytest.mark.parametrize("schema", [None, 1])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in ("trace", "saturation", "run", "sweep")])
def test_a_folder_of_schema_1_is_refused_with_what_to_do(tmp_path, kind, schema):
    name = next(name for name, found in TYPES.items() if found.kind == kind)
    normgrowth.load(KEPT / name).save(tmp_path)
    as_schema_1(tmp_path)
    if schema is not None:
        write_json(tmp_path / SIDECAR, {**read_json_object(tmp_path / SIDECAR), "schema": schema})
    before = contents(tmp_path)
    for read in (normgrowth.load, Records.read, StoredResult.read):
        with pytest.raises(
            SchemaError, match=r"records\.json: schema: .*measure again.*--overwrite"
        ) as caught:
            read(tmp_path)
        assert len(str(caught.value).splitlines()) == 1
        assert caught.value.place == "schema"
    code, _, said = run("fit", tmp_path)
    assert code == 2
    assert "--overwrite" in said
    assert contents(tmp_path) == before


def test_claims_of_schema_1_are_refused_with_what_to_do(tmp_path):
    (tmp_path / "claims.json").write_text(json.dumps({"command": "reproduce", "claims": [], "stages": {}}))
    with pytest.raises(SchemaError, match=r"claims\.json: schema: .*--overwrite") as caught:
        normgrowth.load(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    before = contents(tmp_path)
    with pytest.raises(FolderMismatch, match="--overwrite"):
        normgrowth.reproduce(tmp_path, only=["norm-sqrt"])
    assert before.items() <= contents(tmp_path).items()


def test_a_folder_of_schema_1_is_measured_again_only_with_overwrite(tmp_path):
    source, out = write_series(tmp_path / "walk", walk(4)), tmp_path / "out"
    trace = normgrowth.trace(source, out)
    as_schema_1(out)
    before = contents(out)
    with pytest.raises(FolderMismatch, match="--overwrite") as caught:
        normgrowth.trace(source, out)
    assert len(str(caught.value).splitlines()) == 1
    assert contents(out) == before
    again = normgrowth.trace(source, out, overwrite=True)
    assert str(again.records.table.to_pylist()) == str(trace.records.table.to_pylist())  # NaN is NaN
    assert normgrowth.load(out).to_json() == again.to_json()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("make", "command"), [(make_train, "train"), (make_sweep, "sweep")])
def test_a_run_and_a_sweep_of_earlier_versions_are_not_resumed(tmp_path, make, command):
    """They wrote settings.json or sweep.json instead of request.json."""
    folder = tmp_path / command
    make(folder)
    request = read_json_object(folder / REQUEST)["request"]
    (folder / REQUEST).unlink()
    write_json(folder / {"train": "settings.json", "sweep": "sweep.json"}[command], request)
    before = contents(folder)
    with pytest.raises((InputError, AssertionError), match="--overwrite"):
        make(folder)
    for name in ("records.parquet", "records.json"):  # a run that was killed has none
        (folder / name).unlink()
    with pytest.raises((InputError, AssertionError), match="choose another folder"):
        make(folder)
    after = contents(folder)
    assert all(
        after[path] == content for path, content in before.items() if not path.name.startswith("records")
    )
