"""Checkpoints whose headers, indexes, metadata and sidecars have other types and another structure.

Whatever they say, `trace`, `lint` and `names` end with a result or with one line that names the file, in bounded time
and memory. Mutations are of JSON values, of the pickled metadata's fields, and of the pickle's opcodes.

`make test-all` draws 2,100 cases here and 640 in `test_own_files.py`, each through whole commands; 3,000 more in
`test_pytorch_fuzz.py` and 1,000 in `network/test_model_config.py` go through the readers alone. On one core: 3 minutes.
"""

import copy
import json
import pickle
import shutil
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from bundle_files import (
    blocks_of,
    bundle_entries,
    message,
    put_index,
    sealed,
    shape_field,
    t5_state,
    with_slots,
    write_bundle,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import bounded, cases
from mutations import ODD, as_json, mutated_bytes, mutated_value, odd_values
from synthetic_series import save_file, tiny_state
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from normgrowth.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

COMMANDS = ("trace", "lint", "parameters")
STEPS = (0, 100)


def fuzz(search: int):
    """Few examples in `make test`, many in `make test-all`."""
    quick = cases(12, search)
    return settings(
        quick,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )


def survives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command ends with a result, or with exit code 2 and one line for each remark."""
    for command in COMMANDS:
        with bounded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main([command, str(folder), "--json"])
        printed, said = capsys.readouterr()
        assert code in (0, 1, 2), said
        assert "Traceback" not in said
        assert all(line.startswith("normgrowth: ") for line in said.splitlines()), said
        if code == 0:
            json.loads(printed)
        elif code == 2:
            assert said


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def put_header(path: Path, text: str, data: bytes) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """Two steps of one file each, with a trainer's log beside the second."""
    folder = tmp_path_factory.mktemp("plain")
    for step in STEPS:
        (folder / f"checkpoint-{step}").mkdir()
        state = {
            name: tensor for name, tensor in tiny_state(step, layers=1, width=4).items() if "h.0" in name
        }
        save_file(state, folder / f"checkpoint-{step}" / "model.safetensors", metadata={"step": str(step)})
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    for step in STEPS:
        (folder / f"checkpoint-{step}").mkdir()
        state = {
            name: tensor for name, tensor in tiny_state(step, layers=1, width=4).items() if "h.0" in name
        }
        names = list(state)
        for i, shard in enumerate(SHARDS):
            save_file({name: state[name] for name in names[i::2]}, folder / f"checkpoint-{step}" / shard)
        weight_map = {name: SHARDS[i % 2] for i, name in enumerate(names)}
        (folder / f"checkpoint-{step}" / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
        )
    return folder


@pytest.fixture(scope="module")
def distributed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    for step in STEPS:
        state = {
            name: tensor for name, tensor in tiny_state(step, layers=1, width=4).items() if "h.0" in name
        }
        dcp.save({"model": state, "step": step}, checkpoint_id=folder / f"step_{step}", no_dist=True)
    return folder


def changed(original: Path, tmp_path: Path, file: str, content: bytes) -> Path:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    (folder / file).write_bytes(content)
    return folder


SPECIAL = st.sampled_from(
    ["C64", "F4", "F8_E8M0", "\ud800", "f32", 2**62, 2**63, "8", [8], 8.0, True, -8, 10**400]
)


@fuzz(400)
@given(data=st.data())
def test_headers(plain, tmp_path, capsys, data):
    header, values = header_of(plain / "checkpoint-100" / "model.safetensors")
    if data.draw(st.booleans()):
        mutant = copy.deepcopy(header)
        name = data.draw(st.sampled_from([name for name in mutant if name != "__metadata__"]))
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        value = mutant[name][field]
        if isinstance(value, list) and value and data.draw(st.booleans()):
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(SPECIAL)
        else:
            mutant[name][field] = data.draw(SPECIAL)
    else:
        mutant = data.draw(mutated_value(header))
    folder = changed(plain, tmp_path, "checkpoint-100/model.safetensors", b"")
    put_header(folder / "checkpoint-100" / "model.safetensors", as_json(mutant), values)
    survives(folder, capsys)


@fuzz(200)
@given(data=st.data())
def test_indexes(sharded, tmp_path, capsys, data):
    name = "checkpoint-100/model.safetensors.index.json"
    mutant = data.draw(mutated_value(json.loads((sharded / name).read_text())))
    survives(changed(sharded, tmp_path, name, as_json(mutant).encode("utf-8", "surrogatepass")), capsys)


@fuzz(100)
@given(data=st.data())
def test_shards(sharded, tmp_path, capsys, data):
    file = f"checkpoint-100/{data.draw(st.sampled_from(SHARDS))}"
    header, values = header_of(sharded / file)
    folder = changed(sharded, tmp_path, file, b"")
    put_header(folder / file, as_json(data.draw(mutated_value(header))), values)
    survives(folder, capsys)


@fuzz(100)
@given(data=st.data())
def test_sidecars(plain, tmp_path, capsys, data):
    mutant = data.draw(mutated_value({"global_step": 100, "log_history": [{"loss": 1.0, "step": 100}]}))
    content = as_json(mutant, data.draw(st.sampled_from([900, 100_000]))).encode("utf-8", "surrogatepass")
    folder = changed(plain, tmp_path, "checkpoint-100/trainer_state.json", content)
    (folder / "checkpoint-100").rename(folder / "latest")  # so that only the log says the step
    survives(folder, capsys)


# The metadata of a distributed checkpoint: a pickle of dataclasses.

NUMBERS = st.sampled_from([-1, 0, 1, 3, 2**31, 2**62, 2**63, 2**200, True, 0.5, "4", None, (4,), [4]])
SIZES = st.one_of(
    st.lists(st.integers(0, 6), max_size=4).map(tuple),
    st.sampled_from(
        [(0,) * 300, (2**62,), (2**61, 2**61), (-1,), ("4",), (True,), [4], None, 4, "44", ((4,),)]
    ),
)
PATHS = st.sampled_from(
    ["", "../x", "/etc/passwd", "__9_0.distcp", "a\0b", "\ud800", 3, None, ".metadata", "x" * 5000]
)
DTYPES = st.sampled_from(
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int8,
        torch.complex64,
        torch.bool,
        "torch.float32",
        None,
        3,
    ]
)


