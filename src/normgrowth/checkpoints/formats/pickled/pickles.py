"""Pickles read as inert data: nothing is imported, called or set.

The machine builds values like Python's unpickler, but a class is only its name (`Global`) and a call is only recorded
(`RecordedCall`). Python's Unpickler with a strict `find_class` is not safe: nine bytes can make it allocate 30 GB, and
a deeply nested key crashes the process. Here every length is checked against the rest of the file, every operation
takes bounded time and creates at most one object, and the number of operations is bounded.

`unpickle` accepts only names on a list. `read_pickle` accepts any pickle, for files with unknown objects next to the
weights.
"""

import mmap
import pickletools
import struct
from collections.abc import Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from normgrowth.checkpoints.formats.pickled.pickle_opcodes import LONGEST_VALUE, RARE
from normgrowth.checkpoints.formats.pickled.pickle_values import (
    Entries,
    Global,
    RecordedCall,
    Stretch,
    set_items,
)
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.errors import InputError

OPERATIONS = 12_000_000  # at most 1 GB; a state dict with its optimizer takes about 100 per parameter
LONGEST_NAME = 256  # characters of a class name with its module
MODULE = "module"  # torch's legacy format marks a class of which it stored the source code

_RECONSTRUCTORS = ("copyreg._reconstructor", "copyreg.__newobj__")
_RENAMED = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
}  # names in Python 2, and in protocols below 3
_OPCODE_NAMES = {opcode.code: opcode.name for opcode in pickletools.opcodes}
_U2, _U4, _I4, _U8, _F8 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<i", "<Q", ">d"))


class _Refused(Exception):
    """The pickle names something that is not on the list."""


@dataclass(slots=True)
class Pickled:
    """The result of `read_pickle`."""

    value: Any
    end: int  # of the pickle in its file
    size: int  # in bytes
    names: set[str] = field(default_factory=set)  # classes and functions that it names
    storages: list[RecordedCall] = field(
        default_factory=list
    )  # persistent ids, with the id as the only argument


def unpickle(data: bytes, where: str, allowed: Set[str], storages: bool = False) -> Any:
    """The value of a pickle, with a `RecordedCall` wherever it would have called one of `allowed`."""
    try:
        return PickleMachine(data, 0, len(data), allowed, storages).run().value
    except _Refused as refused:
        raise InputError(
            f"{where}: refused: it refers to {refused}, which checkpoints do not need; no code was run"
        ) from None
    except Malformed as error:
        raise InputError(f"{where}: truncated, damaged or not the pickle of a checkpoint: {error}") from error


def read_pickle(data: "bytes | mmap.mmap", start: int = 0, stop: int | None = None) -> Pickled:
    """The content of any pickle, with `Entries` for dictionaries and a `RecordedCall` for every call."""
    return PickleMachine(data, start, len(data) if stop is None else stop, None, True).run()


