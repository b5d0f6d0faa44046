"""PyTorch files: .pt, .pth, .bin, .ckpt, with the weights at any place in the saved object.

torch is not used: the pickle is read as inert data and tensors are byte ranges of the mapped file, so no code in it can
run and nothing is copied. Other content (optimizer, scheduler, arguments) is not loaded. Objects of unknown classes are
treated as data, and a note lists them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from normgrowth.checkpoints.checkpoint import STORAGE, MappedCheckpoint, Piece, Ranges, Strided, Tensor
from normgrowth.checkpoints.formats.numpy_arrays import ARRAY_CALLS, array_of, is_array
from normgrowth.checkpoints.formats.pickled.pickle_values import PATHS, RecordedCall
from normgrowth.checkpoints.formats.safetensors import STEP_KEYS, read_index
from normgrowth.checkpoints.formats.state_dict import StateDict
from normgrowth.checkpoints.formats.torch_file import TorchFile, looks_like_pytorch, open_torch_file
from normgrowth.checkpoints.formats.torch_tensors import Unreadable, View, tensor_call, view_of
from normgrowth.checkpoints.malformed import Malformed, naming
from normgrowth.checkpoints.steps import as_step
from normgrowth.checkpoints.storage.gathered import Gathered
from normgrowth.checkpoints.storage.mapped_file import FileState
from normgrowth.engine import gc_paused
from normgrowth.errors import InputError, NoTensors

_STEPS = (*STEP_KEYS, "global_steps", "iter_num", "iteration", "num_updates", "step_count")
# Views may overlap, so tensors can have more values than the file; this is bounded.
_VIEWED, _VIEWED_FREE = 16, 1 << 26  # multiple of the file's size; bytes that are always allowed
# Classes that are common in such files or are plain data; a note lists all others.
_USUAL = frozenset(
    {
        *("collections.OrderedDict", "collections.defaultdict", "collections.Counter", "collections.deque"),
        *map("builtins.".__add__, ("set", "frozenset", "slice", "range", "complex", "bytes", "bytearray")),
        *map("builtins.".__add__, ("dict", "list", "object", "int", "long", "unicode", "str")),
        *map("datetime.".__add__, ("datetime", "date", "time", "timedelta", "timezone")),
        *PATHS,
        *("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", *ARRAY_CALLS),
        *("numpy.dtype", "numpy.ndarray", "_codecs.encode", "copyreg._reconstructor"),
    }
)
_OF_TORCH = re.compile(
    r"__torch__\..*|torch\.(Size|device|dtype|storage\.\w+|(cuda\.)?\w+Storage|_(utils|tensor)\._rebuild_\w+|nn\.[\w.]+"
    r"|(b?float|complex|q?u?int|bool|bits|sparse_|per_)\w*|strided|serialization\._get_layout)"
)


def is_pytorch(path: Path) -> bool:
    """Whether the content is torch's zip archive, or the pickles of its legacy format."""
    with path.open("rb") as file:
        return looks_like_pytorch(file.read(32))


def read_pytorch(path: Path) -> MappedCheckpoint:
    index = _read(path)
    if not index.tensors:
        raise _nothing(path, index)
    return _checkpoint(str(path), path, index, index.step)


def read_pytorch_sharded(index: Path) -> MappedCheckpoint:
    """Read an index file (``pytorch_model.bin.index.json``) and the shards that it lists."""
    weight_map = read_index(index)
    whole = _Index()
    shards = {shard: _read(index.parent / shard, shard) for shard in sorted(set(weight_map.values()))}
    for name, shard in weight_map.items():
        part = shards[shard]
        if name in part.left_out:
            whole.left_out[name] = part.left_out[name]
        elif name in part.tensors:
            whole.tensors[name], whole.ranges[name] = part.tensors[name], part.ranges[name]
        else:
            raise InputError(f"{index}: lists tensor {name} in {shard}, which does not have it")
    for part in shards.values():
        whole.names |= part.names
        whole.states |= part.states
    if not whole.tensors:
        raise _nothing(index, whole)
    return _checkpoint(str(index.parent), index.parent, whole, None)


