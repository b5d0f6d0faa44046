"""The output folder of a trace: it stores the sums of each step when they are measured, and the records at the end.

    DIR/request.json                      the request and the source (`normgrowth.workspace`)
    DIR/records.parquet, records.json     the result
    DIR/moments/step-000000500.parquet    sums of each tensor at one step, alone and against its reference steps
    DIR/stripes/KEY.npz                   sums of some tensors at all steps; removed when all tensors are complete
    DIR/stripes/steps.json                the keys of these steps

Every file is written under a temporary name and then renamed, so a killed process leaves only complete files. Every
file has a checksum; damaged files are measured again.
"""

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.moments.moments import Floats, Moments, Pair
from normgrowth.records import storable
from normgrowth.serialization.checksums import seal, unseal
from normgrowth.stored_result import read_parquet, write_parquet
from normgrowth.workspace import read_json, replacing, write_json

if TYPE_CHECKING:
    import pyarrow as pa

SUMS_VERSION = (
    2  # increase it when the same checkpoints would give other sums; stored sums are then discarded
)
KEY = b"normgrowth.key"
ABOUT = b"normgrowth.step"
OLDER = ""  # fingerprint of stored files of the first version, which have a key instead
OWN = ("numel", "square", "largest", "nonfinite")
PAIR = ("square", "dot", "delta")
UPDATES = "lora_update_square"
SAMPLE = "look:"  # prefix of columns; the word comes from the first version
_STEP_FILE = re.compile(r"step-(\d{9,})\.parquet")


def digest(content: object) -> str:
    """Return the SHA-256 of the JSON form of `content`."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


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
    step_origin: str = "earlier trace"  # where the step number comes from; this default if the file lacks it
    updates: Floats | None = None  # squared norms of LoRA updates, in the rows of B; None if not measured


class Store:
    """Stores sums between runs; without a folder, nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def save(self, stored: Stored) -> None:
        if self.folder is None:
            return
        import pyarrow as pa

        columns: dict[str, Any] = {
            "name": list(map(storable, stored.names)),
            **{field: getattr(stored.own, field) for field in OWN},
        }
        for step, pair in stored.pairs.items():
            columns |= {f"{step}:{field}": getattr(pair, field) for field in PAIR}
        columns |= {f"{SAMPLE}{field}": pa.array(values) for field, values in stored.sample.items()}
        if stored.updates is not None:
            columns[UPDATES] = stored.updates
        about = {"version": SUMS_VERSION, "label": stored.label, "fingerprint": stored.fingerprint}
        about["step_origin"] = stored.step_origin
        table = pa.table(columns).replace_schema_metadata({ABOUT: json.dumps(about).encode()})
        path = self.folder / "moments" / f"step-{stored.step:09d}.parquet"
        path.parent.mkdir(exist_ok=True)
        write_parquet(table, path, use_dictionary=False)

    def load(self) -> dict[int, Stored | None]:
        """Return all stored steps; None for a file that is damaged or from another version."""
        if self.folder is None:
            return {}
        files = {path: _STEP_FILE.fullmatch(path.name) for path in (self.folder / "moments").glob("step-*")}
        older = _older_references(self.folder)
        found = {int(match[1]): _load(int(match[1]), path, older) for path, match in files.items() if match}
        names = next((stored.names for stored in found.values() if stored), ())
        return {step: stored if stored and stored.names == names else None for step, stored in found.items()}

    @property
    def has_stripes(self) -> bool:
        return self.folder is not None and any((self.folder / "stripes").glob("*.npz"))

    def begin_stripes(self, missing: "Sequence[str]", known: "Sequence[str]") -> list[str]:
        """Return the keys of the steps that the stripes cover, normally the missing ones.

        If an earlier trace was killed after some of its steps were stored, return the keys of that trace, so that its
        stripes can be reused. known: keys of all steps whose checkpoints exist.
        """
        if self.folder is None:
            return list(missing)
        path = self.folder / "stripes" / "steps.json"
        begun = _begun(path)
        if begun and set(missing) <= set(begun) <= set(known):
            return begun
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"keys": list(missing)})
        return list(missing)

    def save_stripe(self, key: str, result: "Mapping[str, np.ndarray]") -> None:
        if self.folder is None:
            return
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **result)
        with replacing(self.folder / "stripes" / f"{key}.npz") as part:
            part.write_bytes(seal(buffer.getvalue()))

    def load_stripe(self, key: str) -> dict[str, np.ndarray] | None:
        path = self.folder / "stripes" / f"{key}.npz" if self.folder else None
        if path is None or not path.is_file():
            return None
        try:
            with np.load(io.BytesIO(unseal(path.read_bytes())), allow_pickle=False) as stored:
                return dict(stored)
        except (OSError, ValueError):
            return None  # damaged: measure again

    def drop_stripes(self) -> None:
        """Remove the stored stripes."""
        if self.folder is not None:
            shutil.rmtree(self.folder / "stripes", ignore_errors=True)


def _load(step: int, path: Path, older: Callable[[int, str], int]) -> Stored | None:
    import pyarrow as pa

    try:
        table = read_parquet(path)
        said = table.schema.metadata or {}
        current = ABOUT in said
        if not current and KEY not in said:
            return None
        about = json.loads(said[ABOUT]) if current else {"label": f"step {step}", "fingerprint": OLDER}
        if current and about["version"] != SUMS_VERSION:
            return None
        own = Moments(*(table[field].to_numpy() for field in OWN))
        paired = dict.fromkeys(name.split(":")[0] for name in table.column_names if name.endswith(":delta"))
        pairs = {
            int(other) if current else older(step, other): Pair(
                *(table[f"{other}:{field}"].to_numpy() for field in PAIR)
            )
            for other in paired
        }
        sample = {
            name.removeprefix(SAMPLE): _column(table[name])
            for name in table.column_names
            if current and name.startswith(SAMPLE)
        }
        names = tuple(table["name"].to_pylist())
        origin = about.get("step_origin")
        origin = origin if isinstance(origin, str) else Stored.step_origin
        updates = table[UPDATES].to_numpy() if UPDATES in table.column_names else None
        return Stored(step, about["label"], about["fingerprint"], names, own, pairs, sample, origin, updates)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError):
        return None


def _older_references(folder: Path) -> Callable[[int, str], int]:
    """Return a function (step, label) -> reference step, for folders of the first version."""
    try:
        steps = list(read_json(folder / "records.json").get("steps", ()))
    except (OSError, ValueError, TypeError):
        steps = []

    def reference(step: int, label: str) -> int:
        back = 1 if label == "previous" else int(label.removeprefix("lag")) if label != "first" else None
        place = steps.index(step)
        if back is not None and back > place:
            raise LookupError(label)
        return steps[0 if back is None else place - back]

    return reference


def _column(column: "pa.ChunkedArray") -> Sequence[Any]:
    """Return list columns as arrays, because Python numbers would take ten times the memory."""
    import pyarrow as pa

    if not pa.types.is_list(column.type):
        return column.to_pylist()
    lists = column.combine_chunks()
    ends = lists.offsets.to_numpy() - lists.offsets[0].as_py()
    return np.split(lists.flatten().to_numpy(), ends[1:-1])


def _begun(path: Path) -> list[str] | None:
    """Return the keys of the steps that the stored stripes cover; None if the file is missing or unreadable."""
    try:
        found = read_json(path).get("keys")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, list) and all(isinstance(key, str) for key in found) else None
