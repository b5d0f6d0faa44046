"""Ranges over real HTTP: each byte at most once, whatever the server does, and nothing told to others."""

import itertools
import logging
import pickle
import ssl
import subprocess
import sys
import time
import traceback
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from range_server import RangeServer
from refusals import refused
from safetensors.numpy import save_file
from synthetic_series import tiny_state, walk, write_series

from normgrowth import InputError, open_source
from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint
from normgrowth.checkpoints.remote.session import _session_of
from normgrowth.checkpoints.remote.transport import BufferPool
from normgrowth.checkpoints.remote.web import connections
from normgrowth.checkpoints.remote.web import http as web
from normgrowth.checkpoints.remote.web import website as places
from normgrowth.checkpoints.remote.web.http import Target, get_range
from normgrowth.checkpoints.remote.web.website import Website, redact_url


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """No connections, logins or settings of another test or of this machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    forget = (_session_of, connections._proxy, connections._trust)
    for cached in forget:
        cached.cache_clear()
    yield
    for cached in forget:
        cached.cache_clear()


@pytest.fixture
def run(tmp_path):
    return write_series(tmp_path / "run", walk(3))


@pytest.fixture
def server(run):
    with RangeServer(run) as running:
        yield running


def opened(server: RangeServer, place: int = 0) -> RemoteCheckpoint:
    checkpoint = open_source(server.url).entries[place].open()
    assert isinstance(checkpoint, RemoteCheckpoint)
    return checkpoint


# Reading


def test_the_same_bits_and_each_byte_once(server, run):
    remote, local = open_source(server.url), open_source(run)
    assert [entry.step for entry in remote.entries] == [entry.step for entry in local.entries]
    for here, there in zip(local.entries, remote.entries, strict=True):
        mine, its = here.open(), there.open()
        assert list(mine.tensors.items()) == list(its.tensors.items())
        for name in mine.tensors:
            assert np.array_equal(mine.dense(name), its.dense(name))
        there.open()  # its index is remembered
    assert server.asked_twice() == 0
    assert server.sent == sum(path.stat().st_size for path in run.iterdir())


def test_only_what_is_asked_for(server, run):
    checkpoint = opened(server)
    before, name = server.sent, "transformer.h.1.attn.c_proj.weight"
    file = run / "step_0.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert before == header + 2 * 8  # and the first eight bytes of the others
    assert np.array_equal(checkpoint.dense(name).view(np.float32), tiny_state()[name].flatten())
    assert server.sent == before + checkpoint.tensors[name].nbytes
    piece = checkpoint.ranges[name][0]
    assert piece.file == ""
    content = checkpoint.read(piece.file, piece.offset + 4, piece.offset + 12)
    assert content.tobytes() == file.read_bytes()[piece.offset + 4 : piece.offset + 12]
    assert checkpoint.read(piece.file, 5, 5).size == 0
    assert "step_0.safetensors: cannot read bytes 0 to 6193 of 6192" in refused(
        checkpoint.read, piece.file, 0, 6193
    )


def test_many_threads_at_once(server, run):
    checkpoint = opened(server)
    with ThreadPoolExecutor(8) as threads:
        found = dict(zip(checkpoint.tensors, threads.map(checkpoint.dense, checkpoint.tensors), strict=True))
    for name, tensor in tiny_state().items():
        assert np.array_equal(found[name].view(np.float32), tensor.flatten())
    assert server.asked_twice() == 0


def test_equal_indexes_are_one(server):
    first, last = (entry.open() for entry in open_source(server.url).entries[::2])
    assert first.tensors is last.tensors
    assert first.ranges is last.ranges


def test_names_of_wrappers_are_cleaned(tmp_path, run):
    state = {f"module.{name}": tensor.numpy() for name, tensor in tiny_state().items()}
    save_file(state, run / "step_300.safetensors")
    with RangeServer(run) as server:
        wrapped = opened(server, 3)
        assert wrapped.tensors == opened(server).tensors
        other = wrapped.renamed({"w": "lm_head.weight"})
        assert np.array_equal(other.dense("w"), opened(server).dense("lm_head.weight"))


def test_another_process_reads_it(server, tmp_path):
    checkpoint = opened(server, 1)
    (tmp_path / "pickle").write_bytes(pickle.dumps(checkpoint))
    code = """if True:
        import pickle, sys
        checkpoint = pickle.load(open(sys.argv[1], "rb"))
        print(int(checkpoint.dense("lm_head.weight").astype("u8").sum()))
    """
    result = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "pickle"], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) == int(checkpoint.dense("lm_head.weight").astype("u8").sum())


def test_memory_is_used_again(server):
    spare = BufferPool()
    checkpoint = opened(server)
    names = ["transformer.h.0.ln_1.weight", "lm_head.weight", "transformer.h.1.ln_1.weight"]
    wanted = [(name, 0, 1, checkpoint.tensors[name].numel) for name in names]
    memory = spare.take(500)
    found = checkpoint.values(wanted, memory)
    for name, values in zip(names, found, strict=True):
        assert np.array_equal(values.view(np.float32), tiny_state()[name].flatten()[1:])
        assert np.shares_memory(values, memory)
    spare.give(memory)
    assert spare.take(400) is memory
    spare.give(memory)
    larger = spare.take(501)  # instead of the one that is too small
    spare.give(larger)
    assert [spare.take(1) is larger, spare.take(1) is memory] == [True, False]
    assert len(pickle.dumps(spare)) < 200


def test_a_kept_connection_that_the_server_closed(server, naps):
    checkpoint = opened(server)
    checkpoint.dense("lm_head.weight")
    assert len(server._http.connections) <= 8
    server.hang_up()
    checkpoint.dense("transformer.wte.weight")
    assert naps == []


def test_connections_are_kept(server):
    target = Target(f"{server.url}step_0.safetensors")
    for start in range(20):
        get_range(target, start, start + 5, "x")
    assert len(server._http.connections) == 1
    server.fail("step_100", status=404)
    refused(get_range, replace(target, url=f"{server.url}step_100.safetensors"), 0, 5, "x")
    get_range(target, 0, 5, "x")
    assert len(server._http.connections) == 1


# Faults


PASSING = [
    {"status": 503},
    {"status": 429},
    {"status": 408},
    {"cut": 0},
    {"cut": 50},
    {"shorten": 3},
    {"lengthen": 3},
    {"add": {"Content-Range": "bytes 0-3/99"}},
    {"add": {"Content-Range": "bytes 8-*/99"}},
    {"hang": True},
    {"hang_after": 50},
]


@pytest.mark.parametrize("what", PASSING, ids=str)
def test_a_fault_that_passes(server, run, naps, monkeypatch, what):
    monkeypatch.setattr(attempts, "TIMEOUT", 0.3)
    checkpoint = opened(server)
    server.fail("step_0", times=2, **what)
    size = (run / "step_0.safetensors").stat().st_size
    content = checkpoint.read("step_0.safetensors", 8, size)
    assert content.tobytes() == (run / "step_0.safetensors").read_bytes()[8:]
    assert 0 < sum(naps) < 5


def test_a_cut_connection_is_resumed(server, run, naps):
    checkpoint = opened(server)
    server.requests.clear()
    server.fail("step_0", times=2, cut=1000)
    checkpoint.read("step_0.safetensors", 100, 5000)
    ranges = [request.headers["range"] for request in server.requests]
    assert ranges == ["bytes=100-4999", "bytes=1100-4999", "bytes=2100-4999"]


def test_an_answer_with_no_length_is_read(server, run):
    server.fail(".", chunked=True)
    checkpoint = opened(server)
    assert (
        checkpoint.read("step_0.safetensors", 8, 5008).tobytes()
        == (run / "step_0.safetensors").read_bytes()[8:5008]
    )


STAYING = [
    ({"status": 503}, "answers with status 503; try again later"),
    ({"status": 404}, "there is no such file (any more)"),
    ({"status": 403}, "refuses access (status 403); a signed address may have expired"),
    ({"status": 302}, "redirects to an invalid address"),
    ({"status": 302, "headers": {"Location": "file:///etc/passwd"}}, "redirects to an invalid address"),
    ({"status": 302, "headers": {"Location": "http://x:99999/"}}, "redirects to an invalid address"),
    ({"status": 302, "headers": {"Location": "step_0.safetensors?again"}}, "redirects"),
    ({"cut": 0}, "lost"),
    ({"shorten": 3}, "other bytes than requested"),
    ({"lengthen": 3}, "other bytes than requested"),
    ({"add": {"Content-Range": "bytes 100-1099/9999999"}}, "has changed"),
    ({"add": {"Content-Range": "bytes 0-999/6192"}}, "other bytes than requested"),
    ({"add": {"Content-Range": "bytes 100-899/900"}}, "has 900 bytes, expected at least 1100"),
    ({"add": {"Content-Encoding": "gzip"}}, "compressed"),
    ({"add": {"ETag": '"other"'}}, "has changed since it was opened"),
    ({"body": b"<html>log in to the wifi</html>"}, "does not support range requests"),
    ({"whole": True}, "does not support range requests; download the file"),
    ({"hang": True}, "timeout"),
    ({"hang_after": 10}, "timeout"),
    ({"status": 302, "headers": {"Location": "http://a..b/x"}}, "is not a valid address"),
    (
        {"status": 302, "headers": {"Location": f"http://{'a' * 64}/x"}},
        "is not a valid address",
    ),
    ({"status": 503, "add": {"Content-Length": str(10**18)}, "cut": 0}, "answers with status 503"),
    ({"chunked": True, "add": {"Content-Range": "bytes 100-1099/6193"}}, "has changed"),
    ({"add": {"Content-Range": "bytes 100-1099/99999999999999999999"}}, "sends no valid Content-Range"),
]


@pytest.mark.parametrize(("what", "message"), STAYING, ids=str)
def test_a_fault_that_stays(server, naps, monkeypatch, what, message):
    monkeypatch.setattr(attempts, "TIMEOUT", 0.1)
    checkpoint = opened(server)
    server.fail("step_0", **what)
    text = refused(checkpoint.read, "step_0.safetensors", 100, 1100)
    assert message in text
    assert text.startswith(f"{server.url}step_0.safetensors: ")
    assert sum(naps) < 20


@pytest.mark.parametrize("address", ["http://a..b/x/", f"https://{'a' * 64}.org/x/"])
def test_a_name_that_no_host_can_have(address):
    assert "is not a valid address" in refused(open_source, address)


def test_signs_that_are_no_part_of_an_address_are_quoted(run, server):
    (run / "caf\xe9 1.safetensors").write_bytes((run / "step_0.safetensors").read_bytes())
    server.fail(
        "step_0", status=302, headers={"Location": "/caf\xc3\xa9 1.safetensors"}
    )  # in UTF-8, as it stands
    opened(server).dense("lm_head.weight")
    series = open_source(f"{server.url}step_100.safetensors?name=caf\xe9 1&x=%20")
    series.entries[0].open()
    assert server.requests[-1].query == "name=caf%C3%A9%201&x=%20"


def test_a_place_that_is_gone_is_asked_for_again(run, server, naps):
    checkpoint = opened(server)
    with RangeServer(run) as other:
        server.fail("step_0", times=1, status=302, headers={"Location": f"{other.url}step_0.safetensors"})
        checkpoint.dense("lm_head.weight")
        assert len(other.requests) == 1
    checkpoint.dense("transformer.wte.weight")  # which the server has itself now
    assert len(naps) == 1


def test_a_server_that_ignores_ranges_is_not_read_to_the_end(tmp_path):
    (tmp_path / "large").mkdir()
    save_file({"w": np.zeros(10_000_000, np.float32)}, tmp_path / "large" / "step_0.safetensors")
    with RangeServer(tmp_path / "large") as server:
        server.fail("step_0", whole=True)
        assert "does not support range requests" in refused(open_source, server.url)
        assert server.written < 20_000_000


def test_a_trickle_is_no_answer(server, naps, monkeypatch):
    checkpoint = opened(server)
    monkeypatch.setattr(attempts, "SLOWEST", 1e6)
    monkeypatch.setattr(attempts, "TIMEOUT", 0.1)
    server.fail("step_0", trickle=0.01)
    assert "the transfer is too slow" in refused(checkpoint.read, "step_0.safetensors", 100, 1100)


def test_nor_is_one_whose_end_would_be_hours_away(server, naps, monkeypatch):
    checkpoint = opened(server)
    monkeypatch.setattr(attempts, "SLOWEST", 1000)
    monkeypatch.setattr(attempts, "TIMEOUT", 0.1)
    server.fail(".", trickle=0.01)
    start = time.monotonic()
    assert "the transfer is too slow" in refused(checkpoint.read, "step_0.safetensors", 100, 6100)
    assert "the transfer is too slow" in refused(open_source, server.url)
    assert time.monotonic() - start < 4


def test_nobody_there(server, naps, run):
    with RangeServer(run) as gone:
        checkpoint = opened(gone)
    assert "connection refused" in refused(checkpoint.dense, "lm_head.weight")
    assert "no such host" in refused(open_source, "http://nowhere.invalid/run/")


@pytest.mark.parametrize(
    ("header", "seconds"), [("9", 9), ("99999", 300), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.5), ("soon", 0.5)]
)
def test_the_servers_wish_to_wait_is_granted(server, naps, header, seconds):
    checkpoint = opened(server)
    server.fail("step_0", status=429, headers={"Retry-After": header}, times=1)
    checkpoint.dense("lm_head.weight")
    assert naps == [seconds]


def test_a_date_to_wait_for():
    in_a_minute = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    assert 55 < attempts.wait_asked_for({"Retry-After": in_a_minute}) < 61


def test_a_file_that_is_replaced_or_removed(server, run):
    checkpoint = opened(server)
    (run / "step_0.safetensors").write_bytes((run / "step_100.safetensors").read_bytes())
    assert "has changed" in refused(checkpoint.dense, "lm_head.weight")
    (run / "step_0.safetensors").unlink()
    assert "there is no such file (any more)" in refused(checkpoint.dense, "lm_head.weight")


# Files that lie


@pytest.mark.parametrize("length", [101, 6185, 10**8 + 1, 2**63])
def test_a_header_that_claims_too_much_is_not_asked_for(server, run, length):
    content = (run / "step_0.safetensors").read_bytes()
    (run / "step_0.safetensors").write_bytes(length.to_bytes(8, "little") + content[8:])
    series = open_source(server.url)
    before = len(server.lines)
    message = refused(series.entries[0].open)
    assert "step_0.safetensors: " in message
    assert len(server.lines) == before + (length == 101)  # the one that fits is read and is no JSON


def test_more_than_fits_into_memory(server):
    target = Target(f"{server.url}step_0.safetensors")
    assert "do not fit into memory" in refused(get_range, target, 0, 10**17, "x")


def test_a_file_that_is_too_short(server, run):
    (run / "step_0.safetensors").write_bytes(b"\x02")
    assert "has 1 bytes, expected at least 8" in refused(open_source, server.url)
    (run / "step_0.safetensors").write_bytes(b"")
    assert "fewer than 8 bytes" in refused(open_source, server.url)


# What is private

KEY, PASSWORD, SIGNATURE = "hf_TOKEN", "pa55word", "deadbeef"


def test_a_password_goes_to_its_host_and_nowhere_else(run, caplog):
    login = connections.basic("ann", PASSWORD)
    with RangeServer(run, login) as server, RangeServer(run) as other:
        address = server.url.replace("//", f"//ann:{PASSWORD}@")
        with caplog.at_level(logging.DEBUG):
            series = open_source(address)
            checkpoint = series.entries[0].open()
            checkpoint.dense("lm_head.weight")
            server.fail("step_0", status=302, headers={"Location": f"{other.url}step_0.safetensors"})
            checkpoint.dense("transformer.wte.weight")
            assert [request.headers.get("authorization") for request in other.requests] == [None]
            server.requests.clear()
            checkpoint.dense("transformer.wte.weight")
            assert server.requests == []  # the redirect is remembered
            other.fail("step_0", status=403)
            server.faults.clear()
            checkpoint.dense("transformer.wte.weight")  # and forgotten when it no longer leads there
            server.fail("step_0", status=401)
            with pytest.raises(InputError) as caught:
                checkpoint.dense("lm_head.weight")
    told = "".join(traceback.format_exception(caught.value))
    everything = [repr(series), series.label, repr(checkpoint), told, caplog.text]
    everything += [pickle.dumps(checkpoint).decode("latin1"), pickle.dumps(series).decode("latin1")]
    everything += [entry.fingerprint for entry in series.entries]
    for text in everything:
        assert PASSWORD not in text
        assert login.removeprefix("Basic ") not in text
        assert "ann" not in text.replace("cannot", "")


def test_a_password_is_known_to_its_series_only(run):
    login = connections.basic("ann", PASSWORD)
    with RangeServer(run, login) as server:
        address = f"{server.url}step_0.safetensors"
        open_source(address.replace("//", f"//ann:{PASSWORD}@")).entries[0].open()
        assert "refuses access" in refused(open_source, address)


def test_a_signed_address(run, caplog):
    with RangeServer(run) as server:
        addresses = [
            f"{server.url}step_{i}.safetensors?X-Amz-Signature={SIGNATURE}{i}&v=1#part" for i in (0, 100)
        ]
        with caplog.at_level(logging.DEBUG):
            series = open_source(addresses)
            checkpoint = series.entries[1].open()
            checkpoint.dense("lm_head.weight")
        assert {request.query for request in server.requests if "step_100" in request.path} == {
            f"X-Amz-Signature={SIGNATURE}100&v=1"
        }
        pickled = pickle.dumps((series, checkpoint))
        server.fail("step_100", status=403)
        message = refused(checkpoint.dense, "lm_head.weight")
        assert "a signed address may have expired" in message
        foreign = pickle.loads(pickled)[1]
        message += refused(foreign.dense, "lm_head.weight")
        assert "is not available in this process" in message
    for text in (repr(series), message, caplog.text, pickled.decode("latin1")):
        assert SIGNATURE not in text
        assert "X-Amz" not in text
    assert [entry.step for entry in series.entries] == [0, 100]


def test_an_unreadable_address_is_not_repeated_in_full():
    for address in (f"https://ann:{PASSWORD}@host:port/x?{SIGNATURE}", f"http://{PASSWORD}@/x"):
        message = refused(open_source, address)
        assert PASSWORD not in message
        assert SIGNATURE not in message
    assert PASSWORD not in refused(open_source, f"s3://AKIA:{PASSWORD}@bucket/run")
    assert "is not supported; use http, https, s3, gs or hf" in refused(
        open_source, f"ftp://ann:{PASSWORD}@host/x"
    )


def test_what_is_shown():
    assert redact_url("https://a:b@host:1/x/y.z?q=1#f") == "https://host:1/x/y.z"
    assert redact_url("s3://bucket/a?b") == "s3://bucket/a?b"
    assert redact_url("runs/a@b?c") == "runs/a@b?c"


def test_the_saved_login_of_a_host(run, tmp_path):
    (tmp_path / ".netrc").write_text(
        f"machine 127.0.0.1 login ann password {PASSWORD}\ndefault login x password y\n"
    )
    (tmp_path / ".netrc").chmod(0o600)
    with RangeServer(run, connections.basic("ann", PASSWORD)) as server:
        assert len(open_source(server.url)) == 3
    assert connections.saved_login("example.org") is None


def test_no_login_says_where_to_put_it(run):
    with RangeServer(run, "Basic x") as server:
        assert "~/.netrc" in refused(open_source, server.url)


def test_no_redirect_from_https_to_http():
    answer = SimpleNamespace(headers={"location": "http://host/x"})
    with pytest.raises(web.Failure, match="from https to http; refused"):
        web._next("https://host/x", answer)


# Proxies and certificates


def test_a_proxy_fetches_what_is_not_encrypted(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.endpoint.replace("//", f"//ann:{PASSWORD}@"))
    series = open_source("http://checkpoints.invalid/")
    assert series.entries[0].label == "http://checkpoints.invalid/step_0.safetensors"
    series.entries[0].open()
    assert {request.headers["host"] for request in server.requests} == {"checkpoints.invalid"}
    assert {request.headers["proxy-authorization"] for request in server.requests} == {
        connections.basic("ann", PASSWORD)
    }
    connections._proxy.cache_clear()
    monkeypatch.setenv("http_proxy", "socks5://nowhere")
    assert "has the scheme socks5, which is not supported" in refused(
        open_source, "http://checkpoints.invalid/"
    )
    connections._proxy.cache_clear()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert len(open_source(server.url)) == 3


@pytest.fixture
def secure(server, tmp_path):
    """The server behind a certificate for 127.0.0.1 that nobody signed; its address and the certificate."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    builder = builder.add_extension(host, critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(private + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "key.pem")
    server._http.socket = context.wrap_socket(
        server._http.socket, server_side=True, do_handshake_on_connect=False
    )
    return server.url.replace("http:", "https:"), tmp_path / "key.pem"


