"""Output folders of earlier versions: each is loaded as the type of its verb, with the numbers that it holds."""

from pathlib import Path

import pytest
from own_folders import make_sweep, make_train, run

import normgrowth
from normgrowth.errors import FolderMismatch, SchemaError
from normgrowth.records import Records
from normgrowth.workspace import read_json_object, write_json

KEPT = Path(__file__).parent.parent / "docs" / "records"
TYPES = {
    "figure2": normgrowth.Saturation,
    "figure4": normgrowth.Scaling,
    "minilm": normgrowth.Saturation,
    "t5_initialization": normgrowth.Saturation,
    "training": normgrowth.Saturation,
    "decay/adamw": normgrowth.Sweep,
    "decay/adamw-default": normgrowth.Sweep,
    "decay/sgd": normgrowth.Sweep,
}
LAB = [f"lab/{path.name}" for path in sorted((KEPT / "lab").iterdir())]


def numbers(records):
    """Every number with what it is of, in an order of its own; scales are rows of earlier versions, columns now."""
    columns = ("level", "name", "layer", "role", "quantity", "reference", "value")
    rows = zip(*(records.table[name].to_pylist() for name in columns), strict=True)
    return sorted(repr(row) for row in rows if row[columns.index("quantity")] != "scale")


def test_every_folder_is_here():
    found = {path.parent.relative_to(KEPT).as_posix() for path in KEPT.rglob("records.parquet")}
    assert found == {*TYPES, *LAB}


@pytest.mark.parametrize("name", TYPES)
def test_it_is_loaded_with_the_same_numbers(name, tmp_path):
    found = normgrowth.load(KEPT / name)
    assert type(found) is TYPES[name]
    assert numbers(found.records) == numbers(Records.read(KEPT / name))
    again = normgrowth.load(found.save(tmp_path / "out"))
    assert type(again) is type(found)
    assert again.to_json() == found.to_json()
    assert str(again) == str(found)


@pytest.mark.parametrize("name", LAB)
def test_records_of_several_measurements_are_refused_but_their_parts_are_read(name):
    with pytest.raises(SchemaError, match=r"Records\.read.*Trace\.from_records") as caught:
        normgrowth.load(KEPT / name)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.place == "kind"
    records = Records.read(KEPT / name)
    run = records.where(run=records.distinct("run")[0])
    found = normgrowth.Trace.from_records(run)
    assert numbers(found.records) == numbers(run)
    steps, norms = run.series("norm")
    assert found.steps == tuple(steps.tolist())
    assert found.matrix("norm", by="model").values[:, 0].tolist() == norms.tolist()


def test_scales_and_seeds_of_figure_4_are_columns():
    earlier, found = Records.read(KEPT / "figure4"), normgrowth.load(KEPT / "figure4")
    assert isinstance(found, normgrowth.Scaling)
    assert len(found.networks) == len(earlier.distinct("run")) == 18
    for one in found.networks:
        rows = earlier.where(run=f"{one.run}, seed {one.seed}")
        for level, quantity in (("model", "scaling_error"), ("layer", "cosine_saturated")):
            matrix = found.matrix(quantity, level, run=one.run, seed=one.seed)
            assert matrix.steps.tolist() == rows.series("scale")[1].tolist()
            assert (matrix.values == rows.matrix(quantity, level=level).values).all()


@pytest.mark.usefixtures("one_thread")
def test_a_run_with_settings_json_is_resumed(tmp_path):
    """Earlier versions wrote settings.json instead of request.json, and `kind` instead of `network`."""
    folder = tmp_path / "run"
    make_train(folder)
    request = read_json_object(folder / "request.json")["request"]
    earlier = {"kind" if name == "network" else name: value for name, value in request.items()}
    del earlier["hold"]  # a setting that is newer than the folder
    write_json(folder / "settings.json", earlier)
    (folder / "request.json").unlink()
    before = (folder / "best/model.safetensors").stat().st_mtime_ns
    make_train(folder)
    assert (folder / "best/model.safetensors").stat().st_mtime_ns == before  # nothing was trained
    assert read_json_object(folder / "request.json")["request"] == request
    for name in ("settings.json", "hold"):
        (folder / "request.json").unlink()
        if name == "hold":
            write_json(folder / "settings.json", {**earlier, "schedule": "inverse_sqrt", "hold": 3})
        code, _, said = run("train", "dyck2", "--lr", "0.5", "-o", folder)
        assert code == 2
        assert "lr 0.5" in said
        assert ("hold 3" in said) == (name == "hold")
        write_json(folder / "request.json", {"kind": "run", "request": {}, "facts": {}})


@pytest.mark.usefixtures("one_thread")
def test_a_sweep_with_sweep_json_uses_its_cells(tmp_path):
    folder = tmp_path / "sweep"
    make_sweep(folder)
    request = read_json_object(folder / "request.json")["request"]
    (folder / "request.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    for earlier in (request, {}):  # the first versions wrote no request
        renamed = {"kind" if name == "network" else name: value for name, value in earlier.items()}
        write_json(folder / "sweep.json", {"format": 1, "request": renamed})
        make_sweep(folder)
        assert read_json_object(folder / "request.json")["request"] == request
        assert {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()} == before
        (folder / "request.json").unlink()
    write_json(folder / "sweep.json", {"format": 1, "request": {**request, "seed": 1}})
    with pytest.raises(FolderMismatch) as caught:
        make_sweep(folder)
    assert (caught.value.found["seed"], caught.value.wanted["seed"]) == (1, 0)
