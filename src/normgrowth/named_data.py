"""Data by name, "published:t5": verbs take them in place of a file.

The numbers of the paper lie in `normgrowth.paper`, above the verbs. So that verbs need not know it, this module says
where the data of each prefix are found; they are loaded when they are asked for.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.errors import InputError

if TYPE_CHECKING:
    from normgrowth.records import Records

PROVIDERS = {"published": "normgrowth.paper.published.by_name"}


def is_named(source: object) -> bool:
    """Whether this names data: "published:t5" is no path."""
    return isinstance(source, str) and source.partition(":")[0] in PROVIDERS and ":" in source


def named_series(source: str, quantity: str = "norm") -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Where the numbers come from, and steps and values of each series."""
    return _provider(source).series(source.partition(":")[2], quantity)


def named_trace(source: str) -> "tuple[Records, str | None]":
    """The records of a trace, and its schedule of learning rates, where that is known."""
    return _provider(source).trace(source.partition(":")[2])


def _provider(source: str) -> Any:
    if not is_named(source):
        raise InputError(f"{source}: no such data; known prefixes: {', '.join(PROVIDERS)}")
    return import_module(PROVIDERS[source.partition(":")[0]])


def records_from(source: "Records | Path | str") -> "Records":
    """The records of a folder or of data by name."""
    from normgrowth.records import Records

    if isinstance(source, Records):
        return source
    return named_trace(str(source))[0] if is_named(source) else Records.read(source)
