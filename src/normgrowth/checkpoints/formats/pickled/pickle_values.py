"""The values of a pickle that is read without running code: class names, recorded calls, dictionaries as entries."""

from dataclasses import dataclass
from typing import Any

from normgrowth.checkpoints.malformed import Malformed

PATHS = tuple(f"{m}.{name}Path" for m in ("pathlib", "pathlib._local") for name in ("Posix", "Windows"))
LONGEST_KEY = 4096  # characters; comparing long keys many times would be slow


class Global(str):
    """The name of a class or function in a pickle. It is never imported."""

    __slots__ = ()


class Entries(list[Any]):
    """A dictionary as a flat list: key, value, key, value. Keys are not hashed, because they can be any object."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class RecordedCall:
    """A call in a pickle: the name of the function and its arguments. The function is never called."""

    name: str
    args: tuple[Any, ...]
    state: Any = None
    entries: Entries | None = None  # items that were set, if it is a dictionary subclass


SKIPPED = RecordedCall("(long text)", ())  # for long texts of protocol 0, which are escaped


@dataclass(frozen=True, slots=True)
class Stretch:
    """The location of a long text or byte string, which is not copied: it is only needed as values of an array."""

    start: int  # in the data that the pickle was read from
    size: int  # in bytes; texts are UTF-8
    is_text: bool


def set_items(target: Any, items: list[Any]) -> None:
    """Add alternating keys and values to a dictionary or a recorded one."""
    if len(items) % 2:
        raise Malformed("it has a dict with a key without a value")
    if type(target) is Entries:
        target.extend(items)
    elif type(target) is dict:
        # Tuples are not allowed as keys: hashing a deeply nested tuple overflows the C stack.
        if not all(
            type(key) is RecordedCall
            or (type(key) is str and len(key) <= LONGEST_KEY)
            or (type(key) is int and abs(key) < 1 << 63)
            for key in items[::2]
        ):
            raise Malformed("it has a dict whose keys are not names")
        target.update(zip(items[::2], items[1::2], strict=True))
    elif type(target) is RecordedCall:
        if target.entries is None:
            target.entries = Entries()
        target.entries.extend(items)
    else:
        raise Malformed("it sets an item of an object that is not a dict")
