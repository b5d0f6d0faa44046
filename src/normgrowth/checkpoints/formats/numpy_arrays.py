"""numpy arrays recorded in a pickle: dtype, shape and location of their bytes.

Like tensors of torch, they are records of calls with unchecked arguments. Every argument is checked here, and no
function is called.
"""

from math import prod
from typing import Any, NamedTuple

from normgrowth.checkpoints.checkpoint import WIDTH, Piece, Strided, Tensor
from normgrowth.checkpoints.formats.pickled.pickle_values import RecordedCall, Stretch
from normgrowth.checkpoints.formats.torch_tensors import DIMENSIONS, LARGEST, Unreadable
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.checkpoints.storage.encoded import Encoded, Inline

DTYPES = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "b1": "BOOL",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u8": "U64",
    "u4": "U32",
    "u2": "U16",
    "u1": "U8",
}
_MODULES = ("numpy.core", "numpy._core")
_RECONSTRUCT = tuple(f"{module}.multiarray._reconstruct" for module in _MODULES)
_FROM_BUFFER = tuple(f"{module}.numeric._frombuffer" for module in _MODULES)
ARRAY_CALLS = frozenset((*_RECONSTRUCT, *_FROM_BUFFER))


class _Array(NamedTuple):
    shape: Any
    dtype: Any
    transposed: bool  # the first axis varies fastest
    raw: Any


def is_array(value: Any) -> bool:
    return type(value) is RecordedCall and value.name in ARRAY_CALLS


def is_matrix(value: Any) -> bool:
    """Whether it is a floating-point array with at least two axes, as in a model but not in a log."""
    try:
        array = _array(value)
        return (
            type(array.shape) is tuple
            and len(array.shape) > 1
            and _dtype(array.dtype) in ("F64", "F32", "F16")
        )
    except Malformed:
        return False


def array_of(
    value: RecordedCall, number: int, start: int, file: str
) -> tuple[Tensor, Piece | Encoded | Inline]:
    """An array and the location of its values. number: of the array; start: of the pickle in the file.

    Raises `Unreadable` for unsupported dtypes, and `Malformed` for invalid arrays.
    """
    array = _array(value)
    dtype, shape = _dtype(array.dtype), array.shape
    if type(shape) is not tuple or len(shape) > DIMENSIONS:
        raise Malformed("is not a plain array")
    if not all(type(n) is int and 0 <= n < LARGEST for n in shape) or prod(shape) >= LARGEST:
        raise Malformed("is not a plain array")
    strides = tuple(prod(shape[:axis]) for axis in range(len(shape)))
    layout = Strided(strides) if array.transposed and len(shape) > 1 and prod(shape) else None
    return Tensor(dtype, shape, layout), _piece(array.raw, prod(shape), WIDTH[dtype], number, start, file)


def _piece(raw: Any, numel: int, width: int, number: int, start: int, file: str) -> Piece | Encoded | Inline:
    is_text = type(raw) is RecordedCall and raw.name == "_codecs.encode" and len(raw.args) == 2
    content = raw.args[0] if is_text else raw
    size = numel * width
    if not size:
        return Inline(file, number, 0, b"")
    if type(content) is Stretch:
        # A character above 127 takes two bytes in UTF-8.
        if not is_text and content.size == size and not content.is_text:
            return Piece(file, start + content.start, numel)
        if is_text and content.is_text and content.size <= 2 * size <= 2 * content.size:
            return Encoded(file, start + content.start, numel, content.size, "latin-1")
    elif type(content) is (str if is_text else bytes) and len(content) == size:
        if isinstance(content, str) and any(character > "\xff" for character in content):
            raise Malformed("has text as values that does not represent bytes")
        return Inline(file, number, numel, content)
    raise Malformed(f"does not have {size} bytes of values")


def _array(value: RecordedCall) -> _Array:
    if value.name in _FROM_BUFFER and len(value.args) == 4:
        raw, dtype, shape, order = value.args
        return _Array(shape, dtype, order == "F", raw)
    state = value.state
    if value.name in _RECONSTRUCT and type(state) is tuple and len(state) == 5:
        _, shape, dtype, transposed, raw = state
        return _Array(shape, dtype, transposed is True, raw)
    raise Malformed("is not a plain array")


def _dtype(value: Any) -> str:
    if (
        type(value) is not RecordedCall
        or value.name != "numpy.dtype"
        or not value.args
        or type(value.args[0]) is not str
    ):
        raise Unreadable("a numpy array of an unknown dtype")
    name, state = value.args[0], value.state
    order = state[1] if type(state) is tuple and len(state) > 1 and type(state[1]) is str else "="
    if name not in DTYPES or order == ">":
        raise Unreadable(f"a numpy array of dtype {order if order == '>' else ''}{name[:20]}")
    return DTYPES[name]
