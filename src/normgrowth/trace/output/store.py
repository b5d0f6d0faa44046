"""The output folder of a trace: it stores the sums of each step when they are measured, and the records at the end.

    DIR/request.json                      the request and the source (`normgrowth.workspace`)
    DIR/records.parquet, records.json     the result
    DIR/moments/step-000000500.parquet    sums of each tensor at one step, alone and against its reference steps
    DIR/stripes/KEY.npz                   sums of some tensors at all steps; removed when all tensors are complete
    DIR/stripes/steps.json                the keys of these steps

A damaged file is measured again (`normgrowth.workspace.Cache`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.moments.moments import Floats, Moments, Pair
from normgrowth.records import storable
from normgrowth.serialization.checksums import ARRAYS, COMPRESSED_ARRAYS, OBJECT, TABLE
from normgrowth.workspace import Cache

if TYPE_CHECKING:
    import pyarrow as pa

# Increase it when the same checkpoints would give other sums; stored sums are then discarded.
SUMS_VERSION = 2
KEY = b"normgrowth.key"
ABOUT = b"normgrowth.step"
OWN = ("numel", "square", "largest", "nonfinite")
PAIR = ("square", "dot", "delta")
UPDATES = "lora_update_square"
SAMPLE = "look:"  # prefix of columns; the word comes from the first version
SAMPLE_COLUMNS = ("start", "stored", "dtype", "changed", "pattern", "sketch")
_STEP = re.compile(r"step-(\d{9,})")


@dataclass(frozen=True)
class Stored:
    """The stored measurements of one step. Arrays have one entry per name."""

    step: int
    label: str  # of the checkpoint
    fingerprint: str
    names: tuple[str, ...]
    own: Moments
    pairs: Mapping[int, Pair]  # reference step -> sums
    sample: Mapping[str, Sequence[Any]]  # columns of `SampleLog`; empty if no sample was taken
    step_origin: str  # where the step number comes from
    updates: Floats | None = None  # squared norms of LoRA updates, in the rows of B; None if not measured

    def to_table(self) -> "pa.Table":
        import pyarrow as pa

        columns: dict[str, Any] = {
            "name": list(map(storable, self.names)),
            **{field: getattr(self.own, field) for field in OWN},
        }
        for step, pair in self.pairs.items():
            columns |= {f"{step}:{field}": getattr(pair, field) for field in PAIR}
        columns |= {f"{SAMPLE}{field}": pa.array(values) for field, values in self.sample.items()}
        if self.updates is not None:
            columns[UPDATES] = self.updates
        about = {"version": SUMS_VERSION, "label": self.label, "fingerprint": self.fingerprint}
        about["step_origin"] = self.step_origin
        return pa.table(columns).replace_schema_metadata({ABOUT: json.dumps(about).encode()})


class Store:
    """Stores sums between runs; without a folder, nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._steps = Cache(folder and folder / "moments", TABLE)
        self._stripes = Cache(folder and folder / "stripes", ARRAYS)
        self._begun = Cache(folder and folder / "stripes", OBJECT)
        self.scalars = Cache(folder and folder / "scalars", COMPRESSED_ARRAYS)  # by `ScalarLog`

    def save(self, stored: Stored) -> None:
        self._steps.put(step_name(stored.step), stored.to_table())

    def load(self) -> dict[int, Stored | None]:
        """Return all stored steps; None for a file that is damaged or from another version."""
        if self.folder is None:
            return {}
        steps = {int(match[1]): match[0] for name in self._steps.names() if (match := _STEP.fullmatch(name))}
        found = {step: _load(step, self._steps.get(name)) for step, name in steps.items()}
        names = next((stored.names for stored in found.values() if stored), ())
        return {step: stored if stored and stored.names == names else None for step, stored in found.items()}

    @property
    def has_stripes(self) -> bool:
        return bool(self._stripes.names())

    def begin_stripes(self, missing: "Sequence[str]", known: "Sequence[str]") -> list[str]:
        """Return the keys of the steps that the stripes cover, normally the missing ones.

        If an earlier trace was killed after some of its steps were stored, return the keys of that trace, so that its
        stripes can be reused. known: keys of all steps whose checkpoints exist.
        """
        begun = (self._begun.get("steps") or {}).get("keys")
        if isinstance(begun, list) and begun and set(missing) <= set(map(str, begun)) <= set(known):
            return begun
        self._begun.put("steps", {"keys": list(missing)})
        return list(missing)

    def save_stripe(self, key: str, result: "Mapping[str, np.ndarray]") -> None:
        self._stripes.put(key, result)

    def load_stripe(self, key: str) -> "Mapping[str, np.ndarray] | None":
        return self._stripes.get(key)

    def drop_stripes(self) -> None:
        """Remove the stored stripes."""
        self._begun.clear()
        self._stripes.clear()


def step_name(step: int) -> str:
    return f"step-{step:09d}"


def _load(step: int, table: "pa.Table | None") -> Stored | None:
    import pyarrow as pa

    if table is None:
        return None
    try:
        about = json.loads((table.schema.metadata or {})[ABOUT])
        if about["version"] != SUMS_VERSION:
            return None
        _check_columns(table)
        own = Moments(*(table[field].to_numpy() for field in OWN))
        paired = dict.fromkeys(name.split(":")[0] for name in table.column_names if name.endswith(":delta"))
        pairs = {
            int(other): Pair(*(table[f"{other}:{field}"].to_numpy() for field in PAIR)) for other in paired
        }
        sample = {
            name.removeprefix(SAMPLE): _column(table[name])
            for name in table.column_names
            if name.startswith(SAMPLE)
        }
        if sample and not set(SAMPLE_COLUMNS) <= sample.keys():
            return None
        names = tuple(table["name"].to_pylist())
        updates = table[UPDATES].to_numpy() if UPDATES in table.column_names else None
        texts = (str(about[name]) for name in ("label", "fingerprint", "step_origin"))
        label, fingerprint, step_origin = texts
        return Stored(step, label, fingerprint, names, own, pairs, sample, step_origin, updates)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError):
        return None


def _check_columns(table: "pa.Table") -> None:
    """Raise ValueError if a column has another type or nulls."""
    import pyarrow as pa

    for name in table.column_names:
        column = table[name]
        if name == "name":
            right = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        elif name in ("numel", "nonfinite"):
            right = pa.types.is_integer(column.type)
        elif name.startswith(SAMPLE):
            continue
        else:
            right = pa.types.is_floating(column.type)
        if not right or column.null_count:
            raise ValueError(f"column {name}: {column.type}, {column.null_count} nulls")


def _column(column: "pa.ChunkedArray") -> Sequence[Any]:
    """Return list columns as arrays, because Python numbers would take ten times the memory."""
    import pyarrow as pa

    if not pa.types.is_list(column.type):
        return column.to_pylist()
    lists = column.combine_chunks()
    ends = lists.offsets.to_numpy() - lists.offsets[0].as_py()
    return np.split(lists.flatten().to_numpy(), ends[1:-1])
