"""Measurements that verbs take as input: a result, its records, its folder, or data by name ("published:t5").

The numbers of the paper lie in `normgrowth.paper`, above the verbs. So that verbs need not know it, `PROVIDERS` says
where the data of each prefix are found; they are loaded when they are asked for.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from normgrowth.checkpoints.selection import parameters_text
from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.results import KINDS, Result, result_of
from normgrowth.schedules import OptimizerGroup, Schedule, recorded
from normgrowth.stored_result import StoredResult

PROVIDERS = {"published": "normgrowth.paper.published.by_name"}


@dataclass(frozen=True)
class Measurement:
    """Records, their source, which parameters their norms count; schedule and optimizer where these are known."""

    records: Records
    source: str
    parameters: str
    schedule: Schedule | str | None = None
    optimizer_groups: tuple[OptimizerGroup, ...] = ()


def read_measurement(data: Result | Records | Path | str) -> Measurement:
    """What any of the forms holds that a verb takes a measurement in."""
    if isinstance(data, Result):
        return _of_result(data)
    if isinstance(data, Records):
        return _of_records(data)
    if is_named(data):
        result, schedule = _provider(str(data)).trace(_name(str(data)))
        return replace(_of_result(result), schedule=schedule)
    stored = StoredResult.read(data)
    if stored.kind in KINDS:
        return _of_result(result_of(stored, data), str(data))
    return _of_records(stored.records, str(data))


def _of_result(result: Result, place: str = "") -> Measurement:
    selection = getattr(result, "selection", None)
    counted = getattr(result, "counted", None)
    parameters = parameters_text(selection, counted) if selection else ""
    source = getattr(result, "source", "") or _of_records(result.records, place).source
    schedule = getattr(result, "schedule", None) or _recorded_schedule(result.records)
    groups = getattr(result, "optimizer_groups", ())
    return Measurement(result.records, source, parameters, schedule, groups)


def _recorded_schedule(records: Records) -> Schedule | None:
    """What a tracker recorded, if all parameters had the same rates: step n is the update after n − 1 others."""
    rows = records.where(level="model", quantity="learning_rate").to_rows()
    rates = {row["step"] - 1: row["value"] for row in rows if row["step"] > 0}
    return recorded(rates) if rates else None


def _of_records(records: Records, place: str = "") -> Measurement:
    return Measurement(records, place or ", ".join(map(str, records.distinct("run"))), "")


def is_named(source: object) -> bool:
    """Whether this names data: "published:t5" is no path."""
    return isinstance(source, str) and ":" in source and source.partition(":")[0] in PROVIDERS


def is_named_trace(source: object) -> bool:
    """Whether this names data that have the levels and quantities of a trace."""
    return is_named(source) and _provider(str(source)).is_trace(_name(str(source)))


def named_result(source: str) -> Result:
    """The result of a name: "published:t5" is a trace."""
    return _provider(source).load(_name(source))


def named_series(source: str, quantity: str = "norm") -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Where the numbers come from, and steps and values of each series."""
    return _provider(source).series(_name(source), quantity)


def _name(source: str) -> str:
    return source.partition(":")[2]


def _provider(source: str) -> Any:
    if not is_named(source):
        raise InputError(f"{source}: no such data; known prefixes: {', '.join(PROVIDERS)}")
    return import_module(PROVIDERS[source.partition(":")[0]])
