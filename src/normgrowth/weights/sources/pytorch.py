"""PyTorch's own files: .pt, .pth, .bin, .ckpt, whatever they wrap the weights in.

Loaded with ``weights_only=True`` and mapped, so nothing in the file can run and nothing is copied.
Whatever else the file holds (optimiser, scheduler, arguments) stays on disk.
"""

import warnings
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.errors import InputError, SeriesWarning
from normgrowth.weights.sources.checkpoint import STORAGE, LoadedCheckpoint, Strided, Tensor
from normgrowth.weights.sources.inert import DTYPES
from normgrowth.weights.sources.safetensors import STEP_KEYS, read_index
from normgrowth.weights.sources.steps import LARGEST_STEP

if TYPE_CHECKING:
    import torch

ZIP_START = b"PK\x03\x04"
LEGACY_START = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # torch's magic number, as a pickled long

# Where training code keeps the weights, in the order in which we look.
WRAPPINGS = ("state_dict", "model_state_dict", "model", "module", "model_state", "net", "network", "params")
NOT_WEIGHTS = ("optim", "sched", "rng", "scaler", "loops", "callbacks", "args", "config", "hyper_parameters")


def is_pytorch(path: Path) -> bool:
    """By content: torch's zip archive, or the pickles of its legacy format."""
    with path.open("rb") as file:
        start = file.read(32)
    return start.startswith(ZIP_START) or LEGACY_START in start


def read_pytorch(path: Path, allow: tuple[str, ...] = ()) -> LoadedCheckpoint:
    content = _load(path, allow)
    found = find_state_dict(content)
    if not found:
        raise InputError(f"{path}: holds no tensors that look like a model's")
    return _checkpoint(str(path), found, path, stored_step(content))


def read_pytorch_sharded(index: Path, allow: tuple[str, ...] = ()) -> LoadedCheckpoint:
    """An index file (``pytorch_model.bin.index.json``) and the shards that it names."""
    weight_map = read_index(index)
    loaded = {
        shard: find_state_dict(_load(index.parent / shard, allow)) for shard in set(weight_map.values())
    }
    found: dict[str, torch.Tensor] = {}
    for name, shard in weight_map.items():
        if name not in loaded[shard]:
            raise InputError(f"{index}: says that {shard} holds tensor {name}, but it does not")
        found[name] = loaded[shard][name]
    return _checkpoint(str(index.parent), found, index, None)


