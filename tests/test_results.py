"""Results: typed fields survive the way to disk and back; tables, matrices, JSON."""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf, isnan, nan
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest

from normgrowth import results, trace
from normgrowth.cli.main import main
from normgrowth.errors import AmbiguousRows, FolderMismatch, InputError, SchemaError
from normgrowth.records import Block, Records
from normgrowth.results import Provenance, Result, load, load_all
from normgrowth.stored_result import StoredResult
from normgrowth.text import labels
from normgrowth.trace.result import Trace


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
    type_of = results.type_of
    monkeypatch.setattr(results, "type_of", lambda kind: Sample if kind == "sample" else type_of(kind))


def sample(**more) -> Sample:
    values = {"norm": np.arange(6.0).reshape(3, 2)}
    block = Block("layer", ["h.10", "h.2"], [10, 2], [None, None], [0, 5, 9], values)
    return Sample(records=Records.from_blocks("run", [block]), source="a folder", **more)


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
    stored = StoredResult.read(tmp_path)
    StoredResult(stored.records, {**stored.fields, "parts": {"a": {"name": 3}}}).write(tmp_path)
    with pytest.raises(SchemaError) as caught:
        load(tmp_path)
    assert "parts" in caught.value.place
    StoredResult(stored.records, {**stored.fields, "kind": "other"}).write(tmp_path)
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
    records = Records.from_blocks("run", [block])
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


def test_fields_are_the_same_plain_values_in_memory_and_on_disk(tmp_path):
    given = sample(parts={"a": Part("x", Fraction(1, 3), (1.0, 2.0))}, notes=("one", "two"))
    given.save(tmp_path)
    assert given.stored.fields == load(tmp_path).stored.fields == StoredResult.read(tmp_path).fields
    assert given.stored.fields["parts"]["a"]["numbers"] == [1.0, 2.0]
    assert given.stored.fields["notes"] == ["one", "two"]


def seeds(*numbers: int) -> Records:
    blocks = [
        Block(
            "layer", ["h.0"], [0], [None], [0, 5], {"norm": np.array([[1.0], [2.0]])}, constants={"seed": s}
        )
        for s in numbers
    ]
    return Records.from_blocks("run", blocks)


def test_a_matrix_of_several_seeds_is_refused():
    records = seeds(3, 4)
    with pytest.raises(
        AmbiguousRows, match=r"select a single seed with records\.where\(seed=\.\.\.\)"
    ) as caught:
        records.matrix("norm")
    assert caught.value.columns == ("seed",)
    assert records.where(seed=4).matrix("norm").values.tolist() == [[1.0], [2.0]]
    with pytest.raises(AmbiguousRows, match="duplicate") as caught:
        seeds(3, 3).matrix("norm")
    assert caught.value.columns == ()


def test_json_leaves_tensors_out_if_asked():
    block = Block("tensor", ["w"], [0], [None], [0, 5, 9], {"norm": np.ones((3, 1))})
    given = sample()
    both = replace(given, records=Records.joined([given.records, Records.from_blocks("run", [block])]))
    assert len(both.to_json()["records"]) == 9
    assert both.to_json(tensors=False)["records"] == given.to_json()["records"]


# --- Folders that hold no result, or one that cannot be read


def refused(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) == 1
    assert str(folder) in str(caught.value)
    return caught.value