@dataclass
class _Index:
    """The tensors of a file, according to its pickle."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=Ranges)
    left_out: dict[str, str] = field(default_factory=dict)  # name of a tensor -> reason
    names: set[str] = field(default_factory=set)  # classes that the pickle names
    step: int | None = None
    states: dict[str, FileState] = field(default_factory=dict)


def _read(path: Path, file: str = "") -> _Index:
    with naming(path), gc_paused(), open_torch_file(path) as opened:
        return _index(opened, file)


def _index(opened: TorchFile, file: str) -> _Index:
    state = StateDict(opened.pickled.value, opened.pickled.size)
    index = _Index(names=opened.pickled.names, states={file: opened.state})
    granted = _VIEWED * len(opened.data) + _VIEWED_FREE
    seen: set[tuple[object, ...]] = set()
    numbers: dict[int, int] = {}  # id(array) -> number; several references to an array share its number
    for name, value in _weights(state, opened).items():
        try:
            if is_array(value):
                number = numbers.setdefault(id(value), len(numbers))
                tensor, piece = array_of(value, number, opened.start, file)
            else:
                tensor, piece = _located(view_of(value), opened, file)
        except Unreadable as error:
            index.left_out[name] = str(error)
            continue
        except Malformed as error:
            raise Malformed(f"tensor {name!r} {error}") from error
        index.tensors[name], index.ranges[name] = tensor, (piece,)
        if piece not in seen:
            seen.add(piece)
            granted -= tensor.nbytes
        if granted < 0:
            raise Malformed(
                f"tensor {name!r} of shape {list(tensor.shape)} and earlier ones refer to the same bytes: "
                f"together they would need more than {_VIEWED} times the size of the file ({len(opened.data)} bytes)"
            )
    index.step = _step(state.top(), opened)
    return index


def _weights(state: StateDict, opened: TorchFile) -> dict[str, RecordedCall]:
    """The tensors of torch; numpy arrays only if there are none, because next to a model they are logs."""
    tensors = state.tensors()
    if tensors or not opened.pickled.names & ARRAY_CALLS:
        return tensors
    return StateDict(opened.pickled.value, opened.pickled.size, arrays=True).tensors()


def _located(view: View, opened: TorchFile, file: str) -> tuple[Tensor, Piece | Gathered]:
    """The location of a view in the file."""
    start, size = opened.place(view.key)
    if size != view.storage_bytes:
        raise Malformed(f"should have a storage of {view.storage_bytes} bytes, got {size}")
    start += view.offset * STORAGE[view.dtype].itemsize if view.numel else 0
    order = view.order
    if order == "scattered" or (view.negated and view.numel):
        piece = Gathered(file, start, view.numel, view.shape, view.strides, view.negated)
        return Tensor(view.dtype, view.shape), piece
    layout = Strided(view.strides) if order == "permuted" else None
    return Tensor(view.dtype, view.shape, layout), Piece(file, start, view.numel)


def _step(top: Mapping[str, Any], opened: TorchFile) -> int | None:
    for key in _STEPS:
        if (step := as_step(_number(top.get(key), opened))) is not None:
            return step
    return None


def _number(value: Any, opened: TorchFile) -> int | None:
    """An integer of Python, torch or numpy; None for anything else."""
    if type(value) is int:
        return value
    if type(value) is not RecordedCall:
        return None
    if tensor_call(value) is None:
        return _numpy_integer(value)
    try:
        view = view_of(value)
        if view.numel != 1 or view.dtype[0] not in "IU":
            return None
        start, _ = opened.place(view.key)
    except Malformed:
        return None  # not a plain number: the step is taken from the file name
    bits = STORAGE[view.dtype]
    start += view.offset * bits.itemsize
    return int(np.frombuffer(opened.data[start : start + bits.itemsize], bits)[0])


def _numpy_integer(value: RecordedCall) -> int | None:
    """The value of a numpy integer such as numpy.int64(5), recorded as a dtype and bytes; None for other values."""
    if not value.name.endswith(".multiarray.scalar") or len(value.args) != 2:
        return None
    dtype, raw = value.args
    if type(raw) is RecordedCall and raw.name == "_codecs.encode" and raw.args and type(raw.args[0]) is str:
        raw = raw.args[0].encode("latin-1", "replace")  # how protocol 2 writes bytes
    kind = (
        dtype.args[0] if type(dtype) is RecordedCall and dtype.name == "numpy.dtype" and dtype.args else None
    )
    if type(kind) is not str or kind[:1] not in ("i", "u") or type(raw) is not bytes or not 0 < len(raw) <= 8:
        return None
    return int.from_bytes(raw, "little", signed=kind[0] == "i")


def _checkpoint(label: str, root: Path, index: _Index, step: int | None) -> MappedCheckpoint:
    aliases: dict[str, str] = {}
    first_name: dict[tuple[object, ...], str] = {}
    for name, tensor in index.tensors.items():
        if prod(tensor.shape):
            first = first_name.setdefault((tensor, index.ranges[name]), name)
            if first != name:
                aliases[name] = first
    copied = any(type(pieces[0]) is not Piece for pieces in index.ranges.values())
    return MappedCheckpoint(
        label,
        index.tensors,
        index.ranges,
        root,
        step=step,
        aliases=aliases,
        reads_whole=copied,
        states=index.states,
        notes=_notes(index),
    )


def _notes(index: _Index) -> tuple[str, ...]:
    notes: list[str] = []
    if index.left_out:
        listed = [f"{name} ({reason})" for name, reason in index.left_out.items()]
        notes.append(f"skipped tensors: {_some(listed)}")
    unusual = sorted(name for name in index.names - _USUAL if not _OF_TORCH.fullmatch(name))
    if unusual:
        notes.append(
            f"objects of these classes were read as plain data, without running code: {_some(unusual)}"
        )
    return tuple(notes)


def _nothing(path: Path, index: _Index) -> InputError:
    """An error that says why the file has no tensors to measure."""
    if index.left_out:
        reasons = [f"{name} is {why}" for name, why in index.left_out.items()]
        return InputError(f"{path}: none of its tensors can be read: {_some(reasons)}")
    arrays = ", and no numpy arrays either" if index.names & ARRAY_CALLS else ""
    return NoTensors(f"{path}: has no tensors of a model{arrays}")


def _some(items: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(item if item.isprintable() else ascii(item) for item in items[:most])
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")
