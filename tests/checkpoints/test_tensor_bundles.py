"""TensorFlow's format without TensorFlow: bundles written here, whole, damaged and hostile, near and far.

`test_tensorflow.py` has what TensorFlow itself wrote.
"""

import logging
import os
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from bucket_server import BucketServer
from bundle_files import (
    block,
    bundle_entries,
    entry,
    header,
    masked,
    message,
    put_data,
    put_index,
    sealed,
    shape_field,
    string_content,
    t5_state,
    table,
    table_of,
    varint,
    with_slots,
    write_bundle,
    write_t5_series,
)
from limits import bounded
from range_server import RangeServer

import normgrowth as ng
from normgrowth.checkpoints.checkpoint import STORAGE
from normgrowth.checkpoints.formats.tensorflow.reader import is_tensorflow_index, read_tensorflow
from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint
from normgrowth.checkpoints.series import open_source
from normgrowth.checkpoints.storage.crc32c import crc32c, joined_checksum, unmasked
from normgrowth.errors import DamagedTensor, InputError
from normgrowth.trace.by_stripe import Job, cut

STEPS = (1000, 2000, 4000)


def read_all(index: Path) -> None:
    checkpoint = read_tensorflow(index)
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in STORAGE:
            checkpoint.dense(name)


def message_of(index: Path) -> str:
    """What reading everything says; one line."""
    with pytest.raises(InputError) as caught, bounded(seconds=5):
        read_all(index)
    assert "\n" not in str(caught.value)
    assert index.stem in str(caught.value)
    return str(caught.value)


@pytest.fixture
def arrays(rng) -> dict[str, np.ndarray]:
    return {
        "a": rng.normal(size=(3, 5)).astype("f4"),
        "b/c": rng.integers(-100, 100, (2, 3, 4)).astype("i2"),
        "empty": np.zeros((0, 4), "f4"),
        "last": np.float64(7.5),
        **{f"many/{i:03}": np.full(i % 4, i, "f2") for i in range(40)},
    }


# Checksums


