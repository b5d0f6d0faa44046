"""Tensors in a pickle of torch: dtype, shape, and the values of a storage that they refer to.

Tensors are recorded calls (`pickle_values.RecordedCall`) with unchecked arguments. Every argument is checked here, and
no function is called.
"""

from math import prod
from typing import Any, NamedTuple

from normgrowth.checkpoints.checkpoint import STORAGE
from normgrowth.checkpoints.formats.pickled.pickle_values import Entries, Global, RecordedCall
from normgrowth.checkpoints.malformed import Malformed

DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.bfloat16": "BF16",
    "torch.float16": "F16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint64": "U64",
    "torch.uint32": "U32",
    "torch.uint16": "U16",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
TYPED_STORAGES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.BFloat16Storage": "BF16",
    "torch.HalfStorage": "F16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
# Unsupported value types: name and bytes per value.
OTHER_STORAGES = {
    "torch.ComplexDoubleStorage": ("complex128", 16),
    "torch.ComplexFloatStorage": ("complex64", 8),
    "torch.QUInt8Storage": ("quantized", 1),
    "torch.QInt8Storage": ("quantized", 1),
    "torch.QInt32Storage": ("quantized", 4),
    "torch.QUInt4x2Storage": ("quantized", 1),
    "torch.QUInt2x4Storage": ("quantized", 1),
}
UNTYPED_STORAGES = ("torch.UntypedStorage", "torch.storage.UntypedStorage")

_REBUILD = "torch._utils._rebuild_"
PLAIN, TYPED, UNTYPED = f"{_REBUILD}tensor", f"{_REBUILD}tensor_v2", f"{_REBUILD}tensor_v3"
PARAMETER = f"{_REBUILD}parameter"
TENSOR_NAMES = frozenset(
    {
        *(DTYPES | TYPED_STORAGES),
        *(TYPED, UNTYPED, PARAMETER, *UNTYPED_STORAGES),
        *("torch.Size", "collections.OrderedDict"),
    }
)
# Calls whose first argument is the tensor.
_AROUND = (
    *(PARAMETER, f"{_REBUILD}parameter_with_state", f"{_REBUILD}device_tensor_from_cpu_tensor"),
    *("torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"),
)
_FROM_TYPE = ("torch._tensor._rebuild_from_type", "torch._tensor._rebuild_from_type_v2")
_UNREADABLE = {
    f"{_REBUILD}sparse_tensor": "sparse",
    f"{_REBUILD}sparse_csr_tensor": "sparse",
    f"{_REBUILD}qtensor": "quantized",
    f"{_REBUILD}nested_tensor": "nested",
    f"{_REBUILD}meta_tensor_no_storage": "saved without values, on the meta device",
    f"{_REBUILD}device_tensor_from_numpy": "stored as a numpy array",
    f"{_REBUILD}xla_tensor": "stored as a numpy array",
}
DIMENSIONS = 32  # the limit of numpy versions before 2
LARGEST = 1 << 62


class Unreadable(Malformed):
    """A tensor of an unsupported kind; the message is the kind."""


