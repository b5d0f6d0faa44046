"""What torch.save writes, read as inert data: pickles that run nothing, archives that are not unpacked.

`unpickle` is a machine that can put values together but never imports, calls or sets anything: a
class is its name, a call is a note of what was to be called. Python's Unpickler with a strict
`find_class` would not do: nine bytes can make it ask for 30 GB, and a deeply nested key ends the
process. `Archive` finds where in a file the entries of a torch archive begin, and `stored_tensor`
what the values there are, so that a tensor of gigabytes costs a few reads.
"""

import io
import mmap
import pickletools
import struct
import zipfile
from collections.abc import Set
from dataclasses import dataclass
from math import prod
from typing import Any

from normgrowth.errors import InputError
from normgrowth.weights.sources.checkpoint import STORAGE

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
TYPED, UNTYPED = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"
PARAMETER = "torch._utils._rebuild_parameter"
TENSOR_NAMES = frozenset(
    {
        *(DTYPES | TYPED_STORAGES),
        *(TYPED, UNTYPED, PARAMETER, "torch.UntypedStorage", "torch.storage.UntypedStorage"),
        *("torch.Size", "collections.OrderedDict"),
    }
)


class Malformed(ValueError):
    """Not what belongs there; says what is wrong, for a caller who knows where."""


class _Refused(Exception):
    """The pickle names something that is not on the list."""


