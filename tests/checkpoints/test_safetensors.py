"""safetensors, written by its own library and read by us; then every way a header can lie."""

import json
import pickle
import struct
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from synthetic_series import tiny_state

import normgrowth
from normgrowth.checkpoints.checkpoint import decode
from normgrowth.checkpoints.formats.safetensors import read_safetensors, read_sharded
from normgrowth.checkpoints.parameters.roles import role_of
from normgrowth.cli.main import main
from normgrowth.errors import InputError, SeriesWarning, UnsupportedDtype
from normgrowth.records import Block, Records


def raw_file(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool,
     torch.float8_e4m3fn, torch.float8_e5m2],
)  # fmt: skip
def test_values_equal_what_the_library_wrote(tmp_path, dtype):
    state = {
        "b.weight": torch.randn(3, 5).to(dtype),
        "a": torch.arange(4).to(dtype),
        "empty": torch.zeros(0, 3).to(dtype),
    }
    save_file(state, tmp_path / "m.safetensors", metadata={"step": "700", "format": "pt"})
    checkpoint = read_safetensors(tmp_path / "m.safetensors")
    assert checkpoint.step == 700
    assert set(checkpoint.tensors) == set(state)
    for name, tensor in state.items():
        stored = checkpoint.tensors[name]
        assert stored.shape == tuple(tensor.shape)
        values = decode(stored.dtype, checkpoint.dense(name)).reshape(stored.shape)
        np.testing.assert_array_equal(values, tensor.float().double().numpy())


@pytest.mark.parametrize("words", [30_000, 2_500_000])
def test_a_name_that_is_too_long_is_refused_at_once(tmp_path, words):
    name = ".".join("a" for _ in range(words))
    path = raw_file(tmp_path / "m.safetensors", {name: entry()}, bytes(8))
    np.savez(tmp_path / "m.npz", **({name: np.ones(2)} if words < 32_768 else {"w" * 5000: np.ones(2)}))
    for file in (path, tmp_path / "m.npz"):
        start = time.monotonic()
        with pytest.raises(InputError, match="characters") as caught:
            normgrowth.parameters(file)
        assert time.monotonic() - start < 5
        assert len(str(caught.value)) < 500


def test_the_role_of_a_name_takes_time_in_proportion_to_its_words():
    name = ".".join(f"a{i}" for i in range(20_000))
    start = time.monotonic()
    assert role_of(f"attention.{name}.dense", True) == "attention.output"
    assert role_of(name, True) == "other"
    assert time.monotonic() - start < 2


def test_values_are_views_of_the_mapped_file(tmp_path):
    save_file(tiny_state(), tmp_path / "m.safetensors")
    checkpoint = read_safetensors(tmp_path / "m.safetensors")
    (piece,) = checkpoint.pieces("lm_head.weight")
    assert not piece.flags.owndata
    assert not piece.flags.writeable


