"""Series elsewhere: the same checkpoints in the same order as on this machine, from web servers and the hub."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hub_server import HubServer
from range_server import RangeServer
from synthetic_series import save_file, tiny_state, walk, write_series

from normgrowth import InputError, SeriesWarning, open_source, trace
from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint
from normgrowth.checkpoints.remote.retry import Failure
from normgrowth.checkpoints.remote.web import connections, website


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    connections._proxy.cache_clear()


def sharded(folder: Path, state: dict[str, torch.Tensor], parts: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names, weight_map = sorted(state), {}
    for i in range(parts):
        shard = f"model-{i + 1:05d}-of-{parts:05d}.safetensors"
        weight_map |= dict.fromkeys(names[i::parts], shard)
        save_file({name: state[name] for name in names[i::parts]}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def one_file(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors")
    return folder


def layouts(root: Path, kind: str) -> Path:
    states = walk(3)
    match kind:
        case "files":
            write_series(root, states)
        case "folders":
            for i, state in enumerate(states):
                one_file(root / f"checkpoint-{i * 10}", state)
                (root / f"checkpoint-{i * 10}" / "optimizer.pt").write_bytes(b"large")
                one_file(root / f"checkpoint-{i * 10}" / "part", state)  # part of that step
        case "shards":
            for i, state in enumerate(states):
                sharded(root / f"step {i * 10}%", state)
        case "trainer":
            for i, state in enumerate(states):
                (one_file(root / "abc"[i], state) / "trainer_state.json").write_text(
                    json.dumps({"global_step": 30 - i})
                )
        case "final":
            one_file(root, states[2])
            for i, state in enumerate(states):
                one_file(root / "logs" / "version_0" / f"step={i}", state)
        case "bare":
            for i, state in enumerate(states):
                save_file(state, root / f"{'abc'[i]}.safetensors")
        case "stored":
            for i, state in enumerate(states):
                save_file(state, root / f"{'cba'[i]}.safetensors", metadata={"step": str(i)})
    return root


@pytest.fixture
def root(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def told(series) -> tuple[list[int], list[str]]:
    return [entry.step for entry in series.entries], list(series.notes)


@pytest.mark.parametrize("kind", ["files", "folders", "shards", "trainer", "final", "bare", "stored"])
def test_the_same_series_as_on_this_machine(root, kind):
    local = open_source(layouts(root, kind))
    with RangeServer(root) as server:
        remote = open_source(server.url)
        steps, notes = told(remote)
        assert steps == [entry.step for entry in local.entries]
        places = [(server.url.rstrip("/"), str(root)), ("%20", " "), ("%25", "%")]
        for there, here in places:
            notes = [note.replace(there, here) for note in notes]
        assert notes == list(local.notes)
        for mine, its in zip(local, remote, strict=True):
            assert mine[:2] == its[:2]
            assert np.array_equal(mine[2], its[2])
        assert server.asked_twice() == 0
        again = open_source(server.url)
        assert [e.fingerprint for e in again.entries] == [e.fingerprint for e in remote.entries]


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("step_*.safetensors", [0, 100, 200]),
        ("step_[12]00.safetensors", [100, 200]),
        ("*/model.safetensors", [10, 20]),
        ("checkpoint-*", [10, 20]),
        ("**/model.safetensors", [10, 20, 30]),
        ("deep/*/model.safetensors", [30]),
        ("step_100.safetensors", [100]),
        ("checkpoint-10/model.safetensors", [10]),
        ("checkpoint-10", [10]),
        ("*", [0, 10, 20, 30, 100, 200]),
    ],
)
def test_patterns_and_single_addresses(root, pattern, steps):
    write_series(root, walk(3))
    for place in ("checkpoint-10", "checkpoint-20", "deep/checkpoint-30"):
        one_file(root / place, tiny_state())
    (root / "README.md").write_text("no weights")
    with RangeServer(root) as server:
        assert told(open_source(server.url + pattern))[0] == steps


def test_nothing_matches(root):
    write_series(root, walk(1))
    with RangeServer(root) as server:
        for address, why in (
            ("none_*", "nothing matches this pattern"),
            ("empty/", "there is no such file"),
            ("step_7.safetensors", "there is no such file"),
        ):
            with pytest.raises(InputError, match=why):
                open_source(server.url + address)


def test_several_addresses_and_files_of_this_machine(root, tmp_path):
    write_series(root, walk(3))
    shutil.move(root / "step_200.safetensors", tmp_path / "step_200.safetensors")
    with RangeServer(root) as server:
        parts = [f"{server.url}step_100.safetensors", tmp_path / "step_200.safetensors"]
        series = open_source([*parts, f"{server.url}step_0.safetensors"])
        assert told(series) == ([0, 100, 200], [])
        assert series.label.startswith(f"{server.url}step_100.safetensors, {tmp_path}")


def test_a_file_that_changes_has_another_fingerprint(root):
    write_series(root, walk(3))
    with RangeServer(root) as server:
        before = [entry.fingerprint for entry in open_source(server.url).entries]
        save_file(tiny_state(9), root / "step_100.safetensors")
        after = [entry.fingerprint for entry in open_source(server.url).entries]
        assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


@pytest.mark.parametrize("kind", ["files", "shards"])
def test_records_are_equal_to_the_bit(root, kind):
    layouts(root, kind)
    with warnings.catch_warnings(), RangeServer(root) as server:
        warnings.simplefilter("ignore", SeriesWarning)
        here, there = trace(root, run="x").records, trace(server.url, run="x").records
    for column in here.table.column_names:
        one, other = here.table[column].to_pylist(), there.table[column].to_pylist()
        assert [repr(x) for x in one] == [repr(x) for x in other]


# Indexes that lie


@pytest.mark.parametrize(
    "shard",
    [
        "http://evil/x.safetensors",
        "//evil/x.safetensors",
        "../x.safetensors",
        "%2e%2e/x.safetensors",
        "%2E%2e%2fx.safetensors",
        "a/%2e%2e/%2e%2e/x.safetensors",
        "..\\x.safetensors",
        "..%5cx.safetensors",
        "/etc/x.safetensors",
        "C:x.safetensors",
        "a\0.safetensors",
        "",
        3,
    ],
)
def test_an_index_that_leads_elsewhere(root, shard):
    sharded(root / "step_0", tiny_state())
    (root / "step_0" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    with RangeServer(root) as server:
        for address in (server.url, f"{server.url}step_0/model.safetensors.index.json"):
            with pytest.raises(InputError, match="a path outside its folder; refused"):
                open_source(address)
        assert not any(line.endswith("safetensors") for line in server.lines)


def test_an_index_that_names_what_is_not_there(root):
    folder = sharded(root / "step_0", tiny_state())
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": weight_map | {"lm_head.weight": "gone?.safetensors"}}))
    with RangeServer(root) as server:
        with pytest.raises(InputError, match=r"step_0: gone\?.safetensors: there is no such file"):
            open_source(server.url)
        index.write_text(json.dumps({"weight_map": weight_map | {"w": "model-00001-of-00002.safetensors"}}))
        with pytest.raises(InputError, match=r"lists tensor w in .*, which does not have it"):
            open_source(server.url).entries[0].open()
        index.unlink()
        with pytest.raises(InputError, match=r"model-00001-of-00002.safetensors: a shard"):
            open_source(server.url)


# Other formats are fetched


def test_a_pickle_is_fetched_and_removed(root, tmp_path):
    for i, state in enumerate(walk(2)):
        torch.save(state, root / f"step_{i}.pt")
    (tmp_path / "scratch").mkdir()
    with RangeServer(root) as server:
        series = open_source(server.url, scratch=tmp_path / "scratch")
        checkpoint = series.entries[1].open()
        assert not isinstance(checkpoint, RemoteCheckpoint)
        assert checkpoint.label == f"{server.url}step_1.pt"
        bits = checkpoint.dense("lm_head.weight").view(np.float32)
        assert np.array_equal(bits, walk(2)[1]["lm_head.weight"].flatten())
        assert len(list((tmp_path / "scratch").iterdir())) == 1
        checkpoint.close()
        assert list((tmp_path / "scratch").iterdir()) == []
        assert server.asked_twice() == 0
        server.fail("step_0", status=404)
        with pytest.raises(InputError, match="there is no such file"):
            series.entries[0].open()
        assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore::UserWarning")
def test_a_distributed_checkpoint_is_fetched(root):
    dcp.save(tiny_state(), checkpoint_id=root / "step-5", no_dist=True)
    with RangeServer(root) as server:
        series = open_source(server.url)
        assert told(series)[0] == [5]
        checkpoint = series.entries[0].open()
        bits = checkpoint.dense("lm_head.weight").view(np.float32)
        checkpoint.close()
    assert np.array_equal(bits, tiny_state()["lm_head.weight"].flatten())


# The hub


@pytest.fixture
def revisions(tmp_path):
    states = walk(3)
    folders = {f"step{i}": one_file(tmp_path / f"rev{i}", state) for i, state in enumerate(states[:2])}
    folders["step2"] = sharded(tmp_path / "rev2", states[2])
    return folders


def test_revisions_are_read_by_ranges(revisions, tmp_path):
    (tmp_path / "scratch").mkdir()
    with HubServer({"org/tiny": revisions}) as server:
        series = open_source("hf://org/tiny", endpoint=server.endpoint, scratch=tmp_path / "scratch")
        found = {}
        for entry in series.entries:
            checkpoint = entry.open()
            assert isinstance(checkpoint, RemoteCheckpoint)
            for name in checkpoint.tensors:
                found[entry.step, name] = checkpoint.dense(name).view(np.float32)
            entry.open()
        assert list((tmp_path / "scratch").iterdir()) == []
        assert server.asked_twice() == 0
        weights = [path for folder in revisions.values() for path in folder.iterdir()]
        assert server.sent == sum(path.stat().st_size for path in weights)
        assert not any(line.startswith("HEAD") for line in server.lines)
    for i, state in enumerate(walk(3)):
        for name, tensor in state.items():
            assert np.array_equal(found[i, name], tensor.flatten())


def test_revisions_in_other_formats_are_fetched(tmp_path):
    (tmp_path / "rev").mkdir()
    torch.save(tiny_state(), tmp_path / "rev" / "pytorch_model.bin")
    with HubServer({"org/tiny": {"step0": tmp_path / "rev"}}) as server:
        checkpoint = open_source("hf://org/tiny", endpoint=server.endpoint).entries[0].open()
        assert not isinstance(checkpoint, RemoteCheckpoint)
        checkpoint.close()


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(revisions, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_saved")
    with HubServer({"org/tiny": revisions}) as server, RangeServer(revisions["step0"]) as elsewhere:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)  # the hub that the token is for
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        signed = f"{elsewhere.url}model.safetensors?X-Signature=abc"
        server.fail("/resolve/.*/model.safetensors", status=302, headers={"Location": signed})
        checkpoint = open_source("hf://org/tiny@step0").entries[0].open()
        checkpoint.dense("lm_head.weight")
        assert {request.headers.get("authorization") for request in server.requests} == {"Bearer hf_saved"}
        assert not any("authorization" in request.headers for request in elsewhere.requests)
        assert len([line for line in server.lines if "/resolve/" in line]) == 1  # then it is remembered
        assert [request.query for request in elsewhere.requests] == ["X-Signature=abc"] * 3
        assert elsewhere.asked_twice() == 0
    with HubServer({"org/tiny": revisions}) as other:
        open_source("hf://org/tiny@step0", endpoint=other.endpoint).entries[0].open()
        assert not any("authorization" in request.headers for request in other.requests)


def test_a_revision_that_disappears_midway(revisions):
    with HubServer({"org/tiny": revisions}) as server:
        checkpoint = open_source("hf://org/tiny@step0", endpoint=server.endpoint).entries[0].open()
        server.fail("model.safetensors", status=401)
        with pytest.raises(
            InputError, match=r"hf://org/tiny@step0: model.safetensors: .*refuses access; log in"
        ):
            checkpoint.dense("lm_head.weight")
        server.faults.clear()
        server.remove("org/tiny", "step0")
        with pytest.raises(InputError, match=r"step0: model.safetensors: the hub has no such revision"):
            checkpoint.dense("lm_head.weight")


def test_a_listing_that_lies_about_a_size(revisions):
    with HubServer({"org/tiny": revisions}) as server:
        server.fail("model.safetensors", lengthen=0, add={"Content-Range": "bytes 0-7/99999"})
        with pytest.raises(InputError, match="has 99999 bytes, but the hub lists 6192"):
            open_source("hf://org/tiny@step0", endpoint=server.endpoint).entries[0].open()


def test_a_hub_address_with_a_password(revisions):
    with pytest.raises(InputError, match="HF_TOKEN instead") as caught:
        open_source("hf://org/tiny", endpoint="https://ann:pa55word@hub")
    assert "pa55word" not in str(caught.value)


LINK = '<a href="{0}">{0}</a>'
NAMES = [f"step_{step}.safetensors" for step in range(5)]
INDEX_PAGES = {  # how servers begin, write an entry, and end
    "python": ("<!DOCTYPE HTML>\n<html>\n<title>x</title>\n<ul>\n", f"<li>{LINK}</li>\n", "</ul>\n</html>\n"),
    "nginx": (
        '<html>\r\n<pre><a href="../">../</a>\r\n',
        f"{LINK} 1 12\r\n",
        "</pre><hr></body>\r\n</html>\r\n",
    ),
    "lighttpd": (
        '<?xml version="1.0"?>\n<!DOCTYPE html>\n<html xml:lang="en">\n<table>',
        f"<tr><td>{LINK}</td></tr>\n",
        "</table></html>",
    ),
    "a comment": ("<!-- files -->\n<html><body>", f"{LINK}<br>", "</body></html>"),
    "go": ("<pre>\n", f"{LINK}\n", "</pre>\n"),
    "go 1.23": ('<!doctype html>\n<meta name="viewport" content="x">\n<pre>\n', f"{LINK}\n", "</pre>\n"),
}


@pytest.fixture
def listed(monkeypatch):
    """The names in an index page, or why it is refused."""

    def names(content):
        def get_page(target, limit, where, check):
            check(content)
            return content, "https://host/run/"

        monkeypatch.setattr(website, "get_page", get_page)
        try:
            return [entry.name for entry in website.Website("https://host/run/").ls()]
        except Failure as failure:
            return failure.reason

    return names


@pytest.mark.parametrize("server", INDEX_PAGES)
def test_an_index_page_that_is_cut_anywhere_is_noticed(server, listed):
    """Whole, it is read; cut where an entry is lost, it is refused, also where its server sends no length."""
    begin, entry, end = INDEX_PAGES[server]
    page = (begin + "".join(entry.format(name) for name in NAMES) + end).encode()
    assert listed(page) == NAMES
    assert listed((begin + end).encode()) == []
    for cut in range(len(page)):
        found = listed(page[:cut])
        assert found == NAMES or "is truncated" in found


@pytest.mark.parametrize("page", ["no such page", "<p>nothing here</p>"])
def test_a_page_that_is_no_list_is_not_called_cut_short(page, listed):
    assert listed(page.encode()) == []