def test_certificates_are_checked(server, secure, monkeypatch, naps):
    address, certificate = secure
    assert "the certificate of 127.0.0.1 is not trusted" in refused(open_source, address)
    assert naps == []
    monkeypatch.setattr(connections, "_trust", lambda: ssl.create_default_context(cafile=certificate))
    checkpoint = open_source(address).entries[0].open()
    assert np.array_equal(
        checkpoint.dense("lm_head.weight").view(np.float32), tiny_state()["lm_head.weight"].flatten()
    )


def test_a_proxy_passes_on_what_is_encrypted(server, secure, monkeypatch, run):
    address, certificate = secure
    monkeypatch.setattr(connections, "_trust", lambda: ssl.create_default_context(cafile=certificate))
    with RangeServer(run) as proxy:
        monkeypatch.setenv("https_proxy", proxy.endpoint.replace("//", f"//ann:{PASSWORD}@"))
        open_source(address).entries[0].open()
        assert {request.method for request in proxy.requests} == {"CONNECT"}
        assert proxy.requests[0].headers["proxy-authorization"] == connections.basic("ann", PASSWORD)
    assert not any("proxy-authorization" in request.headers for request in server.requests)
    assert len(server.requests) == 5


# Pages that lie


@pytest.mark.parametrize(
    "link",
    [
        "../up.safetensors",
        "%2e%2e/up.safetensors",
        "..%2fup.safetensors",
        "//evil/x.safetensors",
        "http://evil/x.safetensors",
        "http://[evil/x.safetensors",
        "a%00.safetensors",
        "..%5cup.safetensors",
        "C%3Ax.safetensors",
        "deep/x.safetensors",
        "javascript:x.safetensors",
        "x.safetensors?download",
    ],
)
def test_links_that_lead_elsewhere_are_not_followed(run, link):
    with RangeServer(run.parent) as server:
        server.fail("GET /run/$", body=f'<a href="{link}">x</a><A HREF=step_0.safetensors>y</A>'.encode())
        assert [entry.name for entry in Website(f"{server.url}run/").ls()] == ["step_0.safetensors"]
        assert len(open_source(f"{server.url}run/")) == 1