def test_shards_with_an_index(tmp_path):
    state = tiny_state()
    names = list(state)
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for shard, part in shards.items():
        save_file({name: state[name] for name in part}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    checkpoint = read_sharded(index)
    assert list(checkpoint.tensors) == names
    for name in names:
        np.testing.assert_array_equal(checkpoint.dense(name).view(np.float32), state[name].numpy().ravel())


BAD_HEADERS = {
    "header beyond the file": dict(header={"x": entry()}, data=bytes(8), length=10_000),
    "header of 2^63 bytes": dict(header={"x": entry()}, length=1 << 63),
    "no JSON": dict(header=b"{not json}"),
    "not UTF-8": dict(header=b'{"\xff": 1}'),
    "nested too deep": dict(header=b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "no object": dict(header=b"[1]"),
    "entry is a number": dict(header={"x": 3}),
    "no dtype": dict(header={"x": {"shape": [2], "data_offsets": [0, 8]}}, data=bytes(8)),
    "negative size": dict(header={"x": entry(shape=(-2,))}, data=bytes(8)),
    "size is a fraction": dict(header={"x": entry(shape=(2.0,))}, data=bytes(8)),
    "size is true": dict(header={"x": entry(shape=(True, 2))}, data=bytes(8)),
    "offsets out of range": dict(header={"x": entry(offsets=(0, 8))}, data=bytes(7)),
    "offsets reversed": dict(header={"x": entry(offsets=(8, 0))}, data=bytes(8)),
    "offsets negative": dict(header={"x": entry(offsets=(-8, 0))}, data=bytes(8)),
    "three offsets": dict(header={"x": entry(offsets=(0, 4, 8))}, data=bytes(8)),
    "bytes do not fit the shape": dict(header={"x": entry(shape=(3,))}, data=bytes(8)),
    "overlap": dict(header={"x": entry(), "y": entry(offsets=(4, 12))}, data=bytes(12)),
    "a size that text is multiplied by": dict(header={"x": entry(shape=("ab", 10**15))}, data=bytes(8)),
    "a size that a list is multiplied by": dict(header={"x": entry(shape=([1], 10**12))}, data=bytes(8)),
    "shape is text": dict(header={"x": entry() | {"shape": "2"}}, data=bytes(8)),
    "shape is an object": dict(header={"x": entry() | {"shape": {"2": 2}}}, data=bytes(8)),
    "offsets are text": dict(header={"x": entry() | {"data_offsets": "08"}}, data=bytes(8)),
    "offsets are an object": dict(header={"x": entry() | {"data_offsets": {"0": 0, "8": 8}}}, data=bytes(8)),
    "offset is text": dict(header={"x": entry(offsets=(0, "8"))}, data=bytes(8)),
    "offset is a fraction": dict(header={"x": entry(offsets=(0, 8.0))}, data=bytes(8)),
    "offset is false": dict(header={"x": entry(offsets=(False, 8))}, data=bytes(8)),
    "entry is text": dict(header={"x": "dtype shape data_offsets"}, data=bytes(8)),
    "dtype is a list": dict(header={"x": entry(dtype=["F32"])}, data=bytes(8)),
    "dtype is half a character": dict(header={"x": entry(dtype="\ud800")}, data=bytes(8)),
    "dtype is a sentence": dict(header={"x": entry(dtype="F32\nF32 \x1b[2J")}, data=bytes(8)),
    "name is half a character": dict(header={"\ud800": entry()}, data=bytes(8)),
    "too many axes": dict(header={"x": entry(shape=(1,) * 100_000 + (2,))}, data=bytes(8)),
    "too many axes of a dtype that is not read": dict(
        header={"x": entry(dtype="C64", shape=(10**18,) * 100_000)}, data=bytes(8)
    ),
    "more values than can be counted": dict(
        header={"x": entry(dtype="F4", shape=(2**40, 2**40))}, data=bytes(8)
    ),
    "the same bytes twice": dict(header={"x": entry(), "y": entry()}, data=bytes(8)),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_header_that_lies_is_refused_in_one_line(tmp_path, case):
    path = raw_file(tmp_path / "bad.safetensors", **BAD_HEADERS[case])
    with pytest.raises(InputError) as error:
        read_safetensors(path)
    assert "bad.safetensors" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_number_of_5000_digits_is_refused_in_our_own_words(tmp_path):
    digits = "1" * 5000
    header = f'{{"w": {{"dtype": "F32", "shape": [2], "data_offsets": [0, {digits}]}}}}'
    path = raw_file(tmp_path / "m.safetensors", header.encode(), bytes(8))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(f'{{"metadata": {digits}, "weight_map": {{"w": "m.safetensors"}}}}')
    folder = tmp_path / "result"
    folder.mkdir()
    Records.from_blocks(
        "run", [Block("model", ["model"], [None], [None], [1], {"norm": np.ones((1, 1))})]
    ).write(folder)
    (folder / "records.json").write_text(f'{{"kind": {digits}}}')
    for call in (
        lambda: read_safetensors(path),
        lambda: read_sharded(index),
        lambda: normgrowth.load(folder),
    ):
        with pytest.raises(InputError, match="too many digits") as caught:
            call()
        assert "sys." not in str(caught.value)


@pytest.mark.parametrize("verb", ["trace", "lint", "parameters", "fit", "compare", "degrees"])
def test_an_empty_name_is_no_source(tmp_path, monkeypatch, capsys, verb):
    save_file(tiny_state(), tmp_path / "step_1.safetensors")
    monkeypatch.chdir(tmp_path)
    assert main([verb, "", *([""] if verb == "compare" else [])]) == 2
    assert "is empty" in capsys.readouterr().err
    with pytest.raises(InputError, match="is empty"):
        normgrowth.open_source("")
    assert len(normgrowth.open_source(".")) == 1


@pytest.mark.parametrize("size", [0, 3, 8, 9, 100])
def test_a_truncated_file(tmp_path, size):
    path = tmp_path / "cut.safetensors"
    save_file(tiny_state(), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"cut\.safetensors"):
        read_safetensors(path)


def test_data_that_ends_early(tmp_path):
    path = tmp_path / "cut.safetensors"
    save_file(tiny_state(), path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        read_safetensors(path)


@pytest.mark.parametrize(
    "shard",
    ["../secret.safetensors", "/etc/passwd", "a/../../b", "..\\x", "C:\\x", "", "a\0b", 3, None, ["x"]],
)
def test_an_index_that_leaves_its_folder(tmp_path, shard):
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file({"x": torch.ones(2)}, tmp_path / "secret.safetensors")
    index = inside / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(InputError, match="outside its folder"):
        read_sharded(index)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{", "[" * 100_000]
)
def test_an_index_that_is_none(tmp_path, text):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(InputError, match=r"index\.json"):
        read_sharded(index)


@pytest.mark.parametrize("shard", ["x" * 5000, "\ud800.safetensors", "x" * 100 + "/" + "y" * 300])
def test_an_index_with_names_that_no_file_system_takes(tmp_path, shard):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(InputError, match="is missing"):
        read_sharded(index)


def test_an_index_and_shards_that_disagree(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}))
    with pytest.raises(InputError, match=r"lists tensor y in a\.safetensors"):
        read_sharded(index)
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "missing.safetensors"}}))
    with pytest.raises(InputError, match=r"missing.safetensors.*is missing"):
        read_sharded(index)