def _load(path: Path, allow: tuple[str, ...]) -> Any:
    import torch

    with path.open("rb") as file:
        start = file.read(32)
    mappable = start.startswith(ZIP_START)
    if not mappable and LEGACY_START not in start:
        raise InputError(
            f"{path}: no PyTorch file: neither its archive nor its legacy format; is it truncated?"
        )
    if not mappable:
        gigabytes = path.stat().st_size / 1e9
        warnings.warn(
            f"{path}: torch's legacy format cannot be mapped; reading it takes {gigabytes:.2f} GB of memory "
            "(save it again with torch.save to avoid that)",
            SeriesWarning,
            stacklevel=2,
        )
    allowed = _allowed(allow)
    try:
        with allowed, warnings.catch_warnings():
            # torch remarks on typed storages in files that others wrote; nothing to act on here.
            warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
            return torch.load(path, map_location="cpu", mmap=mappable or None, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        unknown = _unknown_classes(path, allow) if mappable else _named_global(error)
        if unknown:
            names = ", ".join(unknown)
            flags = " ".join(f"--allow {name}" for name in unknown)
            raise InputError(
                f"{path}: refused: it asks for {names}, which could run code; nothing was run. "
                f"If you trust the file: {flags}"
            ) from error
        raise InputError(f"{path}: PyTorch cannot read it: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _unknown_classes(path: Path, allow: tuple[str, ...]) -> list[str]:
    import torch

    try:
        named = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:  # the archive itself is broken; the caller's first error says how
        return []
    return sorted(set(named) - set(allow))


def _named_global(error: Exception) -> list[str]:
    """The class in torch's message; for the legacy format there is no function that lists them."""
    words = str(error).split()
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word == "GLOBAL" and "." in words[i + 1]][:1]


def _allowed(names: tuple[str, ...]) -> AbstractContextManager[None]:
    import torch

    classes: list[Any] = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            classes.append((getattr(import_module(module), attribute), name))
        except (ImportError, AttributeError, ValueError) as error:
            raise InputError(f"--allow {name}: there is no such class here: {error}") from error
    return torch.serialization.safe_globals(classes)


def find_state_dict(content: Any) -> "dict[str, torch.Tensor]":
    """The model's tensors, by looking: below a wrapping that we know, else all that is there.

    Parts of a model kept beside each other (encoder, decoder) stay together under dotted names; what is
    no part of it (optimiser, scheduler, random state) is left where it is.
    """
    if not isinstance(content, dict):
        return {}
    for key in WRAPPINGS:
        if isinstance(content.get(key), dict) and (found := find_state_dict(content[key])):
            return found
    import torch

    tensors = {k: v for k, v in content.items() if isinstance(v, torch.Tensor)}
    inner = {k: v for k, v in content.items() if isinstance(v, dict) and not _is_other(k)}
    if not any(tensor.dim() for tensor in tensors.values()) and len(inner) == 1:
        return find_state_dict(*inner.values())  # one more wrapping, of a name that we do not know
    found = _flatten(tensors | inner)
    return found if any(tensor.dim() for tensor in found.values()) else {}  # else a counter, not a model


def _flatten(content: dict[Any, Any]) -> "dict[str, torch.Tensor]":
    """Tensors by dotted name."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    for key, value in content.items():
        if isinstance(value, torch.Tensor):
            tensors[str(key)] = value.detach()
        elif isinstance(value, dict):
            tensors |= {f"{key}.{name}": tensor for name, tensor in _flatten(value).items()}
    return tensors


def _is_other(key: Any) -> bool:
    return isinstance(key, str) and key.lower().startswith(NOT_WEIGHTS)


def stored_step(content: Any) -> int | None:
    if isinstance(content, dict):
        for key in (*STEP_KEYS, "global_steps", "iter_num", "iteration", "num_updates", "step_count"):
            value = content.get(key)
            if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
                value = value.item()  # pyright: ignore[reportOptionalMemberAccess]
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_STEP:
                return value
    return None


def _checkpoint(
    label: str, found: "dict[str, torch.Tensor]", path: Path, step: int | None
) -> LoadedCheckpoint:
    import torch

    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    for name, tensor in found.items():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise InputError(f"{path}: tensor {name} is sparse or quantised; only plain tensors are read")
        if tensor.is_meta:
            raise InputError(f"{path}: tensor {name} was saved without values, on the meta device")
        shape = tuple(tensor.shape)
        tensors[name] = Tensor(DTYPES.get(str(tensor.dtype), str(tensor.dtype)), shape, _layout(tensor))
        if tensor.numel():
            place = (tensor.data_ptr(), shape, tensor.stride(), tensor.dtype)
            if place in first_name:
                aliases[name] = first_name[place]
            else:
                first_name[place] = name

    def load(name: str) -> np.ndarray:
        return _bits(found[name], tensors[name])

    return LoadedCheckpoint(label, tensors, load, step, aliases, copies_whole=False)


def _layout(tensor: "torch.Tensor") -> Strided | None:
    """None for row-major; the strides where all values lie together in another order of the axes."""
    if tensor.is_contiguous() or tensor.is_neg():
        return None
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride != expected:
            return None  # with gaps or repeats: `_bits` makes it row-major by a copy
        expected *= size
    return Strided(tensor.stride())


def _bits(tensor: "torch.Tensor", entry: Tensor) -> np.ndarray:
    import torch

    bits = STORAGE[entry.dtype]
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.itemsize]
    if entry.layout is None:
        tensor = tensor.contiguous()
    tensor = tensor.resolve_neg()
    flat = torch.empty(0, dtype=plain)
    flat.set_(tensor.untyped_storage(), tensor.storage_offset(), (tensor.numel(),), (1,))
    return flat.numpy().view(bits)
