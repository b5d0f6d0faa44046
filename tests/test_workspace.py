"""Output folders: one request each, whoever comes; what is not ours stays."""

import pytest

from normgrowth.errors import FolderLocked, FolderMismatch
from normgrowth.records import Block, Records
from normgrowth.stored_result import StoredResult
from normgrowth.workspace import REQUEST, Workspace, read_json, write_json

REQUESTED = {"include": "blocks", "lags": (1, 10)}


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def small_stored(fields):
    block = Block("model", ["model"], [None], [None], [0], {})
    return StoredResult(Records.from_blocks("run", [block]), fields)


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
    assert read_json(tmp_path / REQUEST)["kind"] == "heads"


def test_a_folder_from_before_is_judged_by_its_records(tmp_path):
    fields = {"command": "trace", "selection": {"include": "blocks", "select": None}, "lags": []}
    small_stored(fields).write(tmp_path)
    (tmp_path / REQUEST).unlink(missing_ok=True)
    with pytest.raises(FolderMismatch), Workspace.open(tmp_path, "saturation", {}):
        pass
    with pytest.raises(FolderMismatch), Workspace.open(tmp_path, "trace", {"include": "all", "lags": []}):
        pass
    with Workspace.open(tmp_path, "trace", {"include": "blocks", "lags": [], "first": True}):
        pass
    with (
        pytest.raises(FolderMismatch),
        Workspace.open(tmp_path, "trace", {"include": "blocks", "first": False}),
    ):
        pass


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
    assert read_json(tmp_path / REQUEST)["kind"] == "trace"


def test_every_flipped_bit_of_a_json_file_is_noticed_or_harmless(tmp_path):
    path, content = tmp_path / "f.json", {"kind": "trace", "facts": {"run": "gpt", "tokens": 1.5}}
    write_json(path, content)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = read_json(path)
        except ValueError:
            continue
        assert {name: found[name] for name in content} == content