@pytest.mark.parametrize("dtype", ["C64", "F4", "F8_E8M0", "F6_E2M3"])
def test_a_dtype_that_cannot_be_measured(tmp_path, dtype):
    """Its place in the index; else it is left out with a reason, or an error names it."""
    name = "transformer.h.0.attn.c_attn.weight"
    for step in (0, 1):
        plain = entry(shape=(2, 1))
        raw_file(
            tmp_path / f"step_{step}.safetensors",
            {"transformer.h.0.mlp.c_fc.weight": plain, name: entry(dtype, (4, 2), (8, 40))},
            bytes(40),
        )
    checkpoint = read_safetensors(tmp_path / "step_0.safetensors")
    assert (checkpoint.tensors[name].dtype, checkpoint.tensors[name].nbytes) == (dtype, 0)
    with pytest.raises(UnsupportedDtype) as error:
        checkpoint.dense(name)
    assert (error.value.tensor, error.value.dtype) == (name, dtype)
    assert pickle.loads(pickle.dumps(error.value)).tensor == name
    with pytest.raises(UnsupportedDtype, match="--exclude"):
        normgrowth.trace(tmp_path)
    assert len(normgrowth.trace(tmp_path, exclude="attn", lint=False).records)
    report = normgrowth.lint(tmp_path)
    assert report.steps == (0, 1)
    assert any(found.kind == "dtype" and found.name == name and dtype in found.why for found in report)
    with pytest.warns(SeriesWarning, match=dtype):
        values = list(normgrowth.open_source(tmp_path))
    assert [(step, its) for step, its, _ in values] == [
        (step, "transformer.h.0.mlp.c_fc.weight") for step in (0, 1)
    ]


def test_a_dtype_that_cannot_be_measured_is_named_in_the_table(tmp_path, capsys):
    header = {
        "h.0.attn.q.weight": entry("C64", (1, 2), (0, 16)),
        "h.0.mlp.weight": entry("F32", (2, 2), (16, 32)),
    }
    raw_file(tmp_path / "step_1.safetensors", header, bytes(32))
    assert main(["parameters", str(tmp_path), "--json"]) == 0
    reasons = {row["name"]: row["reason"] for row in json.loads(capsys.readouterr().out)["parameters"]}
    assert "--exclude" in reasons["h.0.attn.q.weight"]
    assert "--exclude" not in reasons["h.0.mlp.weight"]


def test_values_of_a_series_belong_to_the_reader(tmp_path):
    """Not to the file, which may be gone by the time that they are looked at."""
    save_file({"x": torch.ones(3, dtype=torch.float64)}, tmp_path / "step_1.safetensors")
    ((_, _, values),) = normgrowth.open_source(tmp_path)
    assert values.flags.writeable


# --- fuzzing ----------------------------------------------------------------------------------

numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
fields = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(["F32", "BF16", "BOOL", "C64", "F4"]), numbers),
        "shape": st.one_of(st.lists(st.one_of(st.integers(-2, 40), numbers), max_size=3), numbers),
        "data_offsets": st.one_of(st.lists(st.one_of(st.integers(-4, 200), numbers), max_size=3), numbers),
        "more": numbers,
    },
)
headers = st.dictionaries(st.text(max_size=4), st.one_of(fields, numbers), max_size=4)


def survives(read, path):
    """Either a clear error, or a checkpoint of which every tensor can be read."""
    try:
        checkpoint = read(path)
        for name, tensor in checkpoint.tensors.items():
            if tensor.dtype in ("F32", "BF16", "BOOL"):
                assert checkpoint.dense(name).size == tensor.numel
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=500, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=headers, data=st.binary(max_size=64), length=st.one_of(st.none(), st.integers(0, 2**64 - 1)))
@example(header={"x": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 0]}}, data=b"", length=None)
def test_fuzzed_headers(tmp_path, header, data, length):
    survives(read_safetensors, raw_file(tmp_path / "f.safetensors", header, data, length))


@settings(max_examples=300, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes(tmp_path, flips):
    path = tmp_path / "whole.safetensors"
    if not path.exists():
        save_file(tiny_state(layers=1), path)
    content = bytearray(path.read_bytes())
    for place, value in flips:
        content[place % len(content)] = value
    (tmp_path / "flipped.safetensors").write_bytes(content)
    survives(read_safetensors, tmp_path / "flipped.safetensors")


@settings(max_examples=300, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.recursive(numbers, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3)),
        st.fixed_dictionaries(
            {"weight_map": st.dictionaries(st.text(max_size=4), st.one_of(numbers, st.text()))}
        ),
    )
)
def test_fuzzed_indices(tmp_path, content):
    save_file({"x": torch.ones(2)}, tmp_path / "x")
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(
        content if isinstance(content, bytes) else json.dumps(content).encode("utf-8", "surrogatepass")
    )
    survives(read_sharded, index)
