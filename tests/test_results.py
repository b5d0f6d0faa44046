"""Results: typed fields survive the way to disk and back; tables, matrices, JSON."""

from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, isnan, nan
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest

from normgrowth import results
from normgrowth.errors import FolderMismatch, InputError, SchemaError
from normgrowth.records import Block, Records
from normgrowth.results import Provenance, Result, load, load_all


@dataclass(frozen=True)
class Part:
    name: str
    degree: Fraction | None = None
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sample(Result):
    kind: ClassVar[str] = "sample"
    source: str
    verdict: Literal["yes", "no"] | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    folder: Path | None = None


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(results.KINDS, "sample", f"{__name__}:Sample")
    monkeypatch.setattr(results, "type_of", lambda kind: Sample)


def sample(**more) -> Sample:
    values = {"norm": np.arange(6.0).reshape(3, 2)}
    block = Block("layer", ["h.10", "h.2"], [10, 2], [None, None], [0, 5, 9], values)
    return Sample(records=Records.from_blocks("run", [block], {}), source="a folder", **more)


def test_fields_come_back_as_they_were(tmp_path):
    parts = {"a": Part("x", Fraction(3, 2), (1.0, inf, -inf)), "b": Part("y")}
    given = sample(
        verdict="yes", parts=parts, folder=Path("sub/x"), notes=("note",), provenance=Provenance.now()
    )
    assert given.save(tmp_path / "out") == tmp_path / "out"
    found = load(tmp_path / "out")
    assert type(found) is Sample
    for name in ("source", "verdict", "parts", "folder", "notes", "problems", "provenance"):
        assert getattr(found, name) == getattr(given, name)
    assert found.records.table.equals(given.records.table)
    assert [path.name for path, _ in load_all(tmp_path)] == ["out"]


def test_nan_survives(tmp_path):
    sample(parts={"a": Part("x", None, (nan, 1.0))}).save(tmp_path)
    numbers = load(tmp_path).parts["a"].numbers  # pyright: ignore[reportAttributeAccessIssue]
    assert isnan(numbers[0])
    assert numbers[1] == 1.0


def test_a_field_of_another_type_is_named(tmp_path):
    sample().save(tmp_path)
    records = Records.read(tmp_path)
    Records(records.table, {**records.made_by, "parts": {"a": {"name": 3}}}).write(tmp_path)
    with pytest.raises(SchemaError) as caught:
        load(tmp_path)
    assert "parts" in caught.value.place
    Records(records.table, {**records.made_by, "kind": "other"}).write(tmp_path)
    with pytest.raises(SchemaError) as caught:
        load(tmp_path)
    assert caught.value.place == "kind"


def test_another_result_is_not_overwritten(tmp_path):
    from synthetic_series import walk, write_series

    import normgrowth

    write_series(tmp_path / "series", walk(3))
    normgrowth.trace(tmp_path / "series", tmp_path / "out")
    with pytest.raises(FolderMismatch):
        sample().save(tmp_path / "out")
    sample().save(tmp_path / "out", overwrite=True)
    assert load(tmp_path / "out").kind == "sample"


def test_matrix_has_layers_by_number():
    found = sample().matrix("norm")
    assert found.names == ["h.2", "h.10"]
    assert found.values.tolist() == [[1, 0], [3, 2], [5, 4]]
    assert found.to_pandas().loc[9, "h.10"] == 4


def test_tables_of_pandas_and_polars_have_the_same_numbers():
    given = sample()
    assert given.to_pandas()["value"].tolist() == given.to_polars()["value"].to_list()


def test_json_has_no_nan():
    given = sample(parts={"a": Part("x", Fraction(1, 2), (nan, 2.0))}).to_json()
    assert given["parts"]["a"] == {"name": "x", "degree": "1/2", "numbers": [None, 2.0]}
    assert given["kind"] == "sample"
    assert len(given["records"]) == 6


def test_other_axes_are_columns(tmp_path):
    block = Block(
        "model", ["model"], [None], [None], [1.0, 10.0], {"cosine": np.array([[0.5], [0.9]])}, axis="scale"
    )
    records = Records.from_blocks("run", [block], {})
    records.write(tmp_path)
    table = Records.read(tmp_path).table
    assert table["scale"].to_pylist() == [1.0, 10.0]
    assert table["step"].null_count == 2
    found = records.matrix("cosine", level="model", axis="scale")
    assert found.steps.tolist() == [1.0, 10.0]


def test_a_matrix_is_an_array():
    matrix = sample().matrix("norm")
    np.testing.assert_array_equal(np.asarray(matrix), matrix.values)
    np.testing.assert_array_equal(np.log1p(matrix), np.log1p(matrix.values))


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: no records here \(no such folder\)"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"records\.parquet is missing"):
        load(tmp_path)