@pytest.mark.parametrize("kept", [20, 150, -3])
@pytest.mark.parametrize("how", ["shorter", "no length", "cut"])
def test_a_list_of_files_that_is_cut_short(server, naps, kept, how):
    """Not a shorter series: a list that lacks its end is asked for again, and refused."""
    page = urllib.request.urlopen(server.url).read()
    part = page[:kept]
    if how == "cut":
        server.fail("GET /$", cut=len(part))
    else:
        headers = {"Content-Length": None} if how == "no length" else {}
        server.fail("GET /$", body=part, add=headers, times=2)
        assert len(open_source(server.url)) == 3
        server.fail("GET /$", body=part, add=headers)
    message = refused(open_source, server.url)
    assert ("the connection is lost" if how == "cut" else "its directory page is truncated") in message
    assert server.url.rstrip("/") in message


def test_a_page_without_end_or_without_links(server, monkeypatch):
    server.fail("GET /$", body=b"<a href=" * 1000)
    assert "no checkpoints here" in refused(open_source, server.url)
    monkeypatch.setattr(places, "PAGE_LIMIT", 1000)
    assert "has more than 1000 bytes" in refused(open_source, server.url)


@pytest.mark.parametrize(
    "sign", ["<a href=", "<a href='", "<a ", "<a\n", "<![", "<!--", "</a", "&#", "<a href=x ", '<a href="x']
)
def test_a_page_that_is_badly_written(server, sign):
    """A parser of HTML takes seconds for 40,000 signs of some, and raises its own errors at others."""
    server.fail("GET /$", body=b'<a href="step_0.safetensors">x</a>' + sign.encode() * 100_000)
    start = time.process_time()
    assert "step_0.safetensors" in [entry.name for entry in Website(server.url).ls()]
    assert time.process_time() - start < 3


def test_folders_without_end(run, monkeypatch):
    from normgrowth.checkpoints.remote import discovery as elsewhere

    for a, b in itertools.product("abc", "def"):
        (run / a / b).mkdir(parents=True)
    monkeypatch.setattr(elsewhere, "MOST_FOLDERS", 10)
    with RangeServer(run) as server:
        assert "more than 10 folders" in refused(open_source, server.url)
