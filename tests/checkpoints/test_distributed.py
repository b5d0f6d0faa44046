"""DCP folders: what torch writes is read to the bit, what nobody should write is refused.

The reference is torch's own loader. Folders that torch would not write (overlapping boxes, paths
that lead elsewhere, pickles that would run) are put together here from torch's own classes.
"""

import copyreg
import io
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import bounded
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as OldProperties
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from normgrowth.checkpoints.checkpoint import Chunked, MappedCheckpoint, Strided
from normgrowth.checkpoints.formats.dcp import is_dcp_folder, read_distributed
from normgrowth.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SHARDED = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 1)).bfloat16()
model[0].float()
for layer in model:
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model[2](model[1](model[0](torch.randn(3, 7)).bfloat16())).float().square().sum().backward()
optimizer.step()
weights, moments = get_state_dict(model, optimizer)
state = {
    "model": weights,
    "optimizer": moments,
    "columns": distribute_tensor(torch.randn(4, 9), mesh, [Shard(1)]),
    "replicated": distribute_tensor(torch.randn(3, 3), mesh, [Replicate()]),
    "plain": torch.arange(6.0).reshape(2, 3),
    "train_state": {"step": torch.tensor(12, dtype=torch.int32)},
}
dcp.save(state, checkpoint_id=folder)
os.close(1)  # this rank has finished
sys.stdin.read()  # until both have
os._exit(0)  # without teardown: threads of the process group can abort the process
"""


def save(folder: Path, state: dict) -> Path:
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def reference(folder: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """All tensors, by torch's own reader."""
    dcp_to_torch_save(folder, scratch / "reference.pt")
    tensors: dict[str, torch.Tensor] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            tensors[prefix] = value
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), inner)

    walk("", torch.load(scratch / "reference.pt", weights_only=True))
    return tensors


def same_bits(checkpoint: MappedCheckpoint, name: str, tensor: torch.Tensor) -> bool:
    expected = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return (
        checkpoint.tensors[name].shape == tuple(tensor.shape)
        and np.array_equal(checkpoint.dense(name).view(np.uint8), expected)
        and sum(piece.size for piece in checkpoint.pieces(name)) == tensor.numel()
    )


