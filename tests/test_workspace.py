"""Output folders: one request each, whoever comes; what is not ours stays."""

import numpy as np
import pyarrow as pa
import pytest

from normgrowth.errors import FolderLocked, FolderMismatch
from normgrowth.serialization.checksums import ARRAYS, COMPRESSED_ARRAYS, OBJECT, TABLE
from normgrowth.workspace import REQUEST, Cache, Workspace, read_json_object, replacing, tidy, write_json

REQUESTED = {"include": "blocks", "lags": (1, 10)}


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_request_resumes(tmp_path):
    with Workspace.open(tmp_path, "trace", REQUESTED, facts={"source": "a"}) as workspace:
        assert (tmp_path / REQUEST).is_file()  # from the start
        workspace.scratch.joinpath("download").touch()
    assert not (tmp_path / ".scratch").exists()
    before = contents(tmp_path)
    with Workspace.open(tmp_path, "trace", REQUESTED, facts={"source": "a"}) as workspace:
        assert workspace.found.facts == {"source": "a"}
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("kind", "request_", "found", "wanted"),
    [
        ("heads", REQUESTED, {"kind": "trace"}, {"kind": "heads"}),
        (
            "trace",
            {**REQUESTED, "include": "all"},
            {"kind": "trace", "include": "blocks"},
            {"kind": "trace", "include": "all"},
        ),
        ("trace", {"include": "blocks"}, {"kind": "trace", "lags": [1, 10]}, {"kind": "trace", "lags": None}),
    ],
)
def test_another_request_is_refused_and_touches_nothing(tmp_path, kind, request_, found, wanted):
    with Workspace.open(tmp_path, "trace", REQUESTED):
        (tmp_path / "records.parquet").write_bytes(b"measured")
    before = contents(tmp_path)
    with (
        pytest.raises(FolderMismatch, match="--overwrite") as caught,
        Workspace.open(tmp_path, kind, request_),
    ):
        raise AssertionError("must not be reached")
    assert (caught.value.folder, caught.value.found, caught.value.wanted) == (tmp_path, found, wanted)
    assert contents(tmp_path) == before


def test_overwrite_removes_the_old_result_and_nothing_else(tmp_path):
    with Workspace.open(tmp_path, "trace", REQUESTED):
        (tmp_path / "moments").mkdir()
        (tmp_path / "records.parquet").write_bytes(b"measured")
        (tmp_path / "moments" / "step-000000001.parquet").write_bytes(b"measured")
        (tmp_path / "moments" / "mine.txt").write_bytes(b"foreign")
        (tmp_path / "thesis.tex").write_bytes(b"foreign")
    with Workspace.open(tmp_path, "heads", {"text": "t"}, overwrite=True):
        kept = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        assert kept == {".lock", REQUEST, "mine.txt", "thesis.tex"}
    assert read_json_object(tmp_path / REQUEST)["kind"] == "heads"


@pytest.mark.parametrize("name", ["records.parquet", "claims.json", "steps/part-000.arrows"])
def test_results_without_a_request_are_refused_and_removed_by_overwrite(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"measured")
    (tmp_path / "thesis.tex").write_bytes(b"foreign")
    before = contents(tmp_path)
    for kind in ("trace", "reproduction", "run"):
        with (
            pytest.raises(FolderMismatch, match=r"earlier version.*--overwrite"),
            Workspace.open(tmp_path, kind, {}),
        ):
            pass
        assert before.items() <= contents(tmp_path).items()
    with Workspace.open(tmp_path, "trace", {}, overwrite=True):
        assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
            ".lock",
            REQUEST,
            "thesis.tex",
        }


def test_a_folder_with_other_files_only_may_be_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "records.json").write_text('{"someone": "else"}')
    with Workspace.open(tmp_path, "trace", {}, overwrite=True):
        pass
    assert (tmp_path / "notes.txt").is_file()
    assert (tmp_path / "records.json").is_file()


def test_two_commands_at_once_are_refused(tmp_path):
    with (
        Workspace.open(tmp_path, "trace", {}),
        pytest.raises(FolderLocked),
        Workspace.open(tmp_path, "trace", {}),
    ):
        pass


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"kind": 3, "request": {}, "facts": {}}', b"\xff"])
def test_a_damaged_request_is_refused_and_can_be_overwritten(tmp_path, damage):
    with Workspace.open(tmp_path, "trace", {}):
        pass
    (tmp_path / REQUEST).write_bytes(damage)
    with pytest.raises(FolderMismatch, match="damaged"), Workspace.open(tmp_path, "trace", {}):
        pass
    with Workspace.open(tmp_path, "trace", {}, overwrite=True):
        pass
    assert read_json_object(tmp_path / REQUEST)["kind"] == "trace"


def test_every_flipped_bit_of_a_json_file_is_noticed_or_harmless(tmp_path):
    path, content = tmp_path / "f.json", {"kind": "trace", "facts": {"run": "gpt", "tokens": 1.5}}
    write_json(path, content)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = read_json_object(path)
        except ValueError:
            continue
        assert {name: found[name] for name in content} == content


def test_what_a_kill_left_of_a_replaced_folder_is_removed_or_restored(tmp_path):
    for name in (".best.12.old", ".last.12.old", "last", ".new.12.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
    (tmp_path / ".mine.old").mkdir()  # without the number of a process: of another program
    tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.old", "best", "last"]
    assert (tmp_path / "best/weights").read_text() == ".best.12.old"
    assert (tmp_path / "last/weights").read_text() == "last"


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    target = tmp_path / "best"

    def replace(content, error=None):
        with replacing(target) as part:
            part.mkdir()
            (part / "weights").write_text(content)
            if error:
                raise error

    replace("one")
    replace("two")
    with pytest.raises(OSError, match="full"):
        replace("three", OSError("full"))
    assert contents(tmp_path) == {target.joinpath("weights").relative_to(tmp_path): b"two"}


@pytest.mark.parametrize(
    ("format_", "value"),
    [
        (OBJECT, {"a": [1, None], "b": "ü"}),
        (TABLE, pa.table({"a": [1.5, float("inf")], "b": ["x", "y"]}).replace_schema_metadata({"k": "v"})),
        (ARRAYS, {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yy"])}),
        (COMPRESSED_ARRAYS, {"a": np.zeros(100), "key": np.array("k")}),
    ],
    ids=["object", "table", "arrays", "compressed"],
)
def test_a_cache_returns_what_was_stored_and_nothing_that_is_damaged(tmp_path, format_, value):
    cache = Cache(tmp_path / "cache", format_)
    assert (cache.get("one"), cache.names()) == (None, [])
    cache.put("one", value)
    assert cache.names() == ["one"]
    found = cache.get("one")
    if isinstance(value, dict):
        assert found.keys() == value.keys()
        assert all(np.array_equal(found[name], value[name]) for name in value)
    else:
        assert (found, found.schema.metadata) == (value, value.schema.metadata)
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-2], whole[: len(whole) // 2], b"[]", b"\xff" * 40):
        path.write_bytes(damaged)
        assert cache.get("one") is None
    for byte in range(0, len(whole), max(1, len(whole) // 200)):
        flipped = bytearray(whole)
        flipped[byte] ^= 1
        path.write_bytes(flipped)
        # What is still read differs at most in bytes that carry nothing, such as the name of the checksum.
        again = cache.get("one")
        assert again is None or format_ is OBJECT or again == found
    cache.clear()
    assert not (tmp_path / "cache").exists()
    nowhere = Cache(None, format_)
    nowhere.put("one", value)
    assert (nowhere.get("one"), nowhere.names()) == (None, [])
