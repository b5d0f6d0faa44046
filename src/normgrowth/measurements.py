"""Measurements that verbs take as input: a result, its records, its folder, or data by name ("published:t5").

The published numbers are in `normgrowth.paper`, which imports the verbs. To avoid a circular import, `PROVIDERS` maps
each prefix to the module that has its data; the module is imported on first use.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from normgrowth.checkpoints.parameters.selection import parameters_text
from normgrowth.checkpoints.remote.hub.revisions import is_hub
from normgrowth.checkpoints.remote.web.website import redact_url
from normgrowth.errors import InputError
from normgrowth.records import Levels, Records
from normgrowth.results import KINDS, Result, result_of
from normgrowth.schedules import OptimizerGroup, Schedule, recorded
from normgrowth.stored_result import StoredResult

PROVIDERS = {"published": "normgrowth.paper.published.by_name"}


@dataclass(frozen=True)
class Measurement:
    """Records, their source, and the counted parameters; also the schedule and the optimizer if they are known.

    optimizer, optimizer_changes: the class of a tracked run's optimizer, and changes of its settings.
    """

    records: Records
    source: str
    parameters: str
    schedule: Schedule | str | None = None
    optimizer_groups: tuple[OptimizerGroup, ...] = ()
    optimizer: str = ""
    optimizer_changes: tuple[str, ...] = ()


def read_measurement(data: Result | Records | Path | str, levels: Levels | None = None) -> Measurement:
    """The measurement of a result, of records, of a folder, or of data by name.

    levels: read only these levels of the folder of a tracker.
    """
    if isinstance(data, Result):
        return _of_result(data)
    if isinstance(data, Records):
        return _of_records(data)
    if is_named(data):
        result, schedule = _provider(str(data)).load_trace(_name(str(data)))
        return replace(_of_result(result), schedule=schedule)
    stored = StoredResult.read(data, levels)
    if stored.kind in KINDS:
        return _of_result(result_of(stored, data), str(data))
    return _of_records(stored.records, str(data))


def _of_result(result: Result, place: str = "") -> Measurement:
    selection = getattr(result, "selection", None)
    counted = getattr(result, "counted", None)
    parameters = parameters_text(selection, counted) if selection else ""
    source = getattr(result, "source", "") or _of_records(result.records, place).source
    schedule = getattr(result, "schedule", None) or _recorded_schedule(result.records)
    groups, optimizer = getattr(result, "optimizer_groups", ()), getattr(result, "optimizer", "")
    named = optimizer if isinstance(optimizer, str) else ""  # dynamics have settings under this name
    changes = getattr(result, "optimizer_changes", ())
    return Measurement(result.records, source, parameters, schedule, groups, named, changes)


def _recorded_schedule(records: Records) -> Schedule | None:
    """The learning rates that a tracker recorded; None unless all parameters share them. Step n is update n − 1."""
    rows = records.where(level="model", quantity="learning_rate").to_rows()
    rates = {row["step"] - 1: row["value"] for row in rows if row["step"] > 0}
    return recorded(rates) if rates else None


def _of_records(records: Records, place: str = "") -> Measurement:
    return Measurement(records, place or ", ".join(map(str, records.distinct("run"))), "")


def is_named(source: object) -> bool:
    """Whether the source is a name of data, such as "published:t5", and not a path."""
    return isinstance(source, str) and ":" in source and source.partition(":")[0] in PROVIDERS


def is_named_trace(source: object) -> bool:
    """Whether the source is a name of data with the levels and quantities of a trace."""
    return is_named(source) and _provider(str(source)).is_trace(_name(str(source)))


def named_result(source: str) -> Result:
    """The result with this name: "published:t5" is a trace."""
    return _provider(source).load_published(_name(source))


def named_series(source: str, quantity: str = "norm") -> tuple[str, dict[str, tuple[Any, Any]]]:
    """The origin of the numbers, and the steps and values of each series."""
    return _provider(source).series(_name(source), quantity)


def where(source: str | Path | Iterable[str | Path]) -> str:
    """The absolute path or address of a source, without passwords."""
    parts = [source] if isinstance(source, str | Path) else source
    return ", ".join(map(_place, map(str, parts)))


def _place(source: str) -> str:
    if is_hub(source) or is_named(source):
        return source
    return redact_url(source) if "://" in source else str(Path(source).expanduser().absolute())


def identities(out: object, **inputs: Any) -> dict[str, Any]:
    """The entries for the inputs of a verb in the request of its output folder; {} without a folder."""
    return {} if out is None else {name: _identity(data) for name, data in inputs.items()}


def _identity(data: Any) -> Any:
    """Where the data is, or a checksum if it is in memory."""
    if data is None or isinstance(data, str | Path):
        return None if data is None else where(data)
    if isinstance(data, Result | Records):
        records = data.records if isinstance(data, Result) else data
        return f"records {records.checksum[:16]}"
    if isinstance(data, list | tuple) and any(isinstance(one, str | Path | Result | Records) for one in data):
        return [_identity(one) for one in data]
    values: Any = getattr(data, "tolist", lambda: data)()
    return f"numbers {hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"


def _name(source: str) -> str:
    return source.partition(":")[2]


def _provider(source: str) -> Any:
    if not is_named(source):
        raise InputError(f"{source}: unknown data; known prefixes: {', '.join(PROVIDERS)}")
    return import_module(PROVIDERS[source.partition(":")[0]])
