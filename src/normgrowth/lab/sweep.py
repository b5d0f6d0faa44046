"""`sweep`: measure norm growth over two settings of a training run, by default learning rate and weight decay (§F).

Every cell is a run of `train` without an output folder (`lab.cells.cell`). Its outcome is stored as soon as it is
finished (`lab.cells.cell_store`). Divergence and a timeout are outcomes, too.

    records, level "cell"     the outcome of each cell (`Outcome`), and the two settings; columns `cell` and `seed`
    records, level "column"   for each value of the first setting, where growth ends in the second (`lab.cells.edges`)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from math import inf, nan
from pathlib import Path

import numpy as np
import torch

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.engine import Engine, Progress, TaskFailed, given_or_processes, map_with_failures
from normgrowth.errors import InputError
from normgrowth.lab.build import total_steps
from normgrowth.lab.cells.axis import LEARNING_RATE, WEIGHT_DECAY, Axis
from normgrowth.lab.cells.cell import Outcome, train_alone
from normgrowth.lab.cells.cell_store import CellStore
from normgrowth.lab.cells.edge_search import Cell, wanted
from normgrowth.lab.cells.edges import edges
from normgrowth.lab.cells.grid import Corpora, Grid
from normgrowth.lab.cells.stacked_cells import in_common, pays, stackable, train_together
from normgrowth.lab.data.corpus import Corpus, describe
from normgrowth.lab.settings import DEFAULTS, TrainSettings
from normgrowth.lab.sweep_result import Sweep
from normgrowth.records import Block, Records
from normgrowth.results import Provenance
from normgrowth.workspace import Workspace

GRACE = 60.0  # seconds after its limit until a cell that does not end is abandoned


def sweep(
    settings: TrainSettings,
    out: str | Path,
    *,
    x: Axis = LEARNING_RATE,
    y: Axis = WEIGHT_DECAY,
    refine: bool = False,
    limit: float | None = None,
    data: str | Path | None = None,
    corpus: Corpus | None = None,
    engine: Engine | None = None,
    together: int | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Sweep:
    """Train a model for each cell of a grid; with `refine`, only for the cells that locate the edge of growth.

    x, y: the settings that vary over columns and rows.
    limit: time limit per cell in seconds.
    data: folder that contains `penn` and `wikitext-2`. corpus: use this corpus instead of the one in the settings.
    engine: where cells are trained [default: one process per core].
    together: number of cells in one stack [default: chosen for speed].
    overwrite: replace the records of a sweep with other settings; its cells stay.
    """
    if x.setting == y.setting:
        raise InputError(f"x and y must be different settings, got {x.setting} twice")
    if limit is not None and not 0 < limit < inf:
        raise InputError(f"limit must be a finite number of seconds > 0, got {limit:g}")
    if refine and not y.numbers:
        raise InputError(f"--refine needs numeric values for y; {y.setting} has others")
    grid = Grid(settings, x, y, data=data, corpus=corpus)
    varied = {"network" if axis.setting == "kind" else axis.setting for axis in (x, y)}
    fixed = {name: value for name, value in settings.request().items() if name not in varied}
    request = {"x": x.setting, "y": y.setting, **fixed}
    with (
        Workspace.open(out, Sweep.kind, request, overwrite=overwrite, defaults=DEFAULTS) as workspace,
        given_or_processes(engine) as on,
    ):
        run = _Run(grid, CellStore(workspace, grid.corpora), on, limit, together, progress)
        run.refine() if refine else run.fill()
        result = _result(Path(out).resolve().name, grid, run, refine, limit)
        workspace.save(result)
    return result


class _Run:
    def __init__(
        self,
        grid: Grid,
        store: CellStore,
        engine: Engine,
        limit: float | None,
        together: int | None,
        progress: Progress | None,
    ) -> None:
        self.grid, self.store, self.engine, self.limit = grid, store, engine, limit
        self.progress, self.together = progress, together
        self.outcomes: dict[Cell, Outcome] = {}
        self.lost: dict[Cell, str] = {}
        self.asked = self.largest = 0  # number of requested cells; size of the largest stack
        self.work = partial(train_cells, grid.corpora, limit)

    def fill(self) -> None:
        self._train(list(self.grid.cells))

    def refine(self) -> None:
        while cells := wanted(self.grows(), *self.grid.shape, without=self.lost):
            self._train(cells)

    def grows(self) -> dict[Cell, bool]:
        """Return whether the norm grew, for each cell with an outcome. Divergence counts as growth."""
        return {cell: outcome.diverged or outcome.growth > 0 for cell, outcome in self.outcomes.items()}

    def _train(self, cells: list[Cell]) -> None:
        for cell in cells:
            if (found := self.store.load(self.grid.cells[cell], self.limit)) is not None:
                self.outcomes[cell] = found
        missing = [cell for cell in cells if cell not in self.outcomes]
        groups = self._groups(missing)
        self.asked += len(cells)
        self._tell("")
        tasks = [tuple(self.grid.cells[cell] for cell in group) for group in groups]
        most = max(map(len, groups), default=0)
        self.largest = max(self.largest, most)
        patience = None if self.limit is None else most * self.limit + GRACE
        for done, results in map_with_failures(self.work, tasks, on=self.engine, limit=patience):
            group = groups[done]
            if isinstance(results, TaskFailed):
                self.lost |= dict.fromkeys(group, results.why)
            else:
                for cell, outcome in zip(group, results, strict=True):
                    self.store.save(self.grid.cells[cell], outcome, self.limit, len(group))
                    self.outcomes[cell] = outcome
            self._tell(self.grid.name(group[-1]))

    def _groups(self, cells: list[Cell]) -> list[list[Cell]]:
        """Group cells into stacks of the same shape. Stacks are small enough to be fast and to occupy every worker."""
        alike: dict[tuple[TrainSettings, bool], list[Cell]] = {}
        for cell in cells:
            own = self.grid.cells[cell]
            alike.setdefault((in_common(own), stackable(own)), []).append(cell)
        groups = []
        for (common, stacks), members in alike.items():
            most = (self.together or pays(common, self.grid.corpora.of(common))) if stacks else 1
            size = max(1, min(most, -(-len(members) // self.engine.workers)))
            groups += [members[i : i + size] for i in range(0, len(members), size)]
        return groups

    def _tell(self, name: str) -> None:
        if self.progress:
            self.progress(len(self.outcomes) + len(self.lost), self.asked, name)


def train_cells(corpora: Corpora, limit: float | None, cells: tuple[TrainSettings, ...]) -> list[Outcome]:
    """Train cells in one process with one thread, so that outcomes do not depend on the number of cores."""
    corpus = corpora.of(cells[0])
    with one_thread():
        if len(cells) == 1:
            return [train_alone(cells[0], corpus, limit=limit)]
        return train_together(cells, corpus, limit=limit)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _result(name: str, grid: Grid, run: _Run, refine: bool, limit: float | None) -> Sweep:
    cells = sorted(run.outcomes)
    corpus = grid.corpora.of(grid.cells[0, 0])
    step = total_steps(grid.settings, corpus)
    blocks = [_cell_block(grid, cell, run.outcomes[cell], step) for cell in cells]
    if grid.y.numbers:
        found = edges(grid.settings, grid.x, grid.y, run.outcomes, run.grows(), run.lost)
        columns = [grid.x.name(i) for i in range(len(found))]
        blocks.append(_block("column", columns, step, _transposed(found)))
    return Sweep(
        records=Records.from_blocks(name, blocks),
        settings=grid.settings,
        x=grid.x,
        y=grid.y,
        corpus=describe(corpus, grid.settings.dev_sentences),
        cells=len(cells),
        of=len(grid.cells),
        lost=tuple(sorted(run.lost)),
        refine=refine,
        limit=limit,
        together=run.largest,
        selection=Selection(grid.settings.include),
        notes=tuple(grid.corpora.notes),
        problems=tuple(f"{grid.name(cell)}: {why}" for cell, why in sorted(run.lost.items())),
        provenance=Provenance.now(),
    )


def _cell_block(grid: Grid, cell: Cell, found: Outcome, step: int) -> Block:
    """Return the rows of one cell; the columns `cell` and `seed` identify it."""
    outcome = asdict(found)
    if "steps" in (grid.x.setting, grid.y.setting):
        outcome["steps_done"] = outcome["steps"]  # `steps` is replaced by the setting below
    for axis, i in ((grid.x, cell[0]), (grid.y, cell[1])):
        outcome[axis.setting] = axis.values[i] if axis.numbers else i
    outcome["factor"] = found.norm_end / found.norm_start if found.norm_start else nan
    values = {name: [nan if value is None else float(value)] for name, value in outcome.items()}
    columns = {"cell": list(grid.cells).index(cell), "seed": grid.cells[cell].seed}
    return replace(_block("cell", [grid.name(cell)], step, values), constants=columns)


def _block(level: str, names: Sequence[str], step: int, values: Mapping[str, Sequence[float]]) -> Block:
    nothing = [None] * len(names)
    arrays = {quantity: np.array([column], np.float64) for quantity, column in values.items()}
    return Block(level, names, nothing, nothing, [step], arrays)


def _transposed(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {quantity: [row[quantity] for row in rows] for quantity in rows[0]}
