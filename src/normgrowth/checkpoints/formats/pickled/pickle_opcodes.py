"""Rare pickle operations: those of protocols 0 and 1, sets, bytes, calls with keyword arguments.

Each function takes the machine, the opcode and the position after it, and returns the position after its argument.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from normgrowth.checkpoints.formats.pickled.pickle_values import (
    SKIPPED,
    Entries,
    RecordedCall,
    Stretch,
    set_items,
)
from normgrowth.checkpoints.malformed import Malformed

if TYPE_CHECKING:
    from normgrowth.checkpoints.formats.pickled.pickles import PickleMachine

LONGEST_VALUE = 1 << 16  # maximum bytes of a copied text or byte string; longer ones are not needed


def _pop(machine: "PickleMachine", _: int, at: int) -> int:
    if machine.marks and machine.marks[-1] >= len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()
    return at


def _pop_mark(machine: "PickleMachine", _: int, at: int) -> int:
    machine.pop_to_mark()
    return at


def _duplicate(machine: "PickleMachine", _: int, at: int) -> int:
    machine.stack.append(machine.stack[-1])
    return at


def _text_number(machine: "PickleMachine", code: int, at: int) -> int:
    text, at = machine.line(at)
    try:
        if code == 0x46:  # FLOAT
            value = float(text)
        elif code == 0x49 and text in (b"00", b"01"):  # INT, which protocols 0 and 1 also use for booleans
            value = text == b"01"
        else:
            value = int(text.removesuffix(b"L"))
    except ValueError:
        raise Malformed("it has an invalid number") from None
    machine.stack.append(value)
    return at


def _text(machine: "PickleMachine", code: int, at: int) -> int:
    text, at = machine.line(at)
    if len(text) > LONGEST_VALUE:
        machine.stack.append(SKIPPED)
        return at
    if code == 0x53:  # STRING: quoted text of Python 2
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
            raise Malformed("it has a text without quotes")
        machine.stack.append(SKIPPED if b"\\" in text else text[1:-1].decode())
    else:  # UNICODE
        machine.stack.append(text.decode("raw_unicode_escape"))
    return at


def _bytes(machine: "PickleMachine", code: int, at: int) -> int:
    width = {0x54: 4, 0x55: 1, 0x42: 4, 0x43: 1, 0x8E: 8, 0x96: 8}[code]
    if machine.stop - at < width:
        raise Malformed("it ends too early")
    size, at = int.from_bytes(machine.data[at : at + width], "little"), at + width
    if size > machine.stop - at:
        raise Malformed(f"it has {size} bytes of data, but only {machine.stop - at} are left")
    value: Any = Stretch(at, size, code in (0x54, 0x55))
    if size <= LONGEST_VALUE:
        value = machine.data[at : at + size]
        if code in (0x54, 0x55):  # BINSTRING, SHORT_BINSTRING: text of Python 2
            value = value.decode("utf-8", "surrogateescape")
    machine.stack.append(value)
    return at + size


def _number_from_memo(machine: "PickleMachine", code: int, at: int) -> int:
    text, at = machine.line(at)
    if not (text.isdigit() and len(text) < 19):
        raise Malformed("it refers to an object by an invalid number")
    if code == 0x67:  # GET
        machine.stack.append(machine.memo[int(text)])
    else:  # PUT
        machine.memo[int(text)] = machine.stack[-1]
    return at


def _collection(machine: "PickleMachine", code: int, at: int) -> int:
    if code == 0x8F:  # EMPTY_SET
        machine.stack.append(RecordedCall("builtins.set", ([],)))
        return at
    items = machine.pop_to_mark()
    if code == 0x64:  # DICT
        made = Entries()
        set_items(made, items)
        machine.stack.append(made)
    elif code == 0x6C:  # LIST
        machine.stack.append(items)
    elif code == 0x91:  # FROZENSET
        machine.stack.append(RecordedCall("builtins.frozenset", (items,)))
    else:  # ADDITEMS
        target = machine.stack[-1]
        if type(target) is not RecordedCall or not target.args or type(target.args[0]) is not list:
            raise Malformed("it adds items to an object that is not a set")
        target.args[0].extend(items)
    return at


def _instance(machine: "PickleMachine", code: int, at: int) -> int:
    if code == 0x92:  # NEWOBJ_EX
        machine.stack.pop()  # keyword arguments
        args, function = machine.stack.pop(), machine.stack.pop()
    elif code == 0x69:  # INST
        function, at = machine.global_line(at)
        args = tuple(machine.pop_to_mark())
    else:  # OBJ
        function, *rest = machine.pop_to_mark() or [None]
        args = tuple(rest)
    machine.stack.append(machine.made(function, args))
    return at


RARE: "dict[int, Callable[[PickleMachine, int, int], int]]" = {
    0x30: _pop,
    0x31: _pop_mark,
    0x32: _duplicate,
    **dict.fromkeys((0x46, 0x49, 0x4C), _text_number),  # FLOAT, INT, LONG
    **dict.fromkeys((0x53, 0x56), _text),
    **dict.fromkeys((0x54, 0x55, 0x42, 0x43, 0x8E, 0x96), _bytes),  # ..., BINBYTES*, BYTEARRAY8
    **dict.fromkeys((0x67, 0x70), _number_from_memo),
    **dict.fromkeys((0x64, 0x6C, 0x8F, 0x90, 0x91), _collection),
    **dict.fromkeys((0x69, 0x6F, 0x92), _instance),
}