def assert_agrees(folder: Path, scratch: Path) -> MappedCheckpoint:
    checkpoint, expected = read_distributed(folder), reference(folder, scratch)
    assert set(checkpoint.tensors) == set(expected)
    assert [name for name in expected if not same_bits(checkpoint, name, expected[name])] == []
    return checkpoint


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_distributed(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert folder.name in message
    return message


def write(
    folder: Path,
    boxes: dict[tuple[int, ...], torch.Tensor],
    shape: tuple[int, ...],
    *,
    relative: str = "__0_0.distcp",
    properties: type = TensorProperties,
    **info: object,
) -> Path:
    """A folder with one tensor `w`, made of the given boxes by their corners."""
    folder.mkdir(exist_ok=True)
    data, places, chunks = io.BytesIO(), {}, []
    for corner, tensor in boxes.items():
        start = data.tell()
        torch.save(tensor, data)
        places[MetadataIndex("w", corner)] = _StorageInfo(relative, start, data.tell() - start, **info)
        chunks.append(ChunkStorageMetadata(torch.Size(corner), tensor.shape))
    dtype = next(iter(boxes.values())).dtype
    entry = TensorStorageMetadata(properties(dtype), torch.Size(shape), chunks)
    metadata = Metadata({"w": entry}, None, places, StorageMeta(folder, "id"), "1.0.0")
    (folder / "__0_0.distcp").write_bytes(data.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by two processes: FSDP2 with AdamW, and DTensors."""
    scratch = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, "-W", "ignore", "-c", SHARDED]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), scratch / "store", scratch / "run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.read()
    errors = [rank.communicate(timeout=300)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    return scratch / "run"


def one_of_each() -> dict:
    torch.manual_seed(1)
    return {
        "model": {
            "float32": torch.randn(3, 4),
            "bfloat16": torch.randn(5, 2).bfloat16(),
            "float16": torch.randn(7).half(),
            "float64": torch.randn(2, 2, 2).double(),
            "float8": torch.randn(9).to(torch.float8_e4m3fn),
            "int8": torch.arange(5, dtype=torch.int8),
            "uint16": torch.arange(3).to(torch.uint16),
            "bool": torch.tensor([True, False]),
            "transposed": torch.randn(3, 4).t(),
            "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
            "slice": torch.randn(6, 6)[1:4, ::2],
            "expanded": torch.randn(1, 3).expand(4, 3),
            "scalar": torch.tensor(2.5),
            "empty": torch.zeros(0, 3),
            "parameter": torch.nn.Parameter(torch.randn(2)),
        },
        "optimizer": {"state": {"0": {"exp_avg": torch.randn(3, 4), "step": torch.tensor(99.0)}}},
        "step": 1234,
        "note": "not a tensor",
    }


def test_what_one_process_saves(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", one_of_each())
    assert is_dcp_folder(folder)
    checkpoint = assert_agrees(folder, tmp_path)
    assert checkpoint.step == 1234
    assert checkpoint.tensors["model.float32"].layout is None
    assert checkpoint.tensors["model.transposed"].layout == Strided((1, 4))
    assert checkpoint.tensors["model.bfloat16"].dtype == "BF16"
    assert same_bits(
        pickle.loads(pickle.dumps(checkpoint)), "model.float32", one_of_each()["model"]["float32"]
    )


def test_what_two_processes_save(sharded: Path, tmp_path: Path) -> None:
    checkpoint = assert_agrees(sharded, tmp_path)
    assert checkpoint.step == 12
    assert checkpoint.tensors["model.0.weight"].layout == Chunked((((0, 0), (3, 7)), ((3, 0), (2, 7))))
    assert checkpoint.tensors["columns"].layout == Chunked((((0, 0), (4, 5)), ((0, 5), (4, 4))))
    assert checkpoint.tensors["model.2.weight"].layout is None  # one row: the second rank has nothing
    assert checkpoint.tensors["model.2.weight"].dtype == "BF16"
    assert checkpoint.tensors["replicated"].layout is None
    assert checkpoint.tensors["optimizer.state.0.weight.exp_avg"].shape == (5, 7)


def test_one_file_for_each_tensor(tmp_path: Path) -> None:
    writer = dcp.FileSystemWriter(tmp_path / "run", single_file_per_rank=False)
    dcp.save(one_of_each(), storage_writer=writer, no_dist=True)
    assert assert_agrees(tmp_path / "run", tmp_path).step == 1234


def test_torch_is_not_needed(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", {"w": torch.ones(2)})
    code = (
        "import sys; from pathlib import Path; from normgrowth.checkpoints.formats.dcp import *\n"
        f"read_distributed(Path({str(folder)!r})).dense('w'); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """A shape and boxes that make it up, by cutting boxes in two again and again."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [(tuple(0 for _ in shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        corner, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, size[axis]))
        first = tuple(cut if i == axis else n for i, n in enumerate(size))
        second = tuple(n - cut if i == axis else n for i, n in enumerate(size))
        there = tuple(c + cut if i == axis else c for i, c in enumerate(corner))
        boxes += [(corner, first), (there, second)]
    return shape, boxes


@given(partitions(), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_partition(tmp_path: Path, cut: tuple, dtype: torch.dtype) -> None:
    shape, boxes = cut
    whole = torch.randn(shape).to(dtype)
    kept = {
        corner: whole[tuple(slice(c, c + s) for c, s in zip(corner, size, strict=True))].clone()
        for corner, size in boxes
        if 0 not in size
    }
    checkpoint = read_distributed(write(tmp_path / "run", kept, shape))
    assert same_bits(checkpoint, "w", whole)
    if len(kept) > 1:  # the smallest lie: one box is not there, or there twice
        missing = dict(list(kept.items())[1:])
        assert "do not cover it" in refused(write(tmp_path / "run", missing, shape))


def test_older_newer_and_other_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(3, 2)
    folder = write(tmp_path / "run", {(0, 0): whole}, (3, 2), properties=OldProperties)  # torch 2.1
    assert same_bits(read_distributed(folder), "w", whole)
    raw = pickle.dumps(pickle.loads((folder / ".metadata").read_bytes()), protocol=2)
    raw = raw.replace(
        b"ctorch.distributed.checkpoint.filesystem\n", b"colmo_core.distributed.checkpoint.filesystem\n"
    )
    (folder / ".metadata").write_bytes(raw)
    assert b"olmo_core" in raw
    assert same_bits(read_distributed(folder), "w", whole)
    state = TensorProperties.__getstate__
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda self: (*state(self), (2, 1)))  # torch 2.15
    assert same_bits(read_distributed(write(tmp_path / "run", {(0, 0): whole}, (3, 2))), "w", whole)


@pytest.mark.parametrize(
    ("name", "value", "step"),
    [
        ("step", 7, 7),
        ("global_step", 2**40, 2**40),
        ("train_state.step", torch.tensor(8), 8),
        ("state.step", 9, 9),
        ("step", True, None),
        ("step", -1, None),
        ("step", 1.5, None),
        ("step", np.int64(3), None),
        ("step", torch.tensor(2.0), None),
        ("step_count", 5, None),
        ("optimizer.state.0.step", torch.tensor(6), None),
        ("optim.param_groups.step", 6, None),
        ("app.state.weight.step", torch.tensor(6), None),
    ],
)
def test_the_step(tmp_path: Path, name: str, value: object, step: int | None) -> None:
    folder = save(tmp_path / "run", {"w": torch.ones(1), name: value})
    assert read_distributed(folder).step == step


def test_the_nearest_step_is_the_runs(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", {"loader": {"step": 1}, "train": {"data": {"step": 2}}, "global_step": 3})
    assert read_distributed(folder).step == 3


def test_what_is_left_out(tmp_path: Path) -> None:
    state = {"w": torch.ones(1), "layer._extra_state": torch.ones(1), "other._extra_state": b"x", "args": [1]}
    assert set(read_distributed(save(tmp_path / "run", state)).tensors) == {"w"}


def test_dtypes_without_a_reader_stay_in_the_index(tmp_path: Path) -> None:
    checkpoint = read_distributed(save(tmp_path / "run", {"w": torch.ones(1), "z": torch.ones(2).cfloat()}))
    assert checkpoint.tensors["z"].dtype == "torch.complex64"
    assert checkpoint.ranges["z"] == ()


# Pickles that would run something.


class Runs:
    def __init__(self, function: object, *args: object) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple:
        return self.function, self.args


def hostile(target: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles, and what their refusal must name."""
    command = f"touch {target}"
    inside = Metadata({}, Runs(os.system, command), {})
    by_hand = (
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(command)]) + command.encode() + b"\x85R."
    )
    return {
        "os.system": (pickle.dumps(Runs(os.system, command), protocol=2), "posix.system"),
        "deep inside": (pickle.dumps(inside), "posix.system"),
        "STACK_GLOBAL": (by_hand, "posix.system"),
        "eval": (pickle.dumps(Runs(eval, f"open({str(target)!r}, 'w')")), "builtins.eval"),
        "torch.load": (pickle.dumps(Runs(torch.load, str(target))), "torch.serialization.load"),
        "copyreg": (pickle.dumps(Runs(copyreg._reconstructor, Path, object, None)), "copyreg._reconstructor"),
        "INST": (b"\x80\x02(X\x01\x00\x00\x00aiposix\nsystem\n.", "INST"),
        "OBJ": (b"\x80\x02(cposix\nsystem\nX\x01\x00\x00\x00ao.", "posix.system"),
        "EXT1": (b"\x80\x02\x82\xf0.", "EXT1"),
        "EXT4": (b"\x80\x02\x84\xf0\x00\x00\x00.", "EXT4"),
        "persistent": (b"\x80\x02X\x01\x00\x00\x00aQ.", "BINPERSID"),
        "dotted": (b"\x80\x04\x8c\x05torch\x8c\x0bSize.mro.im\x93.", "torch.Size.mro.im"),
        "two lines": (b"\x80\x04\x8c\x03a\nb\x8c\x01c\x93.", r"a\nb.c"),
        "state of a class": (b"\x80\x02ctorch\nSize\n}b.", "state"),
        "call of a value": (b"\x80\x02X\x01\x00\x00\x00a)R.", "not a class"),
        "memory": (b"\x80\x02Nr\x00\x00\x00\x70.", "Metadata"),
        "nested key": (b"\x80\x04})" + 200_000 * b"\x85" + b"Ns.", "keys"),
        "nested value": (b"\x80\x04)" + 200_000 * b"\x85" + b".", "Metadata"),
        "not the metadata": (pickle.dumps({"a": 1}), "Metadata"),
        "no pickle": (b"\x80\x04garbage", ""),
        "nothing": (b"", ""),
    }


@pytest.mark.parametrize("kind", hostile(Path("x")))
def test_hostile_metadata(tmp_path: Path, kind: str) -> None:
    folder = save(tmp_path / "run", {"w": torch.ones(1)})
    target = tmp_path / "touched"
    raw, named = hostile(target)[kind]
    (folder / ".metadata").write_bytes(raw)
    message = refused(folder)
    assert ".metadata" in message
    assert named in message
    assert not target.exists()


def test_an_extension_that_is_registered_is_refused_too(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", {"w": torch.ones(1)})
    copyreg.add_extension("posix", "system", 0xF0)
    try:
        pickle.loads(b"\x80\x02\x82\xf0.")  # Python's own cache has it from here on
        (folder / ".metadata").write_bytes(b"\x80\x02\x82\xf0X\x04\x00\x00\x00true\x85R.")
        assert "EXT1" in refused(folder)
    finally:
        copyreg.remove_extension("posix", "system", 0xF0)
        copyreg.clear_extension_cache()


def test_hostile_item(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    folder = write(tmp_path / "run", {(0,): torch.ones(2)}, (2,))
    evil = io.BytesIO()
    torch.save(Runs(os.system, f"touch {target}"), evil)
    size = (folder / "__0_0.distcp").stat().st_size
    (folder / "__0_0.distcp").write_bytes(evil.getvalue().ljust(size, b"\0"))
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    next(iter(metadata.storage_data.values())).length = len(evil.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "posix.system" in refused(folder)
    assert not target.exists()


# Folders that are broken, or that lie.


def test_what_is_no_such_folder(tmp_path: Path) -> None:
    assert not is_dcp_folder(tmp_path)
    (tmp_path / ".metadata").write_bytes(b'{"format": "json"}')
    assert not is_dcp_folder(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"")
    assert not is_dcp_folder(tmp_path)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_truncated_metadata(tmp_path: Path, kept: float) -> None:
    folder = save(tmp_path / "run", one_of_each())
    raw = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(raw[: int(kept * len(raw))])
    assert ".metadata" in refused(folder)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_truncated_data(tmp_path: Path, kept: float) -> None:
    folder = save(tmp_path / "run", one_of_each())
    os.truncate(folder / "__0_0.distcp", int(kept * (folder / "__0_0.distcp").stat().st_size))
    message = refused(folder)
    assert "__0_0.distcp" in message
    assert "truncated" in message


def test_missing_data(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", one_of_each())
    (folder / "__0_0.distcp").unlink()
    assert "'__0_0.distcp' is missing" in refused(folder)


@pytest.mark.parametrize(
    "relative", ["../other/__0_0.distcp", "/etc/passwd", "a/../../b", "..\\b", "C:\\b", "", "a\0b"]
)
def test_paths_that_lead_elsewhere(tmp_path: Path, relative: str) -> None:
    write(tmp_path / "other", {(0,): torch.ones(2)}, (2,))
    assert "outside" in refused(write(tmp_path / "run", {(0,): torch.ones(2)}, (2,), relative=relative))


def test_links(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {(0,): torch.ones(2)}, (2,))
    shutil.move(folder / "__0_0.distcp", tmp_path / "elsewhere")
    (folder / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    assert "link" in refused(folder)
    # The hub's cache is made of links, into its own folder.
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.parent.mkdir(parents=True)
    blobs.mkdir()
    write(snapshot, {(0,): torch.ones(2)}, (2,))
    shutil.move(snapshot / "__0_0.distcp", blobs / "abcd")
    (snapshot / "__0_0.distcp").symlink_to("../../blobs/abcd")
    assert same_bits(read_distributed(snapshot), "w", torch.ones(2))


@pytest.mark.parametrize(
    ("boxes", "shape", "reason"),
    [
        ({(0, 0): torch.ones(2, 2)}, (2, 3), "do not cover it"),
        ({(0, 0): torch.ones(2, 2), (0, 1): torch.ones(2, 2)}, (2, 3), "do not cover it"),
        ({(0, 0): torch.ones(2, 2), (1, 1): torch.ones(1, 2)}, (2, 3), "overlap"),
        ({(0, 0): torch.ones(2, 3), (1, 1): torch.ones(2, 3)}, (3, 4), "overlap"),
        ({(0, 1): torch.ones(2, 3)}, (2, 3), "exceeds its shape"),
        ({(0,): torch.ones(2)}, (2, 1), "exceeds its shape"),
        ({(0, 0): torch.randn(3, 2).t(), (2, 0): torch.randn(2, 3)}, (4, 3), "not row-major"),
        ({(0,): torch.ones(4)[::2]}, (2,), "gaps"),
        ({(0, 0): torch.ones(2).expand(3, 2)}, (3, 2), "larger than its storage"),
    ],
)
def test_chunks_that_do_not_fit(tmp_path: Path, boxes: dict, shape: tuple, reason: str) -> None:
    assert reason in refused(write(tmp_path / "run", boxes, shape))


def test_a_view_into_a_larger_storage(tmp_path: Path) -> None:
    view = torch.arange(10.0)[4:7]  # torch's writer would have copied it; others need not
    assert same_bits(read_distributed(write(tmp_path / "run", {(0,): view}, (3,))), "w", view)


def test_metadata_that_does_not_fit_the_data(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {(0,): torch.ones(4)}, (4,))
    other = write(tmp_path / "other", {(0,): torch.ones(4).int()}, (4,))
    data = (folder / "__0_0.distcp").read_bytes()
    (other / "__0_0.distcp").write_bytes(data.ljust((other / "__0_0.distcp").stat().st_size, b"\0"))
    assert "got F32" in refused(other)


def test_transformed_items(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {(0,): torch.ones(2)}, (2,), transform_descriptors=["zstd"])
    assert "compressed or encrypted" in refused(folder)


def rewrite(folder: Path, compression: int, byteorder: bytes) -> Path:
    """Pack the one archive of a folder again."""
    path, packed = folder / "__0_0.distcp", io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, byteorder if name.endswith("byteorder") else old.read(name))
    path.write_bytes(packed.getvalue())
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    next(iter(metadata.storage_data.values())).length = len(packed.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def test_archives_of_another_kind(tmp_path: Path) -> None:
    def folder() -> Path:
        return write(tmp_path / "run", {(0,): torch.arange(99.0)}, (99,))

    plain = rewrite(folder(), zipfile.ZIP_STORED, b"little")
    assert same_bits(read_distributed(plain), "w", torch.arange(99.0))
    assert "compressed" in refused(rewrite(folder(), zipfile.ZIP_DEFLATED, b"little"))
    assert "big-endian" in refused(rewrite(folder(), zipfile.ZIP_STORED, b"big"))


def test_items_in_safetensors(tmp_path: Path) -> None:
    format_ = dcp.filesystem.SerializationFormat.SAFETENSORS
    writer = dcp.FileSystemWriter(tmp_path / "run", serialization_format=format_)
    dcp.save({"w": torch.randn(100, 3)}, storage_writer=writer, no_dist=True)
    assert "not a valid torch archive" in refused(tmp_path / "run")


def test_nothing_says_where(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {(0,): torch.ones(2)}, (2,))
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.storage_data = {MetadataIndex("other"): next(iter(metadata.storage_data.values()))}
    metadata.state_dict_metadata["other"] = BytesStorageMetadata()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "'w'" in refused(folder)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("victim") / "run", one_of_each())


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bytes(victim: Path, file: str, data: st.DataObject) -> None:
    """Whatever is broken, the answer is a checkpoint or one line that says so."""
    path = victim / file
    whole = path.read_bytes()
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(broken)
    message = ""
    try:
        checkpoint = read_distributed(victim)
        for name in checkpoint.tensors:
            checkpoint.dense(name)
    except InputError as error:
        message = str(error)
    finally:
        path.write_bytes(whole)
    assert "\n" not in message


# Metadata that is small and describes much: linear time, and no more memory than lies on disk.


def put(folder: Path, entries: dict, places: dict) -> Path:
    (folder / ".metadata").write_bytes(
        pickle.dumps(Metadata(entries, None, places, StorageMeta(folder, "id"), "1.0.0"))
    )
    return folder


def stored(tensor: torch.Tensor) -> bytes:
    data = io.BytesIO()
    torch.save(tensor, data)
    return data.getvalue()


def grid(rows: int, columns: int) -> dict[tuple[int, int], torch.Tensor]:
    return {(i, j): torch.full((1, 1), float(i * columns + j)) for i in range(rows) for j in range(columns)}


def columns_in_one_row(count: int, repeats: int) -> tuple[dict, dict]:
    """A tensor of one row, a chunk for each value; each place in the file is given to several chunks."""
    length = len(stored(torch.ones(1, 1)))
    chunks = [ChunkStorageMetadata(torch.Size((0, i)), torch.Size((1, 1))) for i in range(count)]
    entry = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size((1, count)), chunks)
    places = {
        MetadataIndex("w", torch.Size((0, i))): _StorageInfo("__0_0.distcp", i // repeats * length, length)
        for i in range(count)
    }
    return {"w": entry}, places


def test_tens_of_thousands_of_chunks_take_seconds(tmp_path: Path) -> None:
    (tmp_path / "__0_0.distcp").write_bytes(stored(torch.ones(1, 1)) * 100)
    put(tmp_path, *columns_in_one_row(40_000, 1))
    with bounded():
        assert "truncated" in refused(tmp_path)


def test_thousands_of_chunks_are_measured_in_seconds(tmp_path: Path) -> None:
    from normgrowth.trace.by_step import measure_checkpoint

    folder = write(tmp_path / "run", grid(60, 60), (60, 60))
    with bounded():
        one, other = read_distributed(folder), read_distributed(folder)
        found = measure_checkpoint(one, [("other", other)], ["w"])
        assert found.square[0] == sum(i**2 for i in range(3600))
        assert found.against["other"].delta[0] == 0


def test_bytes_that_belong_to_two_chunks(tmp_path: Path) -> None:
    """Four megabytes on disk must not become four gigabytes in memory."""
    (tmp_path / "__0_0.distcp").write_bytes(stored(torch.ones(1, 1)) * 10)
    assert "overlap in this file" in refused(put(tmp_path, *columns_in_one_row(20, 2)))
    entries, places = columns_in_one_row(20, 1)
    for i, place in enumerate(places.values()):  # under another name
        place.offset, place.relative_path = i % 10 * place.length, f"__{i // 10}_0.distcp"
    (tmp_path / "__1_0.distcp").symlink_to("__0_0.distcp")
    assert "overlap in this file" in refused(put(tmp_path, entries, places))
    (tmp_path / "__1_0.distcp").unlink()
    os.link(tmp_path / "__0_0.distcp", tmp_path / "__1_0.distcp")
    assert "overlap in this file" in refused(put(tmp_path, entries, places))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_two_hundred_thousand_axes(tmp_path: Path, dtype: torch.dtype) -> None:
    shape = torch.Size((2**61,) * 200_000)
    chunk = ChunkStorageMetadata(torch.Size((0,) * 200_000), shape)
    entry = TensorStorageMetadata(TensorProperties(dtype), shape, [chunk])
    with bounded():
        assert "axes" in refused(put(tmp_path, {"w": entry}, {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_more_values_than_can_be_counted(tmp_path: Path, dtype: torch.dtype) -> None:
    shape = torch.Size((2**40, 2**40))
    entry = TensorStorageMetadata(
        TensorProperties(dtype), shape, [ChunkStorageMetadata(torch.Size((0, 0)), shape)]
    )
    assert "'w'" in refused(put(tmp_path, {"w": entry}, {}))


def test_one_list_of_chunks_for_thousands_of_tensors(tmp_path: Path) -> None:
    entry = columns_in_one_row(3000, 1)[0]["w"]
    put(tmp_path, {f"w{i}": entry for i in range(30_000)}, {})
    with bounded():
        assert "chunks" in refused(tmp_path)


def test_the_same_name_for_thousands_of_places(tmp_path: Path) -> None:
    """A pickle holds a long name once, however often it is used."""
    name = "a." * 500_000 + "step"
    places = {MetadataIndex(name, None, i): _StorageInfo("__0_0.distcp", i, 1) for i in range(5000)}
    (tmp_path / "__0_0.distcp").write_bytes(stored(torch.ones(2)))
    entry = TensorStorageMetadata(
        TensorProperties(torch.float32),
        torch.Size((2,)),
        [ChunkStorageMetadata(torch.Size((0,)), torch.Size((2,)))],
    )
    places[MetadataIndex("w", torch.Size((0,)))] = _StorageInfo("__0_0.distcp", 0, len(stored(torch.ones(2))))
    with bounded():
        refused(put(tmp_path, {"w": entry}, places))


@pytest.mark.parametrize("value", [2**62, 2**63, 2**200, 10**400])
def test_a_step_that_no_run_has(tmp_path: Path, value: int) -> None:
    assert read_distributed(save(tmp_path / "run", {"w": torch.ones(1), "step": value})).step is None


@pytest.mark.parametrize("value", [-1, -(2**62), 2**62])
def test_a_tensor_that_is_no_step(tmp_path: Path, value: int) -> None:
    assert (
        read_distributed(save(tmp_path / "run", {"w": torch.ones(1), "step": torch.tensor(value)})).step
        is None
    )


@pytest.mark.parametrize("count", [2, 3])
def test_boxes_that_overlap_in_several_axes(tmp_path: Path, count: int) -> None:
    """As large as the whole together, inside it, and yet not it."""
    shape = (2,) * count
    boxes = {corner: torch.ones((1,) * count) for corner in itertools.product((0, 1), repeat=count)}
    assert same_bits(read_distributed(write(tmp_path / "run", boxes, shape)), "w", torch.ones(shape))
    del boxes[(1,) * count]
    del boxes[(0,) * count]
    boxes[(0,) * count] = torch.ones((1,) * (count - 1) + (2,))  # now it covers its neighbor as well
    assert "overlap" in refused(write(tmp_path / "run", boxes, shape))


def test_thousands_of_boxes_in_three_axes(tmp_path: Path) -> None:
    size = 16
    whole = torch.arange(float(size**3)).reshape(size, size, size)
    boxes = {
        corner: whole[corner].reshape(1, 1, 1).clone() for corner in itertools.product(range(size), repeat=3)
    }
    folder = write(tmp_path / "run", boxes, whole.shape)
    with bounded():
        assert same_bits(read_distributed(folder), "w", whole)
