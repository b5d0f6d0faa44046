"""A sweep: norm growth over two settings of a training run, by default learning rate and weight decay (§F).

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

from normgrowth.checkpoints.parameters.selection import CountedParameters, Selection
from normgrowth.engine import Engine, Progress, TaskFailed, map_with_failures
from normgrowth.errors import InputError
from normgrowth.lab.build import new_model, total_steps
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.cells.cell import Outcome, train_alone
from normgrowth.lab.cells.cell_store import CellStore
from normgrowth.lab.cells.edge_search import Cell, wanted
from normgrowth.lab.cells.edges import edges
from normgrowth.lab.cells.grid import Corpora, Grid
from normgrowth.lab.cells.stacked_cells import in_common, pays, stackable, train_together
from normgrowth.lab.data.corpus import describe
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.sweep_result import Sweep
from normgrowth.records import Block, Records
from normgrowth.results import Provenance
from normgrowth.serialization.checksums import JsonObject
from normgrowth.tracking.tracked_parameters import watch

GRACE = 60.0  # seconds after its limit until a cell that does not end is abandoned


def checked_request(
    settings: TrainSettings, x: Axis, y: Axis, refine: bool, time_limit: float | None
) -> JsonObject:
    """Return what the folder of a sweep depends on. Raises InputError if the options do not fit together."""
    if x.setting == y.setting:
        raise InputError(f"x and y must be different settings, got {x.setting} twice")
    if time_limit is not None and not 0 < time_limit < inf:
        raise InputError(f"time_limit must be a finite number of seconds > 0, got {time_limit:g}")
    if refine and not y.numbers:
        raise InputError(f"--refine needs numeric values for y; {y.setting} has others")
    varied = {"network" if axis.setting == "kind" else axis.setting for axis in (x, y)}
    fixed = {name: value for name, value in settings.request().items() if name not in varied}
    return {"x": x.setting, "y": y.setting, **fixed}


class SweepRun:
    """The cells of a sweep that are trained and stored, and those that were lost."""

    def __init__(
        self,
        grid: Grid,
        store: CellStore,
        engine: Engine,
        time_limit: float | None,
        stack_size: int | None,
        progress: Progress | None,
    ) -> None:
        self.grid, self.store, self.engine, self.time_limit = grid, store, engine, time_limit
        self.progress, self.stack_size = progress, stack_size
        self.outcomes: dict[Cell, Outcome] = {}
        self.lost: dict[Cell, str] = {}
        self.asked = self.largest = 0  # number of requested cells; size of the largest stack
        self.work = partial(train_cells, grid.corpora, time_limit)

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
            if (found := self.store.load(self.grid.cells[cell], self.time_limit)) is not None:
                self.outcomes[cell], stacked = found
                self.largest = max(self.largest, stacked)
        missing = [cell for cell in cells if cell not in self.outcomes]
        groups = self._groups(missing)
        self.asked += len(cells)
        self._tell("")
        tasks = [tuple(self.grid.cells[cell] for cell in group) for group in groups]
        most = max(map(len, groups), default=0)
        self.largest = max(self.largest, most)
        patience = None if self.time_limit is None else most * self.time_limit + GRACE
        for done, results in map_with_failures(self.work, tasks, on=self.engine, limit=patience):
            group = groups[done]
            if isinstance(results, TaskFailed):
                self.lost |= dict.fromkeys(group, results.why)
            else:
                for cell, outcome in zip(group, results, strict=True):
                    self.store.save(self.grid.cells[cell], outcome, self.time_limit, len(group))
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
            most = (self.stack_size or pays(common, self.grid.corpora.of(common))) if stacks else 1
            size = max(1, min(most, -(-len(members) // self.engine.workers)))
            groups += [members[i : i + size] for i in range(0, len(members), size)]
        return groups

    def _tell(self, name: str) -> None:
        if self.progress:
            self.progress(len(self.outcomes) + len(self.lost), self.asked, name)

    def _counted(self) -> CountedParameters | None:
        """The number of counted parameters; None if cells have models of different sizes."""
        if len({outcome.numel for outcome in self.outcomes.values()}) != 1:
            return None
        own = self.grid.cells[min(self.outcomes)]
        return watch(new_model(own, self.grid.corpora.of(own)), Selection(own.include)).counted

    def result(self, out: str | Path, *, refine: bool) -> Sweep:
        grid, cells = self.grid, sorted(self.outcomes)
        corpus = grid.corpora.of(grid.cells[0, 0])
        step = total_steps(grid.settings, corpus)
        blocks = [_cell_block(grid, cell, self.outcomes[cell], step) for cell in cells]
        if grid.y.numbers:
            found = edges(grid.settings, grid.x, grid.y, self.outcomes, self.grows(), self.lost)
            columns = [grid.x.name(i) for i in range(len(found))]
            blocks.append(_block("column", columns, step, _transposed(found)))
        return Sweep(
            records=Records.from_blocks(Path(out).resolve().name, blocks),
            settings=grid.settings,
            x=grid.x,
            y=grid.y,
            corpus=describe(corpus, grid.settings.dev_sentences),
            cells=len(cells),
            of=len(grid.cells),
            lost=tuple(sorted(self.lost)),
            refine=refine,
            time_limit=self.time_limit,
            stack_size=self.largest,
            selection=Selection(grid.settings.include),
            counted=self._counted(),
            notes=tuple(grid.corpora.notes),
            problems=tuple(f"{grid.name(cell)}: {why}" for cell, why in sorted(self.lost.items())),
            provenance=Provenance.now(),
        )


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
