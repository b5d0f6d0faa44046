"""The hub source against a real HTTP server on this machine; nothing is mocked but time and disk space."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_server import HubServer, commit_of, names_in
from huggingface_hub import HfApi, constants, get_session
from range_server import RangeServer
from refusals import refused
from safetensors.numpy import load_file, save_file

from normgrowth import engine
from normgrowth.checkpoints.local_files import find_checkpoints
from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.discovery import find_remote
from normgrowth.checkpoints.remote.hub import revisions as hub
from normgrowth.checkpoints.remote.hub.hub_checkpoint import HubCheckpoint
from normgrowth.checkpoints.remote.hub.revisions import Revision, is_hub, list_revisions
from normgrowth.checkpoints.remote.session import RemoteSession
from normgrowth.checkpoints.remote.web.website import HubFiles
from normgrowth.errors import InputError

SAVED = (
    "README.md",
    "modeling_evil.py",
    "tokenizer.json",
    "optimizer.pt",
    "training_args.bin",
    "rng_state_0.pth",
)


def write(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{folder.name} {name} ".encode() * 50)
    return folder


def sharded(folder: Path, shards: list[str], index: str = "model.safetensors.index.json") -> Path:
    write(folder, *shards)
    weight_map = {f"layer.{i}.weight": shard for i, shard in enumerate(shards)}
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.fixture
def steps(tmp_path):
    """Two small checkpoints as a trainer leaves them, code and optimizer included."""
    folders = {}
    for step in (0, 100):
        folder = write(tmp_path / f"repo-{step}", *SAVED)
        save_file({"w": np.arange(5000, dtype=np.float32) + step}, folder / "model.safetensors")
        (folder / "config.json").write_text('{"n_layer": 1}')
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        folders[f"step{step}"] = folder
    return folders


@pytest.fixture
def server(steps):
    with HubServer({"org/tiny": steps}) as running:
        yield running


@pytest.fixture
def into(tmp_path):
    return tmp_path / "downloads"


def first(server: HubServer, uri: str = "hf://org/tiny@step0", **options) -> Revision:
    return list_revisions(uri, endpoint=server.endpoint, **options)[0]


def fetch(revision: Revision, into: Path) -> Path:
    """Download the weights, as opening does if their format is not read by ranges."""
    into.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=into))
    HubCheckpoint(revision, RemoteSession()).find().download(folder)
    return folder


def opened(revision: Revision, into: Path):
    into.mkdir(exist_ok=True)
    return HubCheckpoint(revision, RemoteSession(into)).open()


# Listing


def test_is_hub():
    assert is_hub("hf://org/repo")
    assert not is_hub("/data/hf")


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("hf://org/run", ["main", "step100", "step20", "stage/one", "v1"]),
        ("hf://org/run@step*", ["step100", "step20"]),
        ("hf://org/run@step[0-9][0-9]", ["step20"]),
        ("hf://org/run@main", ["main"]),
        ("hf://org/run@stage/*", ["stage/one"]),
        ("hf://org/run@v?", ["v1"]),
        ("hf://org/run/", ["main", "step100", "step20", "stage/one", "v1"]),
        ("hf://gpt2", ["main"]),
    ],
)
def test_revisions_that_a_uri_means(tmp_path, uri, names):
    folder = write(tmp_path / "a", "model.safetensors")
    run = dict.fromkeys(("v1", "main", "step100", "step20", "stage/one"), folder)
    with HubServer({"org/run": run, "gpt2": {"main": folder}}, tags={"v1"}) as server:
        found = list_revisions(uri, endpoint=server.endpoint)
        assert [revision.revision for revision in found] == names  # branches first, else as the hub says
        assert {revision.commit for revision in found} == {commit_of(folder)}  # both names of a commit stay
        assert server.lines == [f"GET /api/models/{found[0].repo}/refs"]


def test_a_revision_says_where_it_is_from(server):
    revision = first(server, "hf://org/tiny/sub/folder@step100")
    assert revision == Revision(
        "org/tiny", "step100", server.commit("org/tiny", "step100"), server.endpoint, "sub/folder"
    )
    assert revision.label == "hf://org/tiny/sub/folder@step100"
    assert first(server).label == "hf://org/tiny@step0"


def test_a_commit_needs_no_name(server, steps, into):
    commit = server.commit("org/tiny", "step100")
    folder = fetch(first(server, f"hf://org/tiny@{commit}"), into)
    assert load_file(folder / "model.safetensors")["w"][0] == 100


def test_no_revision_matches(server, tmp_path):
    message = refused(list_revisions, "hf://org/tiny@stpe*", endpoint=server.endpoint)
    for part in ("hf://org/tiny", "'stpe*'", "step0, step100"):
        assert part in message
    server.repos["org/tiny"] = dict.fromkeys((f"s{i}" for i in range(40)), tmp_path)
    assert "s5, ... (40 in total)" in refused(list_revisions, "hf://org/tiny@x", endpoint=server.endpoint)


@pytest.mark.parametrize(
    "uri",
    ["hf://", "hf://@main", "hf://org//repo", "hf://org/repo@", "hf://org/../x", "hf://datasets/org/set"],
)
def test_malformed_uris_are_refused_unasked(server, uri):
    assert uri in refused(list_revisions, uri, endpoint=server.endpoint)
    assert server.requests == []


def test_bad_names_and_addresses(server):
    assert "is not a valid repository name" in refused(
        list_revisions, "hf://org/b--d", endpoint=server.endpoint
    )
    assert "https://" in refused(list_revisions, "hf://org/tiny", endpoint="localhost:80")


# Fetching


def test_files_arrive_as_they_are(server, steps, into):
    revisions = list_revisions("hf://org/tiny@step*", endpoint=server.endpoint)
    folders = [fetch(revision, into) for revision in revisions]
    assert sorted(into.iterdir()) == sorted(folders)
    for folder, original in zip(folders, steps.values(), strict=True):
        assert names_in(folder) == ["model.safetensors"]
        assert all(
            (folder / name).read_bytes() == (original / name).read_bytes() for name in names_in(folder)
        )
    assert server.sent == sum(f.stat().st_size for folder in folders for f in folder.iterdir())


def test_code_and_optimizer_states_are_never_asked_for(server, into):
    for revision in list_revisions("hf://org/tiny", endpoint=server.endpoint):
        fetch(revision, into)
    asked = {line.rpartition("/")[2] for line in server.lines if "/resolve/" in line}
    assert asked == {"model.safetensors"}


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5"], ["model.safetensors"]),
        (["weights.safetensors", "pytorch_model.bin"], ["weights.safetensors"]),
        (["model.safetensors", "model.fp16.safetensors"], ["model.safetensors"]),
        (["pytorch_model.bin", "model.pt", "optimizer.bin", "scheduler.bin"], ["pytorch_model.bin"]),
        (["optimizer.safetensors", "pytorch_model.bin"], ["pytorch_model.bin"]),
        (["model.pt", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"], ["model.pt"]),
        (["mp_rank_00_model_states.pt", "zero_pp_rank_0_optim_states.pt"], ["mp_rank_00_model_states.pt"]),
        (["last.ckpt"], ["last.ckpt"]),
        (["model.torch", "lr_sched.torch"], ["model.torch"]),
        (["model.chkpt"], ["model.chkpt"]),
        (["model.pt", "lr_sched.pt", "rank0.pt", "train.pt", "dataloader.pt", "sampler.pt"], ["model.pt"]),
        (["optimus.pt", "optimizers.pt"], ["optimus.pt"]),
        (["model-optimized.pt"], ["model-optimized.pt"]),
        (
            ["bert.ckpt.index", "bert.ckpt.data-00000-of-00001", "bert.ckpt.meta", "lonely.index"],
            ["bert.ckpt.data-00000-of-00001", "bert.ckpt.index"],
        ),
        ([".metadata", "__0_0.distcp", "__1_0.distcp"], [".metadata", "__0_0.distcp", "__1_0.distcp"]),
        (["model.safetensors", "onnx/model.onnx", "original/consolidated.00.pth"], ["model.safetensors"]),
    ],
)
def test_one_format_is_taken(tmp_path, into, there, taken):
    with HubServer({"org/tiny": {"step0": write(tmp_path / "a", *there)}}) as server:
        assert names_in(fetch(first(server), into)) == taken
        assert sorted({line.rpartition("/")[2] for line in server.lines if "/resolve/" in line}) == taken


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (["model-00001-of-00002.safetensors", "consolidated.safetensors"], "a shard .* that no index"),
        (["consolidated.00.pth", "consolidated.01.pth"], "expected one checkpoint, got 2"),
    ],
)
def test_several_checkpoints_are_refused_before_they_are_fetched(tmp_path, into, there, message):
    with HubServer({"org/tiny": {"step0": write(tmp_path / "a", *there)}}) as server:
        with pytest.raises(InputError, match=message):
            opened(first(server), into)
        assert server.sent == 0


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".chkpt", ".torch"])
@pytest.mark.parametrize(
    ("stem", "is_weights"),
    [("model", True), ("optimus", True), ("mp_rank_00_model_states", True), ("model-optimized", True)]
    + [
        (stem, False)
        for stem in ("optimizer", "optimiser", "lr_sched", "rank0", "rank_3", "scheduler", "scaler")
    ]
    + [
        (stem, False)
        for stem in ("rng_state_0", "training_args", "zero_pp_rank_0_optim_states", "model-optim")
    ],
)
def test_the_same_files_are_weights_everywhere(tmp_path, stem, is_weights, suffix):
    torch.save({"w": torch.ones(2, 2)}, tmp_path / f"{stem}{suffix}")
    found = {"folder": bool(find_checkpoints(tmp_path))}
    with HubServer({"org/tiny": {"step0": tmp_path}}) as server:
        try:
            found["hub"] = bool(HubCheckpoint(first(server), RemoteSession()).find())
        except InputError as error:
            found["hub"] = "no weights" not in str(error)
    with RangeServer(tmp_path) as server:
        found["web"] = bool(find_remote(server.url, RemoteSession()))
    assert found == dict.fromkeys(found, is_weights)


def test_a_mistake_of_ours_is_no_fault_of_the_hub():
    with pytest.raises(AttributeError):
        hub.ask(lambda: hub.stays_below(3), "hf://org/tiny", "https://hub")  # pyright: ignore[reportArgumentType]


def test_the_librarys_session_is_left_as_it_is(server):
    """Others use it at the same time."""
    session = get_session()
    seen = []
    real = type(session).timeout

    class Watched(type(session)):
        @property
        def timeout(self):
            return real.fget(self)

        @timeout.setter
        def timeout(self, value):
            seen.append(value)
            real.fset(self, value)

    session.__class__, plain = Watched, type(session)
    try:
        first(server)
    finally:
        session.__class__ = plain
    assert seen == []


def test_waiting_for_the_hub_can_be_ended(server):
    """A task that nobody waits for any more does not sleep to the end."""
    server.fail("/refs", status=429, headers={"Retry-After": "300"})
    threads = engine.Threads(1)
    handle = threads.submit(lambda _: first(server), None, None)
    while not server.requests:
        time.sleep(0.01)
    start = time.monotonic()
    threads.close()
    assert time.monotonic() - start < 30
    assert isinstance(handle.exception(), engine.Cancelled)


@pytest.mark.parametrize(
    ("shards", "index"),
    [
        (
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            "model.safetensors.index.json",
        ),
        (["pytorch_model-00001-of-00001.bin"], "pytorch_model.bin.index.json"),
        (["odd-1.safetensors", "parts/odd-2.safetensors"], "odd.safetensors.index.json"),
    ],
)
def test_an_index_names_the_shards(tmp_path, into, shards, index):
    folder = sharded(write(tmp_path / "a", "extra" + Path(shards[0]).suffix, "config.json"), shards, index)
    with HubServer({"org/tiny": {"step0": folder}}) as server:
        fetched = fetch(first(server), into)
    assert names_in(fetched) == sorted([*shards, index])
    assert all((fetched / name).read_bytes() == (folder / name).read_bytes() for name in names_in(fetched))


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"w": "gone.safetensors"}}',
        '{"weight_map": {"w": "../../evil.safetensors"}}',
        '{"weight_map": {"w": 3}}',
        '{"weight_map": {"w": "a", "v": 3}}',
        '{"weight_map": [1]}',
        '{"weight_map": {}}',
        "[]",
        "[" * 100_000,
        "no json",
    ],
)
def test_an_index_that_lies(tmp_path, into, index):
    folder = sharded(tmp_path / "a", ["model-00001-of-00001.safetensors"])
    (folder / "model.safetensors.index.json").write_text(index)
    with HubServer({"org/tiny": {"step0": folder}}) as server:
        assert "hf://org/tiny@step0: model" in refused(opened, first(server), into)


def test_a_folder_of_the_repository(tmp_path, into):
    folder = write(
        tmp_path / "a", "model.safetensors", "run 1/seed/model.safetensors", "run 1/seed/config.json"
    )
    with HubServer({"org/tiny": {"step0": folder}}) as server:
        fetched = fetch(first(server, "hf://org/tiny/run 1/seed@step0"), into)
        assert names_in(fetched) == ["model.safetensors"]
        weights = (fetched / "model.safetensors").read_bytes()
        assert weights == (folder / "run 1/seed/model.safetensors").read_bytes()
        assert "its files are: none" in refused(fetch, first(server, "hf://org/tiny/run 2@step0"), into)


def test_no_weights_where_asked(tmp_path, into):
    folders = {
        "nested": write(tmp_path / "a", "README.md", "seed1/model.safetensors", "seed2/model.safetensors"),
        "none": write(tmp_path / "b", "README.md", "flax_model.msgpack", "optimizer.pt"),
    }
    with HubServer({"org/tiny": folders}) as server:
        message = refused(fetch, first(server, "hf://org/tiny@nested"), into)
        assert "seed1, seed2" in message
        assert "hf://org/tiny/seed1@nested" in message
        message = refused(fetch, first(server, "hf://org/tiny@none"), into)
        assert "flax_model.msgpack" in message


def test_a_branch_that_moves_is_read_where_it_was(server, steps, into):
    revision = first(server)
    server.repos["org/tiny"] = {"old": steps["step0"], "step0": steps["step100"]}
    assert load_file(fetch(revision, into) / "model.safetensors")["w"][0] == 0
    assert not any("step0" in line for line in server.lines)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.safetensors",
        "a/../../evil.safetensors",
        "/tmp/evil.safetensors",
        "..\\evil.safetensors",
        "C:evil.safetensors",
        "C:\\evil.safetensors",
        "\\\\host\\share\\evil.safetensors",
        "a\nb.safetensors",
        "a\0.safetensors",
        "./evil.safetensors",
        "",
    ],
)
def test_hostile_names_are_refused(server, into, name):
    server.list_also(name)
    assert repr(name) in refused(fetch, first(server), into)
    assert not any("/resolve/" in line for line in server.lines)


def test_odd_names_are_not_hostile(server, into):
    server.list_also("notes\u00a0(1).md")
    server.list_also("photos\\cat.png")
    fetch(first(server), into)


def test_space_is_checked_first(server, into, monkeypatch):
    free = namedtuple("free", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free(2_000_000))
    server.list_also("weights.pt", 10**15)
    folder = fetch(first(server), into)  # what is not taken needs no room
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free(2_000))
    message = refused(fetch, first(server), into / "again")
    needed = (folder / "model.safetensors").stat().st_size
    assert f"needs {needed / 1e9:.3g} GB" in message
    assert "2e-06 GB free" in message


def test_a_mirror_that_says_no_sizes(server, into):
    names = ["model.safetensors", "config.json"]
    server.fail(
        "/revision/", body=json.dumps({"id": "x", "siblings": [{"rfilename": n} for n in names]}).encode()
    )
    assert names_in(fetch(first(server), into)) == ["model.safetensors"]


def test_a_place_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("")
    found = HubCheckpoint(first(server), RemoteSession()).find()
    assert "cannot write the download" in refused(found.download, tmp_path / "file")


def test_the_terminal_stays_clean(server, into, capfd, monkeypatch):
    monkeypatch.setenv("TQDM_POSITION", "-1")  # the library's bars would show, terminal or not
    fetch(first(server), into)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left_outside_the_folder(server, into, tmp_path):
    """In a process of its own, since the hub library reads where its cache is when it is imported."""
    home = tmp_path / "home"
    code = """if True:
        import sys
        from pathlib import Path
        from normgrowth.checkpoints.remote.hub.hub_checkpoint import HubCheckpoint
        from normgrowth.checkpoints.remote.hub.revisions import list_revisions
        from normgrowth.checkpoints.remote.session import RemoteSession
        assert "huggingface_hub" not in sys.modules  # importing is light
        for revision in list_revisions("hf://org/tiny", endpoint=sys.argv[1]):
            folder = Path(sys.argv[2], revision.commit)
            folder.mkdir(parents=True)
            HubCheckpoint(revision, RemoteSession()).find().download(folder)
    """
    places = dict.fromkeys(("HOME", "USERPROFILE", "HF_HOME", "XDG_CACHE_HOME"), str(home))
    subprocess.run([sys.executable, "-c", code, server.endpoint, into], check=True, env=os.environ | places)
    assert len(list(into.iterdir())) == 2
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.fixture
def pickled(tmp_path):
    """A checkpoint in a format that is downloaded as a whole, in several parts."""
    folder = tmp_path / "pickled"
    folder.mkdir()
    torch.save({"w": torch.arange(3_000_000.0)}, folder / "pytorch_model.bin")
    with HubServer({"org/tiny": {"step0": folder}}) as running:
        yield running


def test_a_download_in_parts_is_removed_when_it_is_closed(pickled, into):
    checkpoint = opened(first(pickled), into)
    assert np.array_equal(checkpoint.dense("w").view(np.float32), np.arange(3_000_000, dtype=np.float32))
    assert len([request for request in pickled.requests if "range" in request.headers]) == 3
    checkpoint.close()
    assert list(into.iterdir()) == []


def test_an_interrupt_leaves_nothing(pickled, into, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(HubFiles, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        opened(first(pickled), into)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("what", [{"status": 503}, {"cut": 0}, {"shorten": 5}])
def test_a_fault_leaves_nothing(pickled, into, naps, what):
    pickled.fail("GET .*pytorch_model.bin", **what)
    assert "hf://org/tiny@step0: pytorch_model.bin" in refused(opened, first(pickled), into)
    assert list(into.iterdir()) == []


def test_the_saved_token_goes_to_no_other_address(server, into, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_saved")
    fetch(first(server), into)
    assert not any("authorization" in request.headers for request in server.requests)
    assert {request.headers["user-agent"] for request in server.requests} == {"normgrowth"}
    server.requests.clear()
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)  # as HF_ENDPOINT does
    list_revisions("hf://org/tiny@step0")
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer hf_saved"}


def test_a_signed_address_is_in_no_traceback(steps, into):
    """The hub redirects to one, which opens the file to whoever has it."""
    write(steps["step0"], "pytorch_model.bin")
    (steps["step0"] / "model.safetensors").unlink()
    with HubServer({"org/tiny": steps}) as server, HubServer({}) as store:
        signed = f"{store.endpoint}/file?X-Signature=5ecret"
        server.fail("GET .*pytorch_model.bin", status=302, headers={"Location": signed})
        store.fail(".", status=403)
        with pytest.raises(InputError) as caught:
            fetch(first(server), into)
        assert [request.query for request in store.requests] == ["X-Signature=5ecret"]
    assert "5ecret" not in "".join(traceback.format_exception(caught.value))


# Faults

PLACES = {
    "refs": "GET .*/refs",
    "revision": "GET .*/revision/",
    "file": "GET .*model.safetensors",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_fault_that_passes(server, steps, into, naps, place, status):
    server.fail(PLACES[place], status=status, times=2)
    folder = fetch(first(server), into)
    assert (folder / "model.safetensors").read_bytes() == (steps["step0"] / "model.safetensors").read_bytes()
    assert sum(naps) < 10


STATUSES = [
    ({"status": 503}, "status 503; try again later"),
    ({"status": 429}, "too many requests"),
    ({"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "is gated; accept its terms"),
    ({"status": 404, "headers": {"X-Error-Code": "RepoNotFound"}}, "no such repository at http://127.0.0.1"),
    ({"status": 401}, "refuses access; log in"),
    ({"status": 403}, "refuses access; log in"),
]
CUTS = [(place, {"cut": 0}, "cannot reach http://127.0.0.1") for place in ("refs", "revision")]
CUTS += [("file", {"cut": 0}, "the connection is lost repeatedly")]


@pytest.mark.parametrize(
    ("place", "what", "message"), [(place, *status) for place in PLACES for status in STATUSES] + CUTS
)
def test_a_fault_that_stays(server, into, naps, place, what, message):
    server.fail(PLACES[place], **what)
    text = refused(lambda: fetch(first(server), into))
    assert message in text
    assert ("hf://org/tiny@step0: model.safetensors" if place == "file" else "hf://org/tiny") in text
    assert sum(naps) < 120


def test_no_such_repository(server):
    assert "hf://org/typo: no such repository" in refused(
        list_revisions, "hf://org/typo", endpoint=server.endpoint
    )


def test_a_revision_that_disappears(server, into):
    revision = first(server)
    server.remove("org/tiny", "step0")
    assert "hf://org/tiny@step0: the hub has no such revision" in refused(fetch, revision, into)


def test_a_file_that_disappears(server, into):
    server.fail("/resolve/", status=404, headers={"X-Error-Code": "EntryNotFound"})
    assert "hf://org/tiny@step0: model.safetensors: the hub lists" in refused(fetch, first(server), into)


def test_a_cut_connection_is_resumed(server, steps, into, naps, monkeypatch):
    server.fail(PLACES["file"], cut=7000, times=3)
    folder = fetch(first(server), into)
    assert (folder / "model.safetensors").read_bytes() == (steps["step0"] / "model.safetensors").read_bytes()
    assert [request.headers["range"] for request in server.requests if "range" in request.headers] == [
        "bytes=0-7",
        "bytes=8-20071",
        "bytes=7008-20071",
        "bytes=14008-20071",
    ]


def test_a_file_of_the_wrong_length(server, into):
    server.fail("model.safetensors", shorten=5)
    assert "hf://org/tiny@step0: model.safetensors" in refused(fetch, first(server), into)


@pytest.mark.parametrize("place", ["refs", "revision"])
def test_an_answer_that_is_not_a_hubs(server, into, place):
    for body in (b"<html>log in to the wifi</html>", b"{}", b'[{"id": 3}]'):
        server.faults.clear()
        server.fail(PLACES[place], body=body)
        assert "is not that of a hub" in refused(lambda: fetch(first(server), into))


def test_a_hub_that_never_answers(server, into, naps, monkeypatch):
    monkeypatch.setattr(attempts, "TIMEOUT", 0.1)
    before = get_session().timeout
    start = time.monotonic()
    for place in ("file", "revision", "refs"):
        server.fail(PLACES[place], hang=True)
        assert "timeout" in refused(lambda: fetch(first(server), into))
    assert time.monotonic() - start < 8
    assert get_session().timeout == before


def test_nobody_there(steps, into, naps):
    with HubServer({"org/tiny": steps}) as server:
        revision = first(server)
        endpoint = server.endpoint
    assert f"cannot reach {endpoint}" in refused(list_revisions, "hf://org/tiny", endpoint=endpoint)
    assert f"cannot reach {endpoint}" in refused(fetch, revision, into)
    assert sum(naps) < 25


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"ratelimit": '"api";r=0;t=55'}, 55), ({"Retry-After": "9"}, 9), ({"Retry-After": "99999"}, 300)],
)
def test_the_hubs_wish_to_wait_is_granted(server, naps, headers, seconds):
    server.fail("/refs", status=429, headers=headers, times=1)
    first(server)
    assert naps == [seconds]


def test_offline_mode(server, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "unset HF_HUB_OFFLINE" in refused(first, server)


# The server itself, since other tests lean on it


def test_the_server_lists_trees_in_pages(tmp_path):
    folder = write(tmp_path / "a", *(f"f{i}" for i in range(7)), "sub/x", "sub/deep/y")
    with HubServer({"org/tiny": {"main": folder}}, page=3) as server:
        api = HfApi(endpoint=server.endpoint, token=False)
        files = [
            entry.path for entry in api.list_repo_tree("org/tiny", recursive=True) if hasattr(entry, "size")
        ]
        assert sorted(files) == names_in(folder)
        assert len(server.lines) == 4
        assert {entry.path for entry in api.list_repo_tree("org/tiny", "sub")} == {"sub/x", "sub/deep"}


@pytest.mark.parametrize(
    ("span", "status", "part"),
    [
        ("bytes=2-5", 206, slice(2, 6)),
        ("bytes=10-", 206, slice(10, None)),
        ("bytes=-4", 206, slice(-4, None)),
        ("bytes=5-99999999", 206, slice(5, None)),
        ("bytes=99999999-", 416, slice(0, 0)),
    ],
)
def test_the_server_serves_ranges(server, steps, span, status, part):
    content = (steps["step0"] / "model.safetensors").read_bytes()
    address = f"{server.endpoint}/org/tiny/resolve/step0/model.safetensors"
    answer = get_session().get(address, headers={"Range": span})
    assert answer.status_code == status
    assert answer.content == content[part]
    assert server.sent == len(content[part])


@pytest.mark.network
def test_the_real_hub(request, into):
    if request.config.getoption("markexpr") != "network":
        pytest.skip("run with -m network")
    revisions = list_revisions("hf://EleutherAI/pythia-14m@step[012]")
    assert [revision.revision for revision in revisions] == ["step0", "step1", "step2"]
    for revision in revisions[:2]:
        folder = fetch(revision, into)
        assert any(name.endswith((".safetensors", ".bin")) for name in names_in(folder))
        shutil.rmtree(folder)
    assert list(into.iterdir()) == []