def mutate_metadata(draw: Any, metadata: Any) -> None:
    """One lie, of the kinds that reach deep."""
    name = draw(st.sampled_from([n for n, e in metadata.state_dict_metadata.items() if hasattr(e, "chunks")]))
    entry = metadata.state_dict_metadata[name]
    index = draw(st.sampled_from(list(metadata.storage_data)))
    place = metadata.storage_data[index]
    match draw(st.integers(0, 13)):
        case 0:
            object.__setattr__(entry, "size", draw(SIZES))
        case 1:
            entry.chunks[0] = ChunkStorageMetadata(draw(SIZES), draw(SIZES))
        case 2:
            entry.chunks += [copy.copy(entry.chunks[0]) for _ in range(draw(st.sampled_from([1, 2, 2000])))]
        case 3:
            object.__setattr__(entry, "chunks", draw(odd_values()))
        case 4:
            object.__setattr__(entry.properties, "dtype", draw(DTYPES))
        case 5:
            place.offset = draw(NUMBERS)
        case 6:
            place.length = draw(NUMBERS)
        case 7:
            place.relative_path = draw(PATHS)
        case 8:  # two tensors in one place
            other = draw(st.sampled_from(list(metadata.storage_data)))
            metadata.storage_data[index] = metadata.storage_data[other]
        case 9:
            metadata.state_dict_metadata[name] = draw(odd_values())
        case 10:
            metadata.storage_data = draw(
                st.one_of(odd_values(), st.just({"x": place}), st.just({index: "x"}))
            )
        case 11:  # cut into rows that need not fit
            shape = entry.size
            rows = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5))
            entry.chunks[:] = [
                ChunkStorageMetadata(
                    torch.Size((start, *(0,) * (len(shape) - 1))), torch.Size((n, *shape[1:]))
                )
                for start, n in rows
            ]
        case 12:
            name = draw(st.sampled_from(["", "a\nb", "step", "x" * 10_000, "model.step"]))
            metadata.state_dict_metadata[name] = entry
            metadata.storage_data[MetadataIndex(name, entry.chunks[0].offsets)] = place
        case _:
            metadata.state_dict_metadata[draw(st.sampled_from([3, None, (1, 2), True, 0.5]))] = entry


