"""Trace: measure a series of checkpoints."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from normgrowth.engine import Engine, Progress
    from normgrowth.trace.result import Trace


def trace(
    source: "str | Path | Sequence[str | Path]",
    out: "str | Path | None" = None,
    *,
    overwrite: bool = False,
    include: str = "blocks",
    select: str | None = None,
    exclude: str | None = None,
    lags: "Sequence[int]" = (),
    first: bool = True,
    scalars: bool = False,
    tokens_per_step: float | None = None,
    run: str | None = None,
    lint: bool = True,
    endpoint: str | None = None,
    workers: int | None = None,
    engine: "Engine | None" = None,
    memory: int = 2**30,
    progress: "Progress | None" = None,
) -> "Trace":
    """Return norms, steps, directions and the growth budget of every tensor, layer, role and the model.

    out: output folder; repeat the call with the same arguments to resume or to add new checkpoints. Measured steps
    stay in the folder after their checkpoints are deleted. A different series or request raises `FolderMismatch`.
    overwrite: replace the contents of the folder.
    lags: also compute cosines to the checkpoints this many places back.
    first: also compare with the first checkpoint (for a hub series, this keeps one more checkpoint on disk).
    scalars: also compare every single weight with the first checkpoint: the share that grew, the share that changed
    sign, and quantiles of log(abs(θ/θ₀)), per tensor, layer, role and model. Remote files are then read by step.
    tokens_per_step, run: default to the values stored in the folder.
    lint: also run the integrity checks of `normgrowth.lint`; `findings` holds all results, faults are also warnings.
    engine: where tasks run [default: `workers` threads of this process].
    memory: limit in bytes, over all workers, for checkpoint values that are read over a network.

    >>> trace = ng.trace("checkpoints")
    >>> trace.steps[:3]
    (0, 5, 10)
    >>> trace.matrix("norm", by="layer").values.shape  # steps × layers
    (12, 2)
    >>> figure = trace.plot()
    """
    from pathlib import Path

    from normgrowth.checkpoints.parameters.selection import Selection
    from normgrowth.lint.judge import judge_samples
    from normgrowth.trace.request import Tracing
    from normgrowth.trace.stream import Reader
    from normgrowth.workspace import Workspace

    tracing = Tracing(
        source if isinstance(source, str | Path) else list(source),
        Selection(include, select, exclude),
        tuple(lags),
        first,
        tokens_per_step,
        run,
        judge_samples if lint else None,
        endpoint,
        scalars,
    )
    with Workspace.open(out, "trace", overwrite=overwrite) as workspace:
        result, _ = tracing.into(workspace, Reader(workers, engine, memory), progress)
        workspace.save(result)
    result.warn()
    return result