def test_no_folder_a_file_and_an_empty_folder_are_refused(tmp_path):
    assert "no such folder" in str(refused(tmp_path / "nowhere"))
    assert "no normgrowth result" in str(refused(tmp_path))
    (tmp_path / "some.txt").write_text("a file")
    assert "a file" in str(refused(tmp_path / "some.txt"))
    sample().save(tmp_path / "below")
    assert "below" in str(refused(tmp_path))


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": b"{}", "model.safetensors": b"\0" * 64},
        {"records.json": b'{"kind": "trace"}'},
        {"records.parquet": b"PAR1 of another program PAR1"},
        {"claims.json": b"[1, 2]"},
        {"claims.json": b'{"claims": {"of": "another program"}}'},
        {"request.json": b"\xff"},
    ],
)
def test_folders_of_other_programs_are_refused(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    refused(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_table_of_another_program_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"price": [1.0]}), tmp_path / "records.parquet")
    refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"kind": "sam', b"[" * 10**5])
def test_damaged_fields_are_refused(tmp_path, content):
    sample().save(tmp_path)
    (tmp_path / "records.json").write_bytes(content)
    refused(tmp_path)


@pytest.mark.parametrize("kind", ["poem", "", None, 3, ["sample"], "a\nb" * 100])
def test_unknown_kinds_are_refused(tmp_path, kind):
    sample().save(tmp_path)
    stored = StoredResult.read(tmp_path)
    StoredResult(stored.records, {**stored.fields, "kind": kind}).write(tmp_path)
    error = refused(tmp_path)
    assert isinstance(error, SchemaError)
    assert error.place == "kind"


def test_a_result_of_a_later_version_is_refused_whatever_its_columns(tmp_path):
    sample().save(tmp_path)
    stored = StoredResult.read(tmp_path)
    assert stored.fields["schema"] == Sample.schema
    later = Sample.schema + 1
    StoredResult(
        Records(stored.records.table.drop_columns(["level"])), {**stored.fields, "schema": later}
    ).write(tmp_path)
    error = refused(tmp_path)
    assert isinstance(error, SchemaError)
    assert error.place == "schema"
    assert f"{later} is newer" in str(error)
    assert "upgrade" in str(error)
    with pytest.raises(SchemaError, match="upgrade"):
        Records.read(tmp_path)
    StoredResult(stored.records, {**stored.fields, "schema": "two"}).write(tmp_path)
    assert "expected an integer" in str(refused(tmp_path))


def test_claims_of_a_later_version_are_refused(tmp_path):
    content = '{"kind": "reproduction", "schema": 3, "claims": []}'
    (tmp_path / "claims.json").write_text(content, encoding="utf-8")
    assert "upgrade" in str(refused(tmp_path))


def test_a_matrix_of_an_unknown_quantity_or_level_names_those_that_exist():
    with pytest.raises(InputError, match="no nrom at level layer; available: norm"):
        sample().matrix("nrom")
    with pytest.raises(InputError, match="no level 'layr'; available: layer"):
        sample().matrix("norm", by="layr")
    two = Block("model", ["model"], [None], [None], [0], {"loss": np.ones((1, 1))})
    more = replace(sample(), records=Records.joined([sample().records, Records.from_blocks("run", [two])]))
    with pytest.raises(InputError, match="no loss at level layer; levels with it: model"):
        more.matrix("loss")
    with pytest.raises(InputError, match="only with another reference or scale"):
        sample().matrix("norm", reference="first")


def test_layers_are_whole_numbers_in_pandas():
    two = Block("model", ["model"], [None], [None], [0], {"norm": np.ones((1, 1))})
    frame = Records.joined([sample().records, Records.from_blocks("run", [two])]).to_pandas()
    assert str(frame["layer"].dtype) == "Int64"
    assert frame["layer"].tolist()[:2] == [10, 10]
    assert frame["layer"].isna().sum() == 1


def test_the_package_has_its_version():
    from importlib.metadata import version

    import normgrowth

    assert normgrowth.__version__ == version("normgrowth")


def test_labels_are_the_shortest_ends_that_differ():
    assert labels(["runs/a", "runs/b"]) == ["a", "b"]
    assert labels(["runs/a/norms", "runs/b/norms", "runs/c"]) == ["a/norms", "b/norms", "c"]
    assert labels(["runs/gpt/norms"]) == ["gpt/norms"]
    assert labels(["x/a/run", "y/a/run", "y/b/run"]) == ["x/a/run", "y/a/run", "b/run"]
    assert labels(["runs/a", "runs/a"]) == ["a", "a"]


@pytest.mark.parametrize(
    "words", [["fit"], ["compare", "-"], ["watch", "--once"], ["watch"], ["plot"], ["dynamics"]]
)
def test_commands_name_subfolders_with_results_and_similar_names(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    block = Block("model", ["model"], [None], [None], [0, 5], {"norm": np.array([[1.0], [2.0]])})
    Trace.from_records(Records.from_blocks("run", [block])).save("runs/first/norms")
    verb, *options = words

    def refused(folder: str) -> str:
        assert main([verb, folder, *[folder if option == "-" else option for option in options]]) == 2
        return capsys.readouterr().err

    assert "its subfolder norms has one: runs/first/norms" in refused("runs/first").replace("\\", "/")
    assert "did you mean runs/first?" in refused("runs/frist").replace("\\", "/")
    assert "no such" in refused("elsewhere")
    assert "did you mean" not in refused("elsewhere")


def test_a_series_that_does_not_exist_names_a_similar_one(tmp_path):
    (tmp_path / "runs-a").mkdir()
    with pytest.raises(InputError, match=r"no such file or folder; did you mean .*runs-a"):
        trace(tmp_path / "runs-aa")


def test_watch_waits_for_a_run_that_is_just_starting(tmp_path, monkeypatch, capsys):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("normgrowth.cli.watch.time.sleep", interrupt)
    assert main(["watch", str(tmp_path)]) == 0
    assert "waiting for the first step" in capsys.readouterr().out


def test_a_figure_without_data_says_what_it_needs():
    block = Block("model", ["model"], [None], [None], [0, 5], {"norm": np.array([[1.0], [2.0]])})
    with pytest.raises(InputError, match=r"'budget'; it needs .* every=1"):
        Trace.from_records(Records.from_blocks("run", [block])).plot.budget()