@fuzz(400)
@given(data=st.data())
def test_metadata(distributed, tmp_path, capsys, data):
    metadata = pickle.loads((distributed / "step_100" / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        try:
            mutate_metadata(data.draw, metadata)
        except (AttributeError, TypeError, ValueError, LookupError):  # what an earlier lie took away
            break
    try:
        content = pickle.dumps(metadata, protocol=data.draw(st.sampled_from([2, 4, 5])))
    except (pickle.PicklingError, TypeError, AttributeError, UnicodeEncodeError, RecursionError):
        return  # torch's own classes refuse it
    survives(changed(distributed, tmp_path, "step_100/.metadata", content), capsys)


OPCODES = b"".join([pickle.MARK, pickle.POP, pickle.DUP, pickle.NONE, pickle.EMPTY_DICT, pickle.EMPTY_LIST])
OPCODES += b"".join(
    [pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.REDUCE, pickle.BUILD, pickle.APPEND]
)
OPCODES += b"".join(
    [pickle.SETITEM, pickle.SETITEMS, pickle.MEMOIZE, pickle.NEWOBJ, pickle.STACK_GLOBAL, pickle.STOP]
)


@fuzz(200)
@given(data=st.data())
def test_pickled_metadata(distributed, tmp_path, capsys, data):
    """Opcodes put in, taken out or exchanged."""
    content = bytearray((distributed / "step_100" / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(2, len(content) - 1))
        opcode = OPCODES[data.draw(st.integers(0, len(OPCODES) - 1))]
        content[place : place + data.draw(st.integers(0, 1))] = bytes([opcode])
    survives(changed(distributed, tmp_path, "step_100/.metadata", bytes(content)), capsys)


@fuzz(100)
@given(data=st.data())
def test_bytes_of_every_file(distributed, sharded, bundle, tmp_path, capsys, data):
    original = data.draw(st.sampled_from([distributed, sharded, bundle]))
    files = sorted(str(path.relative_to(original)) for path in original.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files))
    mutant = data.draw(mutated_bytes((original / file).read_bytes()))
    survives(changed(original, tmp_path, file, mutant), capsys)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Two steps of a small T5 as TensorFlow saves it, one of them with a graph of objects."""
    folder = tmp_path_factory.mktemp("bundle")
    graph = message([(1, message([(1, message([(1, 1), (2, b"model")]))])), (1, b"")])
    for step in STEPS:
        state = with_slots(t5_state(seed=step, layers=1), step)
        write_bundle(folder / f"model.ckpt-{step}", {**state, OBJECT_GRAPH: graph}, shards=2)
    return folder


OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
NUMBERS = [0, 1, -1, 7, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, -(2**63)]


@fuzz(300)
@given(data=st.data())
def test_entries_of_a_bundle(bundle, tmp_path, capsys, data):
    """Fields with other numbers, of another kind, dropped or doubled, in a table whose checksums are right."""
    entries, _ = bundle_entries(
        {**with_slots(t5_state(seed=100, layers=1), 100), OBJECT_GRAPH: b"\x0a\x00"}, 2
    )
    for _ in range(data.draw(st.integers(1, 3))):
        fields = entries[data.draw(st.sampled_from(sorted(entries)))]
        place = data.draw(st.integers(0, len(fields) - 1))
        number, old = fields[place]
        how = data.draw(st.sampled_from(["number", "number", "shape", "bytes", "drop", "double", "slice"]))
        if how == "drop":
            fields[place] = (15, 0)
        elif how == "double":
            fields.append(data.draw(st.sampled_from(entries["shared/embedding"])))
        elif how == "slice":
            extent = message(
                [(1, data.draw(st.sampled_from(NUMBERS))), (2, data.draw(st.sampled_from(NUMBERS)))]
            )
            fields.append((7, message([(1, extent)] * data.draw(st.integers(0, 3)))))
        elif how == "shape":
            fields[place] = (2, shape_field(data.draw(st.lists(st.sampled_from(NUMBERS), max_size=3))))
        elif how == "bytes" and isinstance(old, bytes):
            fields[place] = (number, data.draw(mutated_bytes(old)))
        else:
            fields[place] = (number, data.draw(st.sampled_from(NUMBERS)))
    target = tmp_path / "run"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(bundle, target)
    put_index(target / "model.ckpt-100", entries, 2)
    survives(target, capsys)


@fuzz(300)
@given(data=st.data())
def test_blocks_of_a_bundle(bundle, tmp_path, capsys, data):
    """Bytes of a block, or of the footer, changed; its checksum is made right again."""
    content = (bundle / "model.ckpt-100.index").read_bytes()
    footer = content[-48:]
    blocks = blocks_of(content)
    place = data.draw(st.integers(0, len(blocks)))
    if place == len(blocks):
        footer = data.draw(mutated_bytes(footer[:-8])) + footer[-8:]
    else:
        blocks[place] = sealed(data.draw(mutated_bytes(blocks[place][:-5])), data.draw(st.integers(0, 2)))
    survives(changed(bundle, tmp_path, "model.ckpt-100.index", b"".join(blocks) + footer), capsys)


def test_every_odd_value_in_every_field_of_a_header(plain, tmp_path):
    """All of them, by the reader alone: what the commands meet by chance above."""
    from normgrowth.checkpoints.formats.safetensors import read_safetensors
    from normgrowth.errors import InputError

    header, values = header_of(plain / "checkpoint-0" / "model.safetensors")
    name = next(name for name in header if name != "__metadata__")
    path = tmp_path / "x.safetensors"
    for field in ("dtype", "shape", "data_offsets"):
        for odd in ODD:
            for value in (odd, [odd], [odd, odd], [0, odd], [odd, 2**40]):
                mutant = copy.deepcopy(header)
                mutant[name][field] = value
                put_header(path, as_json(mutant), values)
                try:
                    with bounded():
                        checkpoint = read_safetensors(path)
                        assert all(np.isfinite(t.numel) for t in checkpoint.tensors.values())
                except InputError as error:
                    assert "\n" not in str(error)  # noqa: PT017
