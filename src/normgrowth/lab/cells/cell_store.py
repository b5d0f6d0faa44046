"""The cells of a sweep in its folder: one file per cell, named by a hash of everything its outcome depends on.

So an interrupted sweep resumes, and a finer grid reuses the cells of a coarser one.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from math import isfinite, nan

from normgrowth.errors import SchemaError
from normgrowth.lab.cells.cell import Outcome
from normgrowth.lab.cells.grid import Corpora
from normgrowth.lab.settings import TrainSettings
from normgrowth.serialization.checksums import OBJECT, JsonObject
from normgrowth.serialization.json_types import converted
from normgrowth.workspace import Cache, Workspace

CELL_VERSION = 1  # increase it when the same settings give another outcome


@dataclass(frozen=True)
class StoredCell:
    """The file of a cell: its settings and its outcome. NaN is stored as null, because JSON has no NaN."""

    settings: JsonObject
    outcome: dict[str, int | float | bool | None]
    limit: float | None = None
    together: int = 1  # number of cells in its stack


class CellStore:
    def __init__(self, workspace: Workspace, corpora: Corpora) -> None:
        self.cells: Cache[JsonObject] = workspace.cache("cells", OBJECT)
        self.corpora = corpora

    def _name(self, settings: TrainSettings) -> str:
        content = [CELL_VERSION, asdict(settings), self.corpora.fingerprint(settings)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def load(self, settings: TrainSettings, limit: float | None) -> Outcome | None:
        """Return the stored outcome of a cell, or None. A timed-out one is valid for the same or a shorter limit."""
        name = self._name(settings)
        if (content := self.cells.get(name)) is None:
            return None
        try:
            stored = converted(content, StoredCell, name)
            values = {
                name: nan if value is None and name != "diverged_at" else value
                for name, value in stored.outcome.items()
            }
            outcome = converted(values, Outcome, name)
        except SchemaError:
            return None  # damaged: train again
        if stored.settings != json.loads(json.dumps(asdict(settings))):
            return None
        if outcome.timed_out and (limit is None or limit > (stored.limit or 0)):
            return None
        return outcome

    def save(self, settings: TrainSettings, outcome: Outcome, limit: float | None, stacked: int) -> None:
        plain = {
            name: value if not isinstance(value, float) or isfinite(value) else None
            for name, value in asdict(outcome).items()
        }
        self.cells.put(self._name(settings), asdict(StoredCell(asdict(settings), plain, limit, stacked)))
