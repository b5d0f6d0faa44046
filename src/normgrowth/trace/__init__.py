"""Trace: measure a series of checkpoints."""

TYPE_CHECKING = False  # as in typing, without its import: `import normgrowth` stays light
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from normgrowth.engine import Engine
    from normgrowth.trace.result import Trace
    from normgrowth.trace.stream import Progress


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
    """Norms, steps, directions and the growth budget of every tensor, layer, role and the model.

    out: output folder; call it again with the same arguments to resume, or to add new checkpoints. Steps measured
    before stay when their checkpoints are gone. Another series or request is refused (`FolderMismatch`).
    overwrite: replace what the folder holds.
    lags: cosines to the checkpoint that many places back, beside the previous one.
    first: also compare with the first checkpoint (for a hub series that keeps one more on disk).
    scalars: also compare every single weight with the first checkpoint: the share that grew, the share that changed its
    sign, quantiles of log(abs(θ/θ₀)), by tensor, layer, role and model. Remote files are then read step by step.
    tokens_per_step, run: as the folder remembers them, if not given.
    lint: also run the integrity checks of `normgrowth.lint`; faults are warnings, `findings` has all that was found.
    engine: where to work, else threads of this process, as many as `workers`. memory: bytes of checkpoints that come
    over a network which they may hold together.
    """
    from pathlib import Path

    from normgrowth.checkpoints.selection import Selection
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