class View(NamedTuple):
    """A tensor as a view of a storage."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    key: str  # of the storage
    storage_bytes: int
    offset: int  # of the first value in the storage, in values
    negated: bool

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def extent(self) -> int:
        """The number of values in the storage from its first to its last."""
        return (
            1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if self.numel else 0
        )

    @property
    def order(self) -> str:
        """The order of its values: "row-major", "permuted" (contiguous, with axes in another order) or "scattered"."""
        axes = [(s, n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1]
        if self.numel == 0 or _dense(axes[::-1]):
            return "row-major"
        return "permuted" if _dense(sorted(axes)) else "scattered"


def _dense(axes: list[tuple[int, int]]) -> bool:
    """Whether values are contiguous, given (stride, size) of the axes, the fastest first."""
    expected = 1
    for stride, size in axes:
        if stride != expected:
            return False
        expected *= size
    return True


def tensor_call(value: Any) -> RecordedCall | None:
    """The call that creates the tensor, without wrappers for parameters and subclasses; None if it is not a tensor."""
    for _ in range(8):
        if type(value) is not RecordedCall:
            return None
        args = value.args
        if value.name in _AROUND and args:
            value = args[0]
        elif (
            value.name in _FROM_TYPE and len(args) > 2 and type(args[0]) is Global and type(args[2]) is tuple
        ):
            value = RecordedCall(args[0], args[2])
        else:
            return value if value.name.startswith(_REBUILD) else None
    return None


def dimensions(value: Any) -> int:
    """The number of dimensions of a tensor; 1 if unknown."""
    call = tensor_call(value)
    if call is None or call.name not in (PLAIN, TYPED, UNTYPED) or len(call.args) < 4:
        return 1
    shape = call.args[2]
    return len(shape) if type(shape) is tuple else 1


def view_of(value: Any) -> View:
    """The view of a recorded tensor. Raises `Unreadable` for unsupported kinds, else `Malformed`."""
    call = tensor_call(value)
    if call is None or call.name not in (PLAIN, TYPED, UNTYPED):
        raise _unreadable(call)
    untyped = call.name == UNTYPED
    if len(call.args) < (7 if untyped else 4):
        raise Malformed("is not a plain tensor")
    storage, offset, shape, strides = call.args[:4]
    name, key, location, count, shift = _storage(storage)
    if location == "meta":
        raise Unreadable("saved without values, on the meta device")
    if untyped:
        dtype = _known(call.args[6], DTYPES)
    elif name in OTHER_STORAGES:
        raise Unreadable(OTHER_STORAGES[name][0])
    else:
        dtype = _known(name, TYPED_STORAGES)
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise Malformed("is not a plain tensor")
    if len(shape) > DIMENSIONS:
        raise Malformed(f"has {len(shape)} dimensions; at most {DIMENSIONS} are supported")
    if not all(type(n) is int and 0 <= n < LARGEST for n in (offset, *shape, *strides)):
        raise Malformed("is not a plain tensor")
    width = STORAGE[dtype].itemsize
    size = count * (width if name in TYPED_STORAGES else 1)
    view = View(dtype, shape, strides, key, size, offset + shift, _negated(call.args[7 if untyped else 6 :]))
    if view.numel and (view.offset + view.extent) * width > size:
        raise Malformed("is larger than its storage")
    return view


def _unreadable(call: RecordedCall | None) -> Malformed:
    if call is None:
        return Malformed("is not a plain tensor")
    if call.name == f"{_REBUILD}wrapper_subclass" and call.args and type(call.args[0]) is Global:
        return Unreadable(f"a {call.args[0]}, which wraps other tensors")
    return Unreadable(_UNREADABLE.get(call.name, f"made by {call.name}"))


def _known(name: Any, table: dict[str, str]) -> str:
    if type(name) not in (str, Global):
        raise Malformed("is not a plain tensor")
    if name not in table:
        raise Unreadable(f"of dtype {name.removeprefix('torch.')}")
    return table[name]


def _storage(storage: Any) -> tuple[str, str, str, int, int]:
    """Class, key, device, number of values (bytes if untyped), and offset of a view of another storage."""
    if type(storage) is not RecordedCall or storage.name != "storage" or len(storage.args) not in (5, 6):
        raise Malformed("has no storage")
    _, kind, key, location, count, *view = storage.args
    if not (type(kind) is Global and type(key) is str and type(location) is str and _is_size(count)):
        raise Malformed("has a storage without a valid type, key, device and size")
    shift = 0
    if view and view[0] is not None:  # in the legacy format: a part of another storage
        if type(view[0]) is not tuple or len(view[0]) != 3 or not _is_size(view[0][1]):
            raise Malformed("has a storage with an invalid reference to the storage that contains it")
        shift = view[0][1]
    return storage_class(kind), key, location, count, shift


def storage_class(name: str) -> str:
    """The class without the device, which older versions of torch include: torch.cuda.FloatStorage."""
    return name.replace("torch.cuda.", "torch.", 1)


def storage_size(storage: RecordedCall) -> tuple[str, int]:
    """The key of a storage, and its size in bytes."""
    name, key, _, count, _ = _storage(storage)
    if name in TYPED_STORAGES:
        return key, count * STORAGE[TYPED_STORAGES[name]].itemsize
    if name in OTHER_STORAGES:
        return key, count * OTHER_STORAGES[name][1]
    if name in UNTYPED_STORAGES:
        return key, count
    raise Malformed(f"has a storage of the unknown class {name!r}")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _negated(metadata: tuple[Any, ...]) -> bool:
    if not metadata or metadata[0] is None:
        return False
    flags = metadata[0]
    if type(flags) is Entries and len(flags) < 16:
        flags = {key: value for key, value in zip(flags[::2], flags[1::2], strict=True) if type(key) is str}
    if type(flags) is not dict or not all(type(value) is bool for value in flags.values()):
        raise Malformed("has invalid metadata")
    if any(value for key, value in flags.items() if key != "neg"):
        raise Unreadable("a conjugated view")
    return flags.get("neg", False)
