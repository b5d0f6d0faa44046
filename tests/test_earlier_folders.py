"""Output folders of earlier versions: each is loaded as the type of its verb, with the numbers that it holds."""

from pathlib import Path

import pytest

import normgrowth
from normgrowth.errors import SchemaError
from normgrowth.records import Records

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
