"""Buckets, over real HTTP: moto's S3, and a small server that speaks as Google's and Amazon's do and can fail."""

import json
import logging
import pickle
import time
from functools import partial

import numpy as np
import pytest
import refusals
from bucket_server import BucketServer
from synthetic_series import tiny_state, walk, write_series

from normgrowth import open_source, trace
from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.buckets import bucket_access, object_store
from normgrowth.checkpoints.remote.discovery import find_remote
from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint
from normgrowth.checkpoints.remote.session import RemoteSession, _session_of
from normgrowth.errors import MissingDependency

boto3 = pytest.importorskip("boto3")
pytest.importorskip("obstore")
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
    _session_of.cache_clear()  # as in another process


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


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A bucket `runs` that is asked for s3:// and gs:// addresses."""
    write_series(tmp_path / "buckets" / "runs" / "gpt" / "a run", walk(3))
    with BucketServer(tmp_path / "buckets") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        yield server


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


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_same_bits_and_each_byte_once(server, scheme):
    folder = server.folder / "runs" / "gpt" / "a run"
    local, remote = open_source(folder), open_source(f"{scheme}://runs/gpt/a run")
    for mine, its in zip(local, remote, strict=True):
        assert mine[:2] == its[:2]
        assert np.array_equal(mine[2], its[2])
    assert server.asked_twice() == 0
    ranges = [request for request in server.requests if request.status == 206]
    assert sum(request.sent for request in ranges) == sum(path.stat().st_size for path in folder.iterdir())
    assert all("if-match" in request.headers for request in ranges)
    assert [request.line for request in server.requests if request not in ranges] == [
        "GET /runs"
    ] * 2  # is it a file?


@pytest.mark.parametrize(
    "address", ["gs://runs", "gs://runs/gpt/*/step_*.safetensors", "gs://runs/gpt/a run/step_100.safetensors"]
)
def test_addresses_of_google(server, address):
    assert {entry.step for entry in open_source(address).entries} in ({0, 100, 200}, {100})


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
    again = pickle.loads(pickled)[1].dense("lm_head.weight").view(np.float32)
    assert np.array_equal(again, tiny_state()["lm_head.weight"].flatten())


refused = partial(refusals.refused, secrets=(KEY, SECRET))


def test_what_is_not_there(run, naps):
    assert "there is no such file or folder" in refused(open_source, "s3://nobody-has-this/run")
    assert "there is no such file or folder" in refused(open_source, "s3://runs/none")
    assert "nothing matches this pattern" in refused(open_source, "s3://runs/gpt/x*")
    assert "does not have the suffix of a checkpoint" in refused(open_source, "s3://runs/gpt/README.md")
    assert "invalid bucket name" in refused(open_source, "s3://ru*/gpt")
    assert "an empty name" in refused(open_source, "s3://runs/gpt//a run")


def test_a_file_that_disappears(run):
    checkpoint = open_source("s3://runs/gpt/a run").entries[0].open()
    boto3.client("s3").delete_object(Bucket="runs", Key="gpt/a run/step_0.safetensors")
    message = refused(checkpoint.dense, "lm_head.weight")
    assert message.startswith("s3://runs/gpt/a run/step_0.safetensors: there is no such file")


def test_a_file_that_is_replaced_by_one_of_the_same_size(run):
    """Between its header and its values: the sums would be of neither."""
    other = write_series(run.parent / "other", walk(3, seed=5)) / "step_100.safetensors"
    assert other.stat().st_size == (run / other.name).stat().st_size

    def replace(done: int, total: int, label: str) -> None:
        if label.endswith("step_200.safetensors"):
            boto3.client("s3").upload_file(str(other), "runs", f"gpt/a run/{other.name}")

    message = refused(trace, "s3://runs/gpt/a run", progress=replace)
    assert message.startswith("s3://runs/gpt/a run/step_100.safetensors: has changed")
    trace("s3://runs/gpt/a run", lint=False)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("takes_conditions", [True, False])
def test_a_file_that_is_replaced_between_two_reads(server, scheme, takes_conditions, tmp_path):
    server.takes_conditions = takes_conditions
    checkpoint = open_source(f"{scheme}://runs/gpt/a run").entries[0].open()
    checkpoint.dense("lm_head.weight")
    other = write_series(tmp_path / "other", walk(3, seed=5)) / "step_0.safetensors"
    other.replace(server.folder / "runs" / "gpt" / "a run" / other.name)
    assert "has changed since" in refused(checkpoint.dense, "lm_head.weight")


def test_a_store_that_lists_files_in_other_words_than_it_describes_them(server, naps):
    server.other_words = True
    assert len(trace("s3://runs/gpt/a run").records.distinct("step")) == 3
    heads = [request.path for request in server.requests if request.method == "HEAD"]
    assert len(heads) <= 2 * 3  # and not one for each range