def test_checksum_of_the_standard():
    """RFC 3720, appendix B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert unmasked(masked(b"123456789")) == 0xE3069283


def test_checksum_of_parts(rng):
    content = rng.bytes(10_007)
    for at in (0, 1, 8, 4096, 10_006, 10_007):
        first, second = content[:at], content[at:]
        assert joined_checksum(crc32c(first), crc32c(second), len(second)) == crc32c(content)
    assert joined_checksum(crc32c(b""), crc32c(b""), 0) == 0


# Whole bundles


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("snappy", [False, True])
def test_values_and_shapes(tmp_path, arrays, shards, snappy):
    index = write_bundle(tmp_path / "m.ckpt-5", arrays, shards=shards, snappy=snappy)
    assert is_tensorflow_index(index)
    checkpoint = read_tensorflow(index)
    assert set(checkpoint.tensors) == set(arrays)
    for name, values in arrays.items():
        assert checkpoint.tensors[name].shape == np.shape(values)
        assert checkpoint.dense(name).tobytes() == np.asarray(values).tobytes()
    assert checkpoint.label == str(tmp_path / "m.ckpt-5")
    assert read_tensorflow(tmp_path / "m.ckpt-5").ranges == checkpoint.ranges


def test_what_is_no_number(tmp_path):
    state = {"w": np.ones(2, "f4"), "words": b"two words", "phase": np.array([1 + 2j])}
    checkpoint = read_tensorflow(write_bundle(tmp_path / "m", state))
    assert set(checkpoint.tensors) == {"w", "phase"}
    assert checkpoint.tensors["phase"].dtype == "tensorflow.complex128"
    assert checkpoint.notes == ("skipped variables that are not numeric: words (string)",)


@pytest.mark.parametrize(
    ("counters", "step"),
    [
        ({"global_step": np.int64(7), "optimizer/iter": np.int64(9)}, 7),
        ({"optimizer/iter": np.int64(9)}, 9),
        ({"optimizer/_iterations": np.int32(3)}, 3),
        ({"step": np.int64(-1)}, None),
        ({"step": np.float32(3)}, None),
    ],
)
def test_the_step_inside(tmp_path, counters, step):
    index = write_bundle(tmp_path / "m", {"w": np.ones(2, "f4"), **counters})
    assert read_tensorflow(index).step == step


def test_a_variable_in_parts(tmp_path, rng):
    values = rng.normal(size=(7, 200)).astype("f4")
    boxes = [((0, 0), (3, 200)), ((3, 0), (4, 150)), ((3, 150), (4, 50))]
    entries, data = bundle_entries(
        {f"part {i}": values[r : r + n, c : c + m].copy() for i, ((r, c), (n, m)) in enumerate(boxes)}
    )
    # 0, the name and its end, two axes; then start and length of each: 150 and 200 take two bytes, -1 is a whole axis.
    keys = [
        b"\0v/\xc3\xbf\0\x01\x01\x02" + b"\x80\x83" + b"\x80\x7f",
        b"\0v/\xc3\xbf\0\x01\x01\x02" + b"\x83\x84" + b"\x80\xc0\x96",
        b"\0v/\xc3\xbf\0\x01\x01\x02" + b"\x83\x84" + b"\xc0\x96\xb2",
    ]
    slices = [
        message([(1, message([(2, 3)])), (1, b"")]),
        message([(1, message([(1, 3), (2, 4)])), (1, message([(2, 150)]))]),
        message([(1, message([(1, 3), (2, 4)])), (1, message([(1, 150), (2, 50)]))]),
    ]
    whole = message([(1, 1), (2, shape_field((7, 200))), *((7, one) for one in slices)])

    def written(parts: dict[bytes, bytes], whole: bytes) -> Path:
        index = tmp_path / "m.index"
        index.write_bytes(table_of([(b"", header()), *sorted(parts.items()), ("v/ÿ".encode(), whole)]))
        return index

    put_data(tmp_path / "m", data)
    parts = {key: message(own) for key, own in zip(keys, entries.values(), strict=True)}
    checkpoint = read_tensorflow(written(parts, whole))
    assert np.array_equal(checkpoint.dense("v/ÿ").view("f4").reshape(7, 200), values)
    assert len(checkpoint.pieces("v/ÿ")) == 3
    assert "has no entry for the part of 'v/ÿ'" in message_of(written(dict(list(parts.items())[1:]), whole))
    twice = message([(1, 1), (2, shape_field((7, 200))), *((7, one) for one in (*slices[:2], slices[1]))])
    assert "do not cover it" in message_of(written(parts, twice))


def test_objects_are_named_by_the_model(tmp_path):
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    keys = [f"optimizer/_trainable_variables/0{value}", f"optimizer/m/0{value}", f"save_counter{value}"]

    def node(children=(), key=""):
        own = [(1, message([(1, n), (2, called.encode())])) for n, called in children]
        return (1, message([*own, *([(2, message([(3, key.encode())]))] if key else [])]))

    graph = message(
        [
            node([(1, "optimizer"), (2, "model"), (99, "nowhere"), (-1, "nor here")]),
            node([(3, "_trainable_variables/0"), (4, "m/0")]),
            node([(3, "kernel"), (0, "root")]),
            node(key=keys[0]),
            node(key=keys[1]),
        ]
    )
    state = {keys[0]: np.ones(2, "f4"), keys[1]: np.zeros(2, "f4"), keys[2]: np.int64(1)}
    index = write_bundle(tmp_path / "m", {**state, "_CHECKPOINTABLE_OBJECT_GRAPH": graph})
    assert set(read_tensorflow(index).tensors) == {"model/kernel", "optimizer/m/0"}
    assert read_tensorflow(index).notes == ()
    index = write_bundle(tmp_path / "n", {**state, "_CHECKPOINTABLE_OBJECT_GRAPH": graph[:-3]})
    assert "message that ends too early" in message_of(index)


def test_a_long_chain_of_objects_costs_no_more_than_its_bytes(tmp_path):
    """Paths to all nodes would have more characters than fit into memory."""
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    keys = [f"optimizer/{i}{value}" for i in range(100)]
    chain = [message([(1, message([(1, i + 1), (2, b"x" * 30)]))]) for i in range(50_000)]
    chain[-1] = message((2, message([(3, key.encode())])) for key in keys)
    graph = message((1, node) for node in chain)
    state = {key: np.ones(1, "f4") for key in keys}
    with bounded():
        index = write_bundle(tmp_path / "m", {**state, "_CHECKPOINTABLE_OBJECT_GRAPH": graph})
        assert "optimizer/0" in read_tensorflow(index).tensors


# Damage


@pytest.fixture
def good(tmp_path, arrays) -> Path:
    return write_bundle(tmp_path / "m.ckpt-5", arrays, shards=2)


def test_every_byte_of_the_index_is_checked(good):
    """A changed byte is noticed, wherever it is, but in the space that a footer leaves."""
    content = good.read_bytes()
    unused = set(range(len(content) - 48, len(content) - 8))
    for place in range(0, len(content), 7):
        good.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        if place not in unused:
            assert message_of(good)


@pytest.mark.parametrize("kept", [0, 7, 47, 0.5, -1])
def test_a_truncated_index(good, kept):
    content = good.read_bytes()
    good.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    assert not is_tensorflow_index(good)
    assert "truncated" in message_of(good)


def test_truncated_and_missing_data(good):
    data = good.with_name("m.ckpt-5.data-00001-of-00002")
    os.truncate(data, data.stat().st_size - 1)
    said = message_of(good)
    assert "truncated" in said
    assert data.name in said
    data.unlink()
    assert "m.ckpt-5.data-00001-of-00002 is missing" in message_of(good)
    good.with_name("m.ckpt-5.data-00000-of-00002").unlink()
    assert "is missing" in message_of(good)
    assert not is_tensorflow_index(good)


def test_damaged_values_are_noticed_when_they_are_read(good, arrays):
    data = good.with_name("m.ckpt-5.data-00000-of-00002")
    raw = bytearray(data.read_bytes())
    raw[5] ^= 1
    data.write_bytes(raw)
    checkpoint = read_tensorflow(good)
    assert checkpoint.dense("b/c").tobytes() == arrays["b/c"].tobytes()  # of the other file
    with pytest.raises(DamagedTensor, match=r"ckpt-5\.data-00000-of-00002: tensor a is damaged") as caught:
        checkpoint.dense("a")
    assert caught.value.tensor == "a"


def test_a_missing_index(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_tensorflow(tmp_path / "none")


# Hostile indexes, with right checksums

ENTRY = entry(1, (2, 2), 0, 0, bytes(16))


def changed(number: int, value: int | bytes | float) -> list:
    return [(n, value if n == number else old) for n, old in ENTRY]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (changed(2, shape_field((2, 3))), "has 16 bytes"),
        (changed(2, shape_field((2, -2))), "with an invalid shape [2, -2]"),
        (changed(2, shape_field((2**40, 2**40))), "with an invalid shape"),
        (changed(2, shape_field([1] * 65)), "65 axes"),
        (changed(2, message([(3, 1)])), "no shape"),
        (changed(2, 7), "not a message"),
        (changed(1, b"x"), "not a number"),
        (changed(3, 1), "of data file 1 of 1"),
        (changed(3, -1), "of data file -1"),
        (changed(4, -16), ": byte -16"),
        (changed(4, 2**62), "truncated"),
        (changed(5, -1), ": byte 0"),
        ([*ENTRY, (7, message([(1, b"")]))], "with 1 axes, not 2"),
        ([*ENTRY, (7, message([(1, message([(1, -1)])), (1, b"")]))], "with a negative start or size"),
        ([*ENTRY, (7, message([(1, b""), (1, b"")]))], "has no entry for the part of"),
        ([*ENTRY, (7, message([(1, message([(1, 5), (2, 1)])), (1, b"")]))], "exceeds its shape"),
    ],
)
def test_an_entry_that_lies(tmp_path, fields, said):
    put_data(tmp_path / "m", [bytes(16)])
    assert said in message_of(put_index(tmp_path / "m", {"w": fields}))


def test_an_unknown_dtype_stays_in_the_index(tmp_path):
    put_data(tmp_path / "m", [bytes(16)])
    checkpoint = read_tensorflow(put_index(tmp_path / "m", {"w": changed(1, 99), "v": ENTRY[:0]}))
    assert checkpoint.tensors["w"].dtype == "tensorflow.dtype99"
    with pytest.raises(InputError, match=r"dtype tensorflow\.dtype99"):
        checkpoint.pieces("w")


def test_tensors_that_share_bytes(tmp_path):
    put_data(tmp_path / "m", [bytes(64)])
    assert "overlapping bytes" in message_of(put_index(tmp_path / "m", {"v": changed(4, 8), "w": ENTRY}))


def test_tables_that_lie(tmp_path):
    put_data(tmp_path / "m", [bytes(16)])
    index = tmp_path / "m.index"

    def said(content: bytes) -> str:
        index.write_bytes(content)
        return message_of(index)

    pairs = [(b"", header()), (b"w", message(ENTRY))]
    assert "not sorted" in said(table_of([*pairs, (b"v", message(ENTRY))]))
    assert "not sorted" in said(table_of([*pairs, pairs[1]]))
    assert "not sorted" in said(table_of([*pairs, pairs[1]], each=2))
    assert "no header" in said(table_of(pairs[1:]))
    assert "big-endian" in said(table_of([(b"", header(endian=1)), pairs[1]]))
    assert "-1 data files" in said(table_of([(b"", header(-1)), pairs[1]]))
    assert "not valid UTF-8" in said(table_of([pairs[0], (b"\xff", message(ENTRY))]))
    assert "unknown compression method (2)" in said(table([sealed(bytes(8), 2)], [b"w"]))
    assert "cannot be decompressed" in said(table([sealed(varint(90) + b"\xff" * 9, 1)], [b"w"]))
    assert "claims to be 1000000000" in said(table([sealed(varint(10**9) + b"x", 1)], [b"w"]))
    assert "no valid end" in said(table([sealed(struct.pack("<I", 2**31))], [b"w"]))
    assert "longer than its block" in said(table([sealed(varint(9) * 3 + bytes(9))], [b"w"]))
    one = block(pairs)
    again = block([(b"x", varint(0) + varint(len(one) - 5)), (b"y", varint(0) + varint(len(one) - 5))])
    assert "overlap" in said(table([one], [b"w"], again))
    beyond = block([(b"x", varint(2**60) + varint(9))])
    assert "beyond the end of the table" in said(table([one], [b"w"], beyond))


def test_names_that_multiply(tmp_path):
    """Each key takes 60,000 bytes from the one before: a megabyte of entries would be gigabytes of names."""
    put_data(tmp_path / "m", [bytes(16)])
    name = b"n" * 60_000
    value = message(ENTRY)
    content = varint(0) + varint(0) + varint(len(header())) + header()
    content += varint(0) + varint(len(name)) + varint(len(value)) + name + value
    content += b"".join(
        varint(len(name) + i) + varint(1) + varint(len(value)) + b"n" + value for i in range(5000)
    )
    (tmp_path / "m.index").write_bytes(table([sealed(content + struct.pack("<II", 0, 1))], [b"o"]))
    assert "too long for a file of its size" in message_of(tmp_path / "m.index")


def test_reading_is_linear(tmp_path):
    """Eight times the variables, at most some twenty times as long."""

    def seconds(count: int) -> float:
        """Of the fastest of three readings: other work on the machine adds to some."""
        state = {f"block/{i:06}/kernel": np.ones(1, "f4") for i in range(count)}
        index = write_bundle(tmp_path / str(count) / "m", state)
        taken = []
        for _ in range(3):
            begun = time.process_time()
            assert len(read_tensorflow(index).tensors) == count
            taken.append(time.process_time() - begun)
        return min(taken)

    seconds(100)
    assert seconds(16_000) < 20 * max(seconds(2000), 0.02)


# Series, near and far


@pytest.fixture
def series(tmp_path) -> Path:
    return write_t5_series(tmp_path / "buckets" / "t5-data" / "base", STEPS)


def values_of(trace: ng.Trace) -> list:
    """Every row, with numbers as bits."""
    table = trace.records.table
    names = ["level", "name", "step", "quantity", "reference"]
    return [*table.select(names).to_pylist(), table["value"].to_numpy().tobytes()]


def counted_bytes() -> int:
    """Of the blocks of one checkpoint: no embedding, no final norms, no slots."""
    return sum(values.nbytes for name, values in t5_state().items() if "/block_" in name)


def test_a_series_of_t5(series):
    traced = ng.trace(series)
    assert traced.records.series("norm")[0].tolist() == list(STEPS)
    blocks = np.concatenate([v.ravel() for n, v in t5_state().items() if "/block_" in n])
    _, norms = traced.records.series("norm")
    assert norms[0] == pytest.approx(np.linalg.norm(blocks.astype("f8")), rel=1e-12)
    layers = {row["name"] for row in traced.records.where(level="layer").table.to_pylist()}
    assert layers == {f"{stack}.{i}" for stack in ("encoder", "decoder") for i in (0, 1)}
    both = ng.trace(series, include="encoder,decoder")
    assert both.records.series("norm")[1].tolist() == norms.tolist()


def test_from_a_web_server_only_what_counts_is_read(series):
    near = ng.trace(series)
    with RangeServer(series) as server:
        far = ng.trace(server.url)
        read = [r for r in server.requests if ".data-" in r.path and r.status == 206 and r.sent != 8]
        assert far.records.series("norm")[0].tolist() == list(STEPS)
        assert values_of(far) == values_of(near)
        assert sum(r.sent for r in read) == len(STEPS) * counted_bytes()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_from_a_bucket_without_keys(series, monkeypatch, tmp_path, scheme):
    pytest.importorskip("obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    with BucketServer(tmp_path / "buckets") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        far = ng.trace(f"{scheme}://t5-data/base")
        assert not any("authorization" in request.headers for request in server.requests)
    assert values_of(far) == values_of(ng.trace(series))


def test_from_s3_with_keys(series, monkeypatch, tmp_path):
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="t5-data")
        for path in series.iterdir():
            client.upload_file(str(path), "t5-data", f"base/{path.name}")
        assert values_of(ng.trace("s3://t5-data/base")) == values_of(ng.trace(series))
    finally:
        server.stop()


def test_the_step_inside_wins_over_a_count_of_saves_far_away(tmp_path):
    for count, step in ((1, 50), (2, 100)):
        write_bundle(tmp_path / f"ckpt-{count}", with_slots(t5_state(), step))
    with RangeServer(tmp_path) as server:
        series = open_source(server.url)
    assert [entry.step for entry in series.entries] == [50, 100]
    assert {entry.step_origin for entry in series.entries} == {"stored"}


def test_damage_far_away_is_noticed_while_it_is_read(tmp_path):
    """In a tensor that is cut into several stripes, by joining their checksums."""
    rng = np.random.default_rng(0)
    big = "encoder/block_000/layer_001/DenseReluDense/wi/kernel"
    folder = tmp_path / "big"
    for step in (0, 1):
        state = {**t5_state(seed=step), big: rng.normal(size=(2100, 2100)).astype("f4")}
        write_bundle(folder / f"model.ckpt-{step}", state)
    with RangeServer(folder) as server:
        whole = ng.trace(server.url)
        assert values_of(whole) == values_of(ng.trace(folder))
        checkpoint = open_source(server.url).entries[1].open()
        assert isinstance(checkpoint, RemoteCheckpoint)
        piece = checkpoint.ranges[big][0]
        assert len(list(cut(job_of(server.url, [big]), 1 << 30, 8))) > 1
        data = folder / "model.ckpt-1.data-00000-of-00001"
        raw = bytearray(data.read_bytes())
        raw[piece.offset + 4 * 4_399_999] ^= 1
        data.write_bytes(raw)
        for out in (None, tmp_path / "out", tmp_path / "out"):
            with pytest.raises(DamagedTensor, match=r"ckpt-1\.data-00000-of-00001") as caught:
                ng.trace(server.url, out=out)
            assert caught.value.tensor == big
        assert any(finding.kind == "partial" for finding in ng.lint(server.url).findings)
        raw[piece.offset + 4 * 4_399_999] ^= 1
        data.write_bytes(raw)
        assert values_of(ng.trace(server.url, out=tmp_path / "out", overwrite=True)) == values_of(whole)


def job_of(url: str, names: list[str]) -> Job:
    opened = {i: entry.open() for i, entry in enumerate(open_source(url).entries)}
    numel = np.array([opened[0].tensors[name].numel for name in names], np.int64)
    return Job(opened, dict.fromkeys(opened, ()), names, numel, None)


def test_a_variable_in_parts_far_away(tmp_path, rng):
    """Parts that TensorFlow wrote one by one are put together, and the sums are those of this machine."""
    for step in (0, 1):
        state = t5_state(seed=step)
        name = "encoder/block_000/layer_000/SelfAttention/q"
        value = rng.normal(size=(1200, 1200)).astype("f4")
        entries, data = bundle_entries({**state, "one": value[:500].copy(), "two": value[500:].copy()})
        one, two = message(entries.pop("one")), message(entries.pop("two"))
        extents = [message([(1, message([(2, 500)])), (1, b"")])]
        extents += [message([(1, message([(1, 500), (2, 700)])), (1, b"")])]
        entries[name] = [(1, 1), (2, shape_field((1200, 1200))), *((7, extent) for extent in extents)]
        key = b"\0" + name.encode() + b"\0\x01\x01\x02"
        parts = [(key + b"\x80\xc1\xf4\x80\x7f", one), (key + b"\xc1\xf4\xc2\xbc\x80\x7f", two)]
        keyed = sorted((n.encode(), message(own)) for n, own in entries.items())
        put_data(tmp_path / f"model.ckpt-{step}", data)
        (tmp_path / f"model.ckpt-{step}.index").write_bytes(table_of([(b"", header()), *parts, *keyed]))
    with RangeServer(tmp_path) as server:
        assert values_of(ng.trace(server.url)) == values_of(ng.trace(tmp_path))
        checkpoint = open_source(server.url).entries[0].open()
        near = open_source(tmp_path).entries[0].open()
        assert checkpoint.dense(name).tobytes() == near.dense(name).tobytes()
        assert pickle.loads(pickle.dumps(near)).dense(name).tobytes() == near.dense(name).tobytes()


def test_no_tensorflow_and_no_torch_is_imported(series):
    code = f"import sys, normgrowth; normgrowth.trace({str(series)!r}); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "tensorflow"} & {name.partition(".")[0] for name in ran.stdout.split()}


def test_a_string_that_lies(tmp_path):
    content, _ = string_content(b"x" * 10)
    for stored in (content[:-1], varint(2**40) + content[1:], content[:-1] + b"y"):
        put_data(tmp_path / "m", [bytes(16) + stored])
        own = entry(7, (), 0, 16, stored)
        index = put_index(tmp_path / "m", {"w": ENTRY, "_CHECKPOINTABLE_OBJECT_GRAPH": own})
        assert "_CHECKPOINTABLE_OBJECT_GRAPH" in message_of(index)
