"""The folder of a trace: moments of each step as they are measured, records at the end.

    DIR/records.parquet, records.json     the result
    DIR/moments/step-000000500.parquet    sums of each tensor at one step, with a key of what they compare
    DIR/stripes/KEY.npz                   sums of some tensors at all steps, until those of all tensors are there
    DIR/stripes/steps.json                the keys of these steps
    DIR/.lock                             held while a trace writes here

Every file is written beside its place and then moved there, so a kill leaves whole files only.
"""

import hashlib
import json
import shutil
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrowth.errors import InputError
from normgrowth.records import Records, read_parquet, replacing, storable, write_parquet
from normgrowth.weights.moments import Moments, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KEY = b"normgrowth.key"
OWN = ("numel", "square", "largest", "nonfinite")
PAIR = ("square", "dot", "delta")
LOOK = "look:"


def digest(content: object) -> str:
    """A key that names what can be written as JSON."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _begun(path: Path) -> list[str] | None:
    """The keys that a trace began its stripes for; None if none did, or they cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, list) and all(isinstance(key, str) for key in found) else None


class Store:
    """Where moments are kept between runs; without a folder, nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @property
    def scratch(self) -> Path | None:
        return self.folder / ".scratch" if self.folder else None

    @staticmethod
    @contextmanager
    def open(out: str | Path | None) -> "Iterator[Store]":
        """Lock the folder, so that two traces into it cannot mix; errors of the disk become one line."""
        if out is None:
            yield Store(None)
            return
        from filelock import FileLock, Timeout

        folder = Path(out)
        store = Store(folder)
        try:
            (folder / "moments").mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise InputError(
                f"{folder}: another trace is writing here; wait for it or choose another folder"
            ) from None
        except OSError as error:
            raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from error
        try:
            store._sweep()
            yield store
        except OSError as error:
            # Reading errors are InputErrors by now; what is left comes from writing here.
            raise InputError(
                f"{error.filename or folder}: {error.strerror or error}; what was measured before is kept in {folder}"
            ) from error
        finally:
            shutil.rmtree(folder / ".scratch", ignore_errors=True)
            lock.release()

    def _sweep(self) -> None:
        """Remove what a killed process left: half-written files, fetched checkpoints."""
        assert self.folder is not None
        assert self.scratch is not None
        for part in (*self.folder.glob(".*.part"), *self.folder.glob("*/.*.part")):
            part.unlink()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    def _path(self, step: int) -> Path:
        assert self.folder
        return self.folder / "moments" / f"step-{step:09d}.parquet"

    def save(
        self, step: int, key: str, names: list[str], moments: Moments, look: "Mapping[str, Sequence[Any]]"
    ) -> None:
        if self.folder is None:
            return
        import pyarrow as pa

        columns: dict[str, Any] = {
            "name": list(map(storable, names)),
            **{field: getattr(moments, field) for field in OWN},
        }
        for label, pair in moments.against.items():
            columns |= {f"{label}:{field}": getattr(pair, field) for field in PAIR}
        columns |= {f"{LOOK}{field}": pa.array(values) for field, values in look.items()}
        table = pa.table(columns).replace_schema_metadata({KEY: key.encode()})
        write_parquet(table, self._path(step), use_dictionary=False)

    def load(self, step: int, key: str) -> tuple[Moments, dict[str, list[Any]]] | None:
        """The moments of a step if they are here and compare what the key says, and what lint saw there."""
        if self.folder is None or not self._path(step).is_file():
            return None
        import pyarrow as pa

        try:
            table = read_parquet(self._path(step))
        except (pa.ArrowException, OSError):
            return None  # damaged: it is measured again
        if (table.schema.metadata or {}).get(KEY) != key.encode():
            return None
        look = {
            name.removeprefix(LOOK): table[name].to_pylist()
            for name in table.column_names
            if name.startswith(LOOK)
        }
        own = [name for name in table.column_names if name != "name" and not name.startswith(LOOK)]
        values = {name: table[name].to_numpy() for name in own}
        labels = dict.fromkeys(name.split(":")[0] for name in values if ":" in name)
        against = {label: Pair(*(values[f"{label}:{field}"] for field in PAIR)) for label in labels}
        moments = Moments(
            values["numel"].astype(np.int64),
            values["square"],
            values["largest"],
            values["nonfinite"].astype(np.int64),
            against,
        )
        return moments, look

    def begin_stripes(self, missing: "Sequence[str]", known: "Sequence[str]") -> list[str]:
        """The keys of the steps to cut stripes for: those that are missing, of all that are known.

        If a trace was killed when all stripes were there and some steps were stored already, those of that trace.
        """
        if self.folder is None:
            return list(missing)
        path = self.folder / "stripes" / "steps.json"
        begun = _begun(path)
        if begun and set(missing) <= set(begun) <= set(known):
            return begun
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as part:
            part.write_text(json.dumps(list(missing)))
        return list(missing)

    def save_stripe(self, key: str, result: "Mapping[str, np.ndarray]") -> None:
        if self.folder is None:
            return
        with replacing(self.folder / "stripes" / f"{key}.npz") as part, part.open("wb") as file:
            np.savez(file, allow_pickle=False, **result)

    def load_stripe(self, key: str) -> dict[str, np.ndarray] | None:
        path = self.folder / "stripes" / f"{key}.npz" if self.folder else None
        if path is None or not path.is_file():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return dict(stored)
        except (OSError, ValueError, zipfile.BadZipFile, EOFError):
            return None  # damaged: it is measured again

    def drop_stripes(self) -> None:
        """Their sums are in the moments of each step now."""
        if self.folder is not None:
            shutil.rmtree(self.folder / "stripes", ignore_errors=True)

    def write(self, records: Records) -> None:
        if self.folder is not None:
            records.write(self.folder)