class PickleMachine:
    """Runs one pickle; strict if it has a list of allowed names."""

    def __init__(
        self, data: "bytes | mmap.mmap", start: int, stop: int, allowed: Set[str] | None, storages: bool
    ) -> None:
        self.data, self.at, self.stop = data, start, min(stop, len(data))
        self.allowed, self.persistent = allowed, storages
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.found = Pickled(None, start, 0)

    def run(self) -> Pickled:
        start = self.at
        try:
            self._run()
        except (IndexError, struct.error):
            raise Malformed("it ends too early, or takes more from its stack than there is") from None
        except KeyError:
            raise Malformed("it refers to something that it did not store") from None
        except UnicodeDecodeError:
            raise Malformed("it has text that is not UTF-8") from None
        if self.found.end > self.stop:
            raise Malformed("it ends too early")
        self.found.size = self.found.end - start
        return self.found

    def _run(self) -> None:
        data, at, stop, strict = self.data, self.at, self.stop, self.allowed is not None
        stack, marks, memo = self.stack, self.marks, self.memo
        push, pop = stack.append, stack.pop
        for _ in repeat(None, OPERATIONS):
            code = data[at]
            at += 1
            match code:  # the frequent ones first
                case 0x71:  # BINPUT
                    memo[data[at]] = stack[-1]
                    at += 1
                case 0x72:  # LONG_BINPUT
                    memo[_U4(data, at)[0]] = stack[-1]
                    at += 4
                case 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                case 0x68:  # BINGET
                    push(memo[data[at]])
                    at += 1
                case 0x4B:  # BININT1
                    push(data[at])
                    at += 1
                case 0x6A:  # LONG_BINGET
                    push(memo[_U4(data, at)[0]])
                    at += 4
                case 0x58 | 0x8C | 0x8D:  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
                    if code == 0x58:
                        size = _U4(data, at)[0]
                        at += 4
                    elif code == 0x8C:
                        size = data[at]
                        at += 1
                    else:
                        size = _U8(data, at)[0]
                        at += 8
                    if size > stop - at:
                        raise Malformed(f"it has a text of {size} bytes, but only {stop - at} are left")
                    if size > LONGEST_VALUE and not strict:
                        push(Stretch(at, size, True))
                    else:
                        push(data[at : at + size].decode("utf-8", "surrogatepass"))
                    at += size
                case 0x28:  # MARK
                    marks.append(len(stack))
                case 0x74:  # TUPLE
                    mark = marks.pop()
                    items = tuple(stack[mark:])
                    del stack[mark:]
                    push(items)
                case 0x52 | 0x81:  # REDUCE, NEWOBJ
                    args = pop()
                    stack[-1] = self.made(stack[-1], args)
                case 0x51:  # BINPERSID
                    stack[-1] = self._stored(stack[-1])
                case 0x29:  # EMPTY_TUPLE
                    push(())
                case 0x85:  # TUPLE1
                    stack[-1] = (stack[-1],)
                case 0x86:  # TUPLE2
                    last = pop()
                    stack[-1] = (stack[-1], last)
                case 0x87:  # TUPLE3
                    last, middle = pop(), pop()
                    stack[-1] = (stack[-1], middle, last)
                case 0x89 | 0x88:  # NEWFALSE, NEWTRUE
                    push(code == 0x88)
                case 0x4D:  # BININT2
                    push(_U2(data, at)[0])
                    at += 2
                case 0x4A:  # BININT
                    push(_I4(data, at)[0])
                    at += 4
                case 0x7D:  # EMPTY_DICT
                    push({} if strict else Entries())
                case 0x75:  # SETITEMS
                    mark = marks.pop()
                    items = stack[mark:]
                    del stack[mark:]
                    set_items(stack[-1], items)
                case 0x73:  # SETITEM
                    value, key = pop(), pop()
                    set_items(stack[-1], [key, value])
                case 0x4E:  # NONE
                    push(None)
                case 0x8A | 0x8B:  # LONG1, LONG4
                    if code == 0x8B and strict:
                        raise Malformed("it uses LONG4, which checkpoints do not use")
                    size = data[at] if code == 0x8A else _U4(data, at)[0]
                    at += 1 if code == 0x8A else 4
                    if size > stop - at:
                        raise Malformed(f"it has a number of {size} bytes, but only {stop - at} are left")
                    push(int.from_bytes(data[at : at + size], "little", signed=True))
                    at += size
                case 0x47:  # BINFLOAT
                    push(_F8(data, at)[0])
                    at += 8
                case 0x5D:  # EMPTY_LIST
                    push([])
                case 0x65 | 0x61:  # APPENDS, APPEND
                    mark = marks.pop() if code == 0x65 else len(stack) - 1
                    items = stack[mark:]
                    del stack[mark:]
                    if type(stack[-1]) is list:
                        stack[-1].extend(items)
                    elif (
                        strict or type(stack[-1]) is not RecordedCall
                    ):  # items of list subclasses are not needed
                        raise Malformed("it appends to an object that is not a list")
                case 0x62:  # BUILD
                    state = pop()
                    if type(stack[-1]) is RecordedCall:
                        stack[-1].state = state
                    elif strict:
                        raise Malformed("it sets the state of an object that has none")
                case 0x63:  # GLOBAL
                    named, at = self.global_line(at)
                    push(named)
                case 0x93:  # STACK_GLOBAL
                    name = pop()
                    stack[-1] = self.named(stack[-1], name)
                case 0x80:  # PROTO
                    at += 1
                case 0x95:  # FRAME
                    at += 8
                case 0x2E:  # STOP
                    self.found.value, self.found.end = pop(), at
                    return
                case _:
                    operation = RARE.get(code)
                    if strict or operation is None:
                        what = _OPCODE_NAMES.get(chr(code), f"the byte {code:#04x}")
                        raise Malformed(f"it uses {what}, which checkpoints do not use")
                    at = operation(self, code, at)
        raise Malformed(f"it takes more than {OPERATIONS:,} operations; save the weights in a separate file")

    def named(self, module: Any, name: Any) -> Global:
        if type(module) is not str or type(name) is not str:
            raise Malformed("it has a class name that is not text")
        if len(module) + len(name) > LONGEST_NAME:
            raise Malformed(f"it has a class name of {len(module) + len(name)} characters")
        full = f"{_RENAMED.get(module, module)}.{name}"
        if self.allowed is not None and full not in self.allowed:
            raise _Refused(full if full.isprintable() else ascii(full))
        self.found.names.add(full)
        return Global(full)

    def made(self, function: Any, args: Any) -> Any:
        strict = self.allowed is not None
        if type(args) is not tuple or (strict and type(function) is not Global):
            raise Malformed("it calls an object that is not a class")
        if type(function) is not Global:
            return RecordedCall("(the result of a call)", args)
        if function == "torch.Size" and len(args) == 1 and type(args[0]) is tuple:
            return args[0]
        if function == "collections.OrderedDict" and not args:
            return {} if strict else Entries()
        if function in _RECONSTRUCTORS and not strict and args and type(args[0]) is Global:
            return RecordedCall(args[0], ())  # how protocols 0 and 1 call a class
        return RecordedCall(function, args)

    def _stored(self, identity: Any) -> Any:
        if not self.persistent:
            raise Malformed("it uses BINPERSID, which checkpoints do not use")
        if type(identity) is not tuple:
            raise Malformed("it has a persistent id that is not a tuple")
        if self.allowed is None and len(identity) > 1 and type(identity[0]) is str and identity[0] == MODULE:
            return identity[1]
        made = RecordedCall("storage", identity)
        self.found.storages.append(made)
        return made

    def line(self, at: int) -> tuple[bytes, int]:
        """The bytes up to the end of the line, and the position after it."""
        end = self.data.find(b"\n", at, self.stop)
        if end < 0:
            raise Malformed("it ends too early")
        return self.data[at:end], end + 1

    def global_line(self, at: int) -> tuple[Global, int]:
        """The class named by two lines, and the position after them."""
        module, at = self.line(at)
        name, at = self.line(at)
        return self.named(module.decode(), name.decode()), at

    def pop_to_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items
