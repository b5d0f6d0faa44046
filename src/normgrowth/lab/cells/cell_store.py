"""The cells of a sweep in its folder: one file per cell, named by a hash of everything its outcome depends on.

So an interrupted sweep resumes, and a finer grid reuses the cells of a coarser one.
"""

from dataclasses import asdict, dataclass

from normgrowth.errors import SchemaError
from normgrowth.lab.cells.cell import Outcome
from normgrowth.lab.cells.grid import Corpora
from normgrowth.lab.settings import TrainSettings
from normgrowth.serialization.checksums import OBJECT, JsonObject, digest
from normgrowth.serialization.json_types import converted
from normgrowth.workspace import Cache, Workspace

CELL_VERSION = 2  # increase it when the same settings give another outcome


@dataclass(frozen=True)
class StoredCell:
    """The file of a cell. limit: the time limit; together: the number of cells in its stack."""

    settings: JsonObject
    outcome: Outcome
    limit: float | None
    together: int


class CellStore:
    def __init__(self, workspace: Workspace, corpora: Corpora) -> None:
        self.cells: Cache[JsonObject] = workspace.cache("cells", OBJECT)
        self.corpora = corpora

    def _name(self, settings: TrainSettings) -> str:
        return digest([CELL_VERSION, asdict(settings), self.corpora.fingerprint(settings)])[:32]

    def load(self, settings: TrainSettings, limit: float | None) -> tuple[Outcome, int] | None:
        """Return the stored outcome of a cell and the size of its stack, or None.

        A timed-out outcome is valid for the same or a shorter limit.
        """
        name = self._name(settings)
        try:
            stored = converted(self.cells.get(name), StoredCell, name)
        except SchemaError:
            return None  # missing or damaged: train again
        longer = limit is None or limit > (stored.limit or 0)
        return None if stored.outcome.timed_out and longer else (stored.outcome, stored.together)

    def save(self, settings: TrainSettings, outcome: Outcome, limit: float | None, stacked: int) -> None:
        self.cells.put(self._name(settings), asdict(StoredCell(asdict(settings), outcome, limit, stacked)))