def test_a_profile_names_keys_region_and_endpoint(run, endpoint, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion = eu-west-1\nendpoint_url = {endpoint}\n"
        f"[profile other]\nregion = eu-west-1\nservices = local\n[services local]\ns3 =\n  endpoint_url = {endpoint}\n"
    )
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "keys").write_text(f"[lab]\n{keys}[other]\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    for profile in ("lab", "other"):
        monkeypatch.setenv("AWS_PROFILE", profile)
        store = bucket_access.open_store("s3", "runs")
        assert store.config["region"] == "eu-west-1"
        assert store.credential_provider is not None
        assert len(open_source("s3://runs/gpt/a run")) == 3
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    message = refused(open_source, "s3://runs/gpt/a run")
    assert "cannot use the AWS configuration of this machine (ProfileNotFound)" in message


def test_the_region_of_a_bucket_of_amazon(monkeypatch):
    """Found by asking Amazon, whose client is replaced here."""
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    def answer(self, operation, parameters):
        response = {"ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": "ap-south-1"}}}
        raise ClientError(response, operation)

    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setattr(BaseClient, "_make_api_call", answer)
    store = bucket_access.open_store("s3", "runs")
    assert store.config["region"] == "ap-south-1"
    assert store.config["endpoint"] == "https://s3.ap-south-1.amazonaws.com"


def test_without_keys_requests_are_anonymous(server, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    session = RemoteSession()
    assert len(find_remote("s3://runs/gpt/a run", session)) == 3
    assert not any("authorization" in request.headers for request in server.requests)
    assert pickle.loads(pickle.dumps(session))._stores == {}  # another process opens its own


def test_google_keys_and_a_machine_without_any(server, monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(bucket_access, "CONNECT_TIMEOUT", 0.2)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_BEARER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
    assert len(open_source("gs://runs/gpt/a run")) == 3  # the service that hands out keys does not answer
    assert not any("authorization" in request.headers for request in server.requests)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", SECRET)
    assert len(open_source("gs://runs/gpt/a run")) == 3
    assert server.requests[-1].headers["authorization"] == f"Bearer {SECRET}"
    (tmp_path / "keys.json").write_text(json.dumps({"type": "external_account", "token": SECRET}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "keys.json"))
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    assert "cannot use the Google credentials" in refused(open_source, "gs://runs/gpt/a run")


def test_a_mistake_of_ours_is_no_fault_of_the_bucket(run, monkeypatch):
    def wrong(*args, **options):
        raise TypeError("a mistake in this package")

    monkeypatch.setattr(object_store, "_file_info", wrong)
    with pytest.raises(TypeError, match="a mistake"):
        open_source("s3://runs/gpt")


@pytest.mark.parametrize(("scheme", "way"), [("s3", "`aws configure`"), ("gs", "`gcloud auth")])
def test_refused_access_says_how_to_configure(server, scheme, way):
    server.fail("GET /runs", status=403, headers={"X-Key": KEY})
    message = refused(open_source, f"{scheme}://runs/gpt")
    assert "refuses access with the credentials of this machine" in message
    assert way in message


def test_faults_of_the_wire(server, naps):
    """Tried again, from where the connection was cut; in the end one line."""
    checkpoint = open_source("s3://runs/gpt/a run").entries[0].open()
    server.requests.clear()
    server.fail("GET /runs/gpt", cut=100, times=1)
    server.fail("GET /runs/gpt", status=503, times=2)
    expected = tiny_state()["lm_head.weight"].flatten()
    assert np.array_equal(checkpoint.dense("lm_head.weight").view(np.float32), expected)
    first, last = server.requests[0].headers["range"], server.requests[-1].headers["range"]
    assert int(last[6:].split("-")[0]) == int(first[6:].split("-")[0]) + 100
    for what, words in [
        ({"cut": 0}, "the connection is lost"),
        ({"status": 503}, "answers with status 503"),
        ({"status": 416}, "is shorter than listed"),
        ({"whole": True}, "does not support range requests"),
        ({"shorten": 3}, "the connection is lost"),
        ({"status": 301}, "check the network and the endpoint"),
    ]:
        server.faults.clear()
        server.fail("GET /runs/gpt", **what)
        assert words in refused(checkpoint.dense, "lm_head.weight")


def test_a_trickle_and_a_stall(server, monkeypatch, naps):
    monkeypatch.setattr(attempts, "TIMEOUT", 0.2)
    checkpoint = open_source("s3://runs/gpt/a run").entries[0].open()
    for what, words in [({"trickle": 0.05}, "too slow"), ({"hang_after": 10}, "timeout")]:
        server.faults.clear()
        server.fail("GET /runs/gpt", **what)
        start = time.monotonic()
        assert words in refused(checkpoint.dense, "lm_head.weight")
        assert time.monotonic() - start < 10


def test_nobody_there_and_a_hanging_answer(run, monkeypatch, naps):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(attempts, "TIMEOUT", 0.2)
        start = time.monotonic()
        assert "timeout" in refused(open_source, "s3://runs/gpt")
        assert time.monotonic() - start < 10
    assert "check the network and the endpoint" in refused(open_source, "s3://runs/gpt")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_missing_library_is_named(monkeypatch, scheme):
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(MissingDependency, match=r'pip install "normgrowth\[buckets\]"'):
        open_source(f"{scheme}://bucket/run")
