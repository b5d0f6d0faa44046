"""What a pickle is made of when nothing in it runs: names of classes, records of calls, dictionaries as written."""

from dataclasses import dataclass
from typing import Any

LONGEST_KEY = 4096  # characters; equal texts are compared, so long ones would cost time again and again


class MalformedPickle(ValueError):
    """Not what belongs there; says what is wrong, for a caller who knows where."""


class Global(str):
    """A class or function that a pickle named; to us no more than its name."""

    __slots__ = ()


class Entries(list[Any]):
    """A dictionary as it was written: key, value, key, value. Nothing is hashed, since any key may stand here."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class RecordedCall:
    """What a pickle would have made by calling something; to us a note of what, and with what."""

    name: str
    args: tuple[Any, ...]
    state: Any = None
    entries: Entries | None = None  # what was set in it by key, if it is a kind of dictionary


SKIPPED = RecordedCall("(long text)", ())  # of protocol 0, whose texts are escaped


@dataclass(frozen=True, slots=True)
class Stretch:
    """A long text or long bytes, which stay where they are: nobody needs them but as values of an array."""

    start: int  # in what the pickle was read from
    size: int  # in bytes; texts are UTF-8
    is_text: bool


def set_items(target: Any, items: list[Any]) -> None:
    """Put keys and values, which alternate, into a dictionary or a record of one."""
    if len(items) % 2:
        raise MalformedPickle("it has a dict with a key that has no value")
    if type(target) is Entries:
        target.extend(items)
    elif type(target) is dict:
        # No tuples as keys: the hash of a deeply nested one overflows the C stack.
        if not all(
            type(key) is RecordedCall
            or (type(key) is str and len(key) <= LONGEST_KEY)
            or (type(key) is int and abs(key) < 1 << 63)
            for key in items[::2]
        ):
            raise MalformedPickle("it has a dict whose keys are not names")
        target.update(zip(items[::2], items[1::2], strict=True))
    elif type(target) is RecordedCall:
        if target.entries is None:
            target.entries = Entries()
        target.entries.extend(items)
    else:
        raise MalformedPickle("it sets an item of something that is no dict")