class Global(str):
    """A class or function that a pickle named; to us no more than its name."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Made:
    """What a pickle would have made by calling something; to us a note of what, and with what."""

    name: str
    args: tuple[Any, ...]
    state: Any = None


def unpickle(data: bytes, where: str, allowed: Set[str], storages: bool = False) -> Any:
    """The value of a pickle, with a `Made` wherever it would have called one of `allowed`."""
    try:
        return _run(data, allowed, storages)
    except _Refused as refused:
        raise InputError(
            f"{where}: refused: it asks for {refused}, which no checkpoint needs; it was not run"
        ) from None
    except Exception as error:
        reason = [*str(error).splitlines(), type(error).__name__][0][:200]
        raise InputError(f"{where}: truncated, damaged or no checkpoint's pickle: {reason}") from error


def _run(data: bytes, allowed: Set[str], storages: bool) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop_to(start: int) -> list[Any]:
        if start < 0:
            raise Malformed("its stack runs empty")
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:  # the frequent ones first
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "MARK":
                marks.append(len(stack))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(pop_to(len(stack) - int(name[-1]))))
            case "NEWOBJ" | "REDUCE":
                args, function = stack.pop(), stack.pop()
                stack.append(_made(function, args))
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_DICT":
                stack.append({})
            case "SETITEM" | "SETITEMS" as name:
                items = pop_to(marks.pop() if name == "SETITEMS" else len(stack) - 2)
                # No tuples as keys: the hash of a deeply nested one overflows the C stack.
                if type(stack[-1]) is not dict or not all(
                    type(key) in (str, int, Made) for key in items[::2]
                ):
                    raise Malformed("it has a dict whose keys are not names")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "BUILD":
                state = stack.pop()
                if type(stack[-1]) is not Made:
                    raise Malformed("it sets the state of something that has none")
                stack[-1].state = state
            case "EMPTY_LIST":
                stack.append([])
            case "APPEND" | "APPENDS" as name:
                items = pop_to(marks.pop() if name == "APPENDS" else len(stack) - 1)
                if type(stack[-1]) is not list:
                    raise Malformed("it appends to something that is no list")
                stack[-1].extend(items)
            case "TUPLE":
                stack.append(tuple(pop_to(marks.pop())))
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE" as name:
                stack.append(name == "NEWTRUE")
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "GLOBAL":
                stack.append(_named(*str(argument).split(" ", 1), allowed=allowed))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_named(module, name, allowed=allowed))
            case "BINPERSID" if storages:
                stack.append(Made("storage", stack.pop()))
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case unknown:
                raise Malformed(f"it uses {unknown}, which none does")
    raise Malformed("it has no end")


def _named(module: Any, name: Any, allowed: Set[str]) -> Global:
    if type(module) is not str or type(name) is not str:
        raise Malformed("it names a class by something that is no text")
    full = f"{module}.{name}"
    if full not in allowed:
        raise _Refused(full if full.isprintable() and len(full) < 200 else ascii(full[:200]))
    return Global(full)


def _made(function: Any, args: Any) -> Any:
    if type(function) is not Global or type(args) is not tuple:
        raise Malformed("it calls something that is no class")
    if function == "torch.Size" and len(args) == 1 and type(args[0]) is tuple:
        return args[0]
    if function == "collections.OrderedDict" and not args:
        return {}
    return Made(str(function), args)


class _Window(io.RawIOBase):
    """A part of a mapped file, as the file that `zipfile` wants."""

    def __init__(self, data: mmap.mmap, start: int, length: int) -> None:
        self._data, self._start, self._length, self._position = data, start, length, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = max(0, offset + (0, self._position, self._length)[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        start = min(self._position, self._length)
        stop = self._length if size < 0 else min(start + size, self._length)
        self._position = stop
        return self._data[self._start + start : self._start + stop]


class Archive:
    """A torch archive that lies within a mapped file: where its entries are."""

    def __init__(self, data: mmap.mmap, start: int, length: int) -> None:
        self._data, self._start, self._stop = data, start, start + length
        try:
            with zipfile.ZipFile(_Window(data, start, length)) as directory:
                # Entries are `archive/data.pkl`, `archive/data/0` and so on, with any first folder.
                self._entries = {info.filename.partition("/")[2]: info for info in directory.infolist()}
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
            raise Malformed(f"is no torch archive, the one format that is read: {error}") from error
        if "byteorder" in self._entries and self.read("byteorder") != b"little":
            raise Malformed("was saved on a big-endian machine")

    def span(self, name: str) -> tuple[int, int]:
        """First byte in the file, and number of bytes."""
        info = self._entries.get(name)
        if info is None:
            raise Malformed(f"is a torch archive without {name}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise Malformed(f"is an archive with a compressed or encrypted {name}")
        header = self._start + info.header_offset
        start = header + 30 + sum(struct.unpack("<HH", self._data[header + 26 : header + 30].ljust(4, b"\0")))
        starts_well = header >= self._start and self._data[header : header + 4] == b"PK\x03\x04"
        if not starts_well or start + info.file_size > self._stop:
            raise Malformed(f"is an archive whose {name} is damaged")
        return start, info.file_size

    def read(self, name: str) -> bytes:
        start, size = self.span(name)
        return self._data[start : start + size]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What an archive says of its one tensor."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # None: row-major
    entry: str  # the archive's entry that has the values
    entry_bytes: int
    offset: int  # where they begin there, in values


def stored_tensor(value: Any) -> StoredTensor:
    """The tensor that an unpickled `data.pkl` describes, if its values lie together."""
    if type(value) is Made and value.name == PARAMETER and value.args:
        value = value.args[0]
    try:
        if type(value) is not Made or value.name not in (TYPED, UNTYPED):
            raise TypeError
        typed = value.name == TYPED
        storage, offset, shape, strides = value.args[:4]
        if any(value.args[6 if typed else 7 :]):
            raise Malformed("is a view that conjugates or negates")
        _, storage_type, key, _, count = storage.args
        dtype = TYPED_STORAGES[storage_type] if typed else DTYPES[value.args[6]]
        itemsize = STORAGE[dtype].itemsize
        whole = [offset, count, *shape, *strides]
        if (
            not all(type(n) is int and n >= 0 for n in whole)
            or len(shape) != len(strides)
            or type(key) is not str
        ):
            raise TypeError
        entry_bytes = count * itemsize if typed else count
        if (offset + prod(shape)) * itemsize > entry_bytes:
            raise Malformed("is larger than its storage")
        return StoredTensor(dtype, shape, _order(shape, strides), f"data/{key}", entry_bytes, offset)
    except Malformed:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Malformed("is no plain tensor") from error


def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    axes = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1]
    if prod(shape) == 0 or _dense(axes[::-1]):
        return None
    if not _dense(sorted(axes)):
        raise Malformed(f"has strides {list(strides)}, with gaps or repeats")
    return strides


def _dense(axes: list[tuple[int, int]]) -> bool:
    """Whether values lie without gaps, given (stride, size) of the axes, the fastest first."""
    expected = 1
    for stride, size in axes:
        if stride != expected:
            return False
        expected *= size
    return True
