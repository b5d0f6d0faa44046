"""Sweep: train over a grid of two settings, and find where growth of the norm ends."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from pathlib import Path

    from normgrowth.engine import Engine, Progress
    from normgrowth.lab.cells.axis import Axis
    from normgrowth.lab.data.corpus import Corpus
    from normgrowth.lab.settings import TrainSettings
    from normgrowth.lab.sweep_result import Sweep


def sweep(
    settings: "TrainSettings",
    out: "str | Path",
    *,
    x: "Axis | None" = None,
    y: "Axis | None" = None,
    refine: bool = False,
    time_limit: float | None = None,
    data: "str | Path | None" = None,
    corpus: "Corpus | None" = None,
    engine: "Engine | None" = None,
    stack_size: int | None = None,
    progress: "Progress | None" = None,
    overwrite: bool = False,
) -> "Sweep":
    """Train a model for each cell of a grid; with `refine`, only for the cells that locate the edge of growth.

    x, y: the settings that vary over columns and rows (default: 20 learning rates and 20 weight decays).
    time_limit: seconds of training per cell.
    data: folder that contains `penn` and `wikitext-2`. corpus: use this corpus instead of the one in the settings.
    engine: where cells are trained [default: one process per core].
    stack_size: number of cells in one stack [default: chosen for speed].
    overwrite: replace the records of a sweep with other settings; its cells stay.

    >>> rates, decays = ng.Axis("lr", (1e-3, 1e-2)), ng.Axis("weight_decay", (0.01, 1.0))
    >>> sweep = ng.sweep(ng.preset("tiny", "dyck1", steps=4), "sweeps/dyck", x=rates, y=decays, engine=Threads(1))
    >>> [edge.x for edge in sweep.edges]  # a column each; edge.value is the weight decay at which growth ends
    [0.001, 0.01]
    """
    from normgrowth.engine import given_or_processes
    from normgrowth.lab.cells.axis import LEARNING_RATE, WEIGHT_DECAY
    from normgrowth.lab.cells.cell_store import CellStore
    from normgrowth.lab.cells.grid import Grid
    from normgrowth.lab.sweep_run import SweepRun, checked_request
    from normgrowth.workspace import Workspace

    x, y = x or LEARNING_RATE, y or WEIGHT_DECAY
    request = checked_request(settings, x, y, refine, time_limit)
    grid = Grid(settings, x, y, data=data, corpus=corpus)
    with (
        Workspace.open(out, "sweep", request, overwrite=overwrite) as workspace,
        given_or_processes(engine) as on,
    ):
        run = SweepRun(grid, CellStore(workspace, grid.corpora), on, time_limit, stack_size, progress)
        run.refine() if refine else run.fill()
        result = run.result(out, refine=refine)
        workspace.save(result)
    return result
