"""TensorFlow checkpoints: `X.index` with its data files, as TensorFlow 1 (T5) and 2 write them.

The only file that needs TensorFlow, and only inside its functions. Whether a file is such an index
can be told without it.

TensorFlow 2 saves a graph of objects and names a variable by the shortest way to it. With Keras that
way often leads through the optimiser, which keeps a list of the weights, so that a weight is stored
as `optimizer/_trainable_variables/0`. The graph is stored as well; where it has a way that avoids
the optimiser, we name the variable by that.
"""

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from normgrowth.checkpoints.checkpoint import STORAGE, LoadedCheckpoint, Tensor, storage_of
from normgrowth.checkpoints.steps import LARGEST_STEP
from normgrowth.errors import InputError

TABLE_END = bytes.fromhex("57fb808b247547db")  # the table format's magic number, at the end of a file
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
NO_VALUES = ("string", "resource", "variant")
STEP_KEYS = ("global_step", "step", "iterations", "iter")  # the last two are Keras's, of the optimiser
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}

# What TensorFlow's checkpoint reader makes of a status: out of range, invalid argument, not implemented, others.
STATUS_ERRORS = (IndexError, ValueError, NotImplementedError, RuntimeError)


def is_tensorflow_index(path: Path) -> bool:
    """By content: a table, with data files beside it that have its name."""
    if path.suffix != ".index" or not path.is_file() or not _shards(path):
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(TABLE_END)))
        return file.read() == TABLE_END


def read_tensorflow(prefix_or_index: Path) -> LoadedCheckpoint:
    is_index = prefix_or_index.suffix == ".index"
    index = prefix_or_index if is_index else prefix_or_index.with_name(prefix_or_index.name + ".index")
    prefix = str(index)[: -len(".index")]
    shards = _complete_shards(index)
    if re.search(r"[*?\[\]\\]", prefix):
        raise InputError(
            f"{index}: TensorFlow takes *, ?, [, ] and \\ in a path for a pattern; rename or link it"
        )
    tf = _import_tensorflow(index)
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        stored = {
            name: name.removesuffix(VALUE) for name in sorted(shapes) if dtypes[name].name not in NO_VALUES
        }
        if GRAPH in shapes:
            stored.pop("save_counter" + VALUE, None)  # of TensorFlow's own: how often it has saved
            stored |= _names_beside_optimiser(reader.get_tensor(GRAPH), stored)
    except (tf.errors.OpError, *STATUS_ERRORS) as error:
        raise InputError(f"{index}: TensorFlow cannot read it: {_first_line(error)}") from error

    tensors = {
        name: Tensor(
            DTYPES.get(dtypes[key].name, f"tensorflow.{dtypes[key].name}"), tuple(map(int, shapes[key]))
        )
        for key, name in stored.items()
    }
    _check_room(index, shards, tensors)
    keys = {name: key for key, name in stored.items()}

    def load(name: str) -> np.ndarray:
        bits = storage_of(prefix, name, tensors[name].dtype)
        try:
            values = np.asarray(reader.get_tensor(keys[name]))
        except (tf.errors.OpError, *STATUS_ERRORS) as error:
            culprit = shards[0] if len(shards) == 1 else index
            raise InputError(f"{culprit}: tensor {name!r} cannot be read: {_first_line(error)}") from error
        return np.ascontiguousarray(values).reshape(-1).view(bits)

    return LoadedCheckpoint(prefix, tensors, load, _step(tensors, load))


def _shards(index: Path) -> list[Path]:
    pattern = re.compile(re.escape(index.stem) + r"\.data-\d{5}-of-\d{5}")
    return sorted(path for path in index.parent.iterdir() if pattern.fullmatch(path.name))


def has_data(index: Path) -> bool:
    return bool(_shards(index))


def _complete_shards(index: Path) -> list[Path]:
    if not index.is_file():
        raise InputError(f"{index}: no such file")
    shards = _shards(index)
    if not shards:
        raise InputError(f"{index}: its data file {index.stem}.data-00000-of-00001 is missing")
    total = int(shards[0].name[-5:])
    for i in range(total):
        if not (shard := index.with_name(f"{index.stem}.data-{i:05}-of-{total:05}")).is_file():
            raise InputError(f"{index}: its data file {shard.name} is missing")
    return shards


def _check_room(index: Path, shards: list[Path], tensors: dict[str, Tensor]) -> None:
    """Notice at once that a copy was cut short; TensorFlow sees it only when it gets there."""
    needed = sum(tensor.nbytes for tensor in tensors.values() if tensor.dtype in STORAGE)
    size = sum(shard.stat().st_size for shard in shards)
    if size < needed:
        culprit = shards[0] if len(shards) == 1 else index.with_name(f"{index.stem}.data-*")
        raise InputError(f"{culprit}: truncated: its tensors have {needed} bytes, but there are {size}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _import_tensorflow(index: Path) -> Any:
    try:
        with _quiet():
            import tensorflow  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise InputError(f'{index}: needs TensorFlow: pip install "normgrowth[tensorflow]"') from error
    return tensorflow


QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


@contextmanager
def _quiet() -> Iterator[None]:
    """TensorFlow reads these variables while it is imported, and never again. oneDNN announces itself at any level."""
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update({name: before[name] or value for name, value in QUIET.items()})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what its own dependencies deprecate
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_optimiser(part: str) -> bool:
    return part.lstrip("_").startswith("optimizer")


def _names_beside_optimiser(serialised: bytes, stored: dict[str, str]) -> dict[str, str]:
    """Better names for variables stored under the optimiser's: the shortest way that avoids it."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import trackable_object_graph_pb2 as protocol  # pyright: ignore[reportMissingModuleSource]

    try:
        nodes = protocol.TrackableObjectGraph.FromString(serialised).nodes
    except DecodeError:
        return {}  # the names are as they are stored
    names: dict[str, str] = {}
    ways: dict[int, str] = {0: ""}
    queue = [0]
    for node in queue:  # grows as we go: breadth first, as TensorFlow does it
        for attribute in nodes[node].attributes:
            key = attribute.checkpoint_key
            if key in stored and key.endswith(VALUE) and any(map(_is_optimiser, key.split("/"))):
                names[key] = ways[node]
        for child in nodes[node].children:
            if (
                child.node_id not in ways
                and 0 <= child.node_id < len(nodes)
                and not _is_optimiser(child.local_name)
            ):
                ways[child.node_id] = f"{ways[node]}/{child.local_name}".lstrip("/")
                queue.append(child.node_id)
    return names


def _step(tensors: dict[str, Tensor], load: Any) -> int | None:
    def last(name: str) -> str:
        return name.rpartition("/")[2].lstrip("_")

    counters = [
        name
        for name, tensor in tensors.items()
        if last(name) in STEP_KEYS and tensor.dtype in ("I64", "I32") and tensor.numel == 1
    ]
    if not counters:
        return None
    nearest = min(counters, key=lambda name: (STEP_KEYS.index(last(name)), name.count("/"), name))
    value = int(load(nearest)[0])
    return value if 0 <= value < LARGEST_STEP else None
