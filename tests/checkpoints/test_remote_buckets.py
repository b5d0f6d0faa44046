"""Buckets, against moto's S3 over real HTTP. Google's are not tested: nothing here speaks as they do."""

import logging
import pickle
import time
from functools import partial

import numpy as np
import pytest
import refusals
from synthetic_series import tiny_state, walk, write_series

from normgrowth import InputError, open_source, trace
from normgrowth.checkpoints.remote import object_store as bucket
from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.discovery import find_remote
from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint
from normgrowth.checkpoints.remote.remote_file import Reading

boto3 = pytest.importorskip("boto3")
pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")


@pytest.fixture(scope="module")
def endpoint():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def keys(endpoint, monkeypatch, tmp_path):
    """This machine's configuration: as in ~/.aws, but in variables."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "HTTP_PROXY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    bucket._filesystem.cache_clear()


@pytest.fixture
def naps(monkeypatch):
    monkeypatch.setattr(attempts, "PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture
def run(endpoint, tmp_path):
    """A bucket with a run of three steps, and the folder that it is a copy of."""
    folder = write_series(tmp_path / "run", walk(3))
    client = boto3.client("s3")
    client.create_bucket(Bucket="runs")
    for path in folder.iterdir():
        client.upload_file(str(path), "runs", f"gpt/a run/{path.name}")
    client.put_object(Bucket="runs", Key="gpt/a run/", Body=b"")  # the marker of a folder
    client.put_object(Bucket="runs", Key="gpt/README.md", Body=b"x")
    yield folder
    for entry in client.list_objects_v2(Bucket="runs")["Contents"]:
        client.delete_object(Bucket="runs", Key=entry["Key"])
    client.delete_bucket(Bucket="runs")


def ranges(monkeypatch) -> list[tuple[str, int, int]]:
    """What the filesystem is asked for from now on."""
    asked: list[tuple[str, int, int]] = []
    filesystem = bucket._filesystem(bucket.os.getpid(), "s3", anyone=False)
    real = filesystem.cat_file

    def cat_file(path, start, end, **options):
        asked.append((path, start, end))
        return real(path, start=start, end=end, **options)

    monkeypatch.setattr(filesystem, "cat_file", cat_file)
    return asked


@pytest.mark.parametrize(
    ("address", "steps"),
    [
        ("s3://runs/gpt/a run", [0, 100, 200]),
        ("s3://runs/gpt/a run/", [0, 100, 200]),
        ("s3://runs", [0, 100, 200]),
        ("s3://runs/gpt/*/step_*.safetensors", [0, 100, 200]),
        ("s3://runs/gpt/a run/step_?00.safetensors", [100, 200]),
        ("s3://runs/**/step_0.safetensors", [0]),
        ("s3://runs/gpt/a run/step_100.safetensors", [100]),
    ],
)
def test_what_an_address_means(run, address, steps):
    series = open_source(address)
    assert [entry.step for entry in series.entries] == steps
    assert all(entry.label.startswith("s3://runs/gpt/a run/step_") for entry in series.entries)


def test_the_same_bits_and_each_byte_once(run, monkeypatch):
    asked = ranges(monkeypatch)
    local, remote = open_source(run), open_source("s3://runs/gpt/a run")
    for mine, its in zip(local, remote, strict=True):
        assert mine[:2] == its[:2]
        assert np.array_equal(mine[2], its[2])
    for path in run.iterdir():
        spans = sorted(span for place, *span in asked if place.endswith(path.name))
        assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
        assert (spans[0][0], spans[-1][1]) == (0, path.stat().st_size)


def test_a_file_that_changes_has_another_fingerprint(run):
    before = [entry.fingerprint for entry in open_source("s3://runs/gpt/a run").entries]
    write_series(run, walk(3, seed=5)[:1])
    boto3.client("s3").upload_file(str(run / "step_0.safetensors"), "runs", "gpt/a run/step_0.safetensors")
    after = [entry.fingerprint for entry in open_source("s3://runs/gpt/a run").entries]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, True]


def test_no_key_goes_along(run):
    series = open_source("s3://runs/gpt/a run")
    checkpoint = series.entries[0].open()
    assert isinstance(checkpoint, RemoteCheckpoint)
    pickled = pickle.dumps((series, checkpoint))
    assert KEY.encode() not in pickled
    assert SECRET.encode() not in pickled
    bucket._filesystem.cache_clear()  # as in another process
    again = pickle.loads(pickled)[1].dense("lm_head.weight").view(np.float32)
    assert np.array_equal(again, tiny_state()["lm_head.weight"].flatten())


refused = partial(refusals.refused, secrets=(KEY, SECRET))


def test_what_is_not_there(run, naps):
    assert "there is no such file or folder" in refused(open_source, "s3://nobody-has-this/run")
    assert "there is no such file or folder" in refused(open_source, "s3://runs/none")
    assert "nothing matches this pattern" in refused(open_source, "s3://runs/gpt/x*")
    assert "not named as a checkpoint is" in refused(open_source, "s3://runs/gpt/README.md")
    assert "with the bucket's full name" in refused(open_source, "s3://ru*/gpt")


def test_a_file_that_disappears(run):
    checkpoint = open_source("s3://runs/gpt/a run").entries[0].open()
    boto3.client("s3").delete_object(Bucket="runs", Key="gpt/a run/step_0.safetensors")
    message = refused(checkpoint.dense, "lm_head.weight")
    assert message.startswith("s3://runs/gpt/a run/step_0.safetensors: there is no such file")


def test_a_file_that_is_replaced_by_one_of_the_same_size(run):
    """While it is read: the sums would be of neither."""
    other = write_series(run.parent / "other", walk(3, seed=5)) / "step_100.safetensors"
    assert other.stat().st_size == (run / other.name).stat().st_size

    def replace(done: int, total: int, label: str) -> None:
        if done:
            boto3.client("s3").upload_file(str(other), "runs", f"gpt/a run/{other.name}")

    message = refused(trace, "s3://runs/gpt/a run", progress=replace)
    assert message.startswith("s3://runs/gpt/a run/step_100.safetensors: has changed")
    trace("s3://runs/gpt/a run", lint=False)


def test_a_store_that_lists_files_in_other_words_than_it_describes_them(run, monkeypatch):
    filesystem = bucket._filesystem(bucket.os.getpid(), "s3", anyone=False)
    real = filesystem.info
    monkeypatch.setattr(filesystem, "info", lambda path: real(path) | {"ETag": "other words"})
    assert len(trace("s3://runs/gpt/a run").records.distinct("step")) == 3


def test_without_keys_it_is_asked_as_by_anyone(run, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    reading = Reading()
    assert len(find_remote("s3://runs/gpt/a run", reading)) == 3
    assert {scheme for _, scheme in reading.session.keyless} == {"s3"}
    assert (
        pickle.loads(pickle.dumps(reading)).session.keyless == set()
    )  # another process finds out for itself


def test_a_mistake_of_ours_is_no_fault_of_the_bucket(run, monkeypatch):
    filesystem = bucket._filesystem(bucket.os.getpid(), "s3", anyone=False)

    def wrong(*args, **options):
        raise TypeError("a mistake in this package")

    monkeypatch.setattr(filesystem, "ls", wrong)
    with pytest.raises(TypeError, match="a mistake"):
        open_source("s3://runs/gpt")


def test_refused_access_says_how_to_configure(run, monkeypatch):
    filesystem = bucket._filesystem(bucket.os.getpid(), "s3", anyone=False)

    def denied(*args, **options):
        raise PermissionError(f"Access Denied for {KEY}")

    monkeypatch.setattr(filesystem, "ls", denied)
    assert "refuses access with the keys of this machine" in refused(open_source, "s3://runs/gpt")
    assert "`aws configure`" in refused(open_source, "s3://runs/gpt")


def test_faults_of_the_wire(run, monkeypatch, naps):
    """What s3fs raises in the middle is tried again; wrong lengths too; in the end one line."""
    checkpoint = open_source("s3://runs/gpt/a run").entries[0].open()
    filesystem = bucket._filesystem(bucket.os.getpid(), "s3", anyone=False)
    real, faults = filesystem.cat_file, []

    def cat_file(*args, **options):
        fault = faults.pop() if faults else None
        if isinstance(fault, Exception):
            raise fault
        return real(*args, **options)[:fault]

    monkeypatch.setattr(filesystem, "cat_file", cat_file)
    faults[:] = [ConnectionResetError(SECRET), TimeoutError(), -3]
    expected = tiny_state()["lm_head.weight"].flatten()
    assert np.array_equal(checkpoint.dense("lm_head.weight").view(np.float32), expected)
    faults[:] = [-3] * 4
    assert "sends 349 bytes where 352 were asked for" in refused(checkpoint.dense, "lm_head.weight")
    faults[:] = [ConnectionResetError(SECRET)] * 4
    assert "(ConnectionResetError); check the network" in refused(checkpoint.dense, "lm_head.weight")


def test_nobody_there_and_a_hanging_answer(run, monkeypatch, naps):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(attempts, "TIMEOUT", 0.2)
        bucket._filesystem.cache_clear()
        start = time.monotonic()
        assert "no answer in time" in refused(open_source, "s3://runs/gpt")
        assert time.monotonic() - start < 10
    bucket._filesystem.cache_clear()
    assert "check the network and the endpoint" in refused(open_source, "s3://runs/gpt")


def test_a_missing_library_is_named(monkeypatch):
    with pytest.raises(InputError, match=r'pip install "normgrowth\[gs\]"'):
        open_source("gs://bucket/run")
