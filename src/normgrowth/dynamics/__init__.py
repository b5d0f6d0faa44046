"""Dynamics: explain why the norm grows (prediction from the schedule, alignment of steps, equilibrium)."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from pathlib import Path

    from normgrowth.dynamics.equilibrium import Decay, Optimizer
    from normgrowth.dynamics.result import Dynamics
    from normgrowth.records import Records
    from normgrowth.results import Result
    from normgrowth.schedules import Schedule


def dynamics(
    trace: "Result | Records | Path | str",
    schedule: "Schedule | str | None" = None,
    out: "Path | str | None" = None,
    *,
    overwrite: bool = False,
    level: str = "model",
    name: str | None = None,
    kappa: float | None = None,
    weight_decay: float | None = None,
    decay: "Decay | None" = None,
    optimizer: "Optimizer" = "adamw",
    betas: tuple[float, float] = (0.9, 0.999),
    momentum: float = 0.0,
    gradient_norm: float | None = None,
    invariant: bool = False,
) -> "Dynamics":
    """Explain the growth of a norm: its budget, its direction, and which model of the dynamics predicts it.

    trace: a trace, its records, its folder, or "published:t5", "published:t5-encoder" or
    "published:t5-decoder", which have a schedule of their own.
    schedule: the learning rates, as a `Schedule` or its text ("constant:lr=3e-4"). The default is the schedule that a
    tracker or the Trainer of transformers recorded; a tracker also records weight decay and betas. Without a schedule,
    only the budget, the alignment, the direction and the uniformity are computed, and no model is fitted.
    out: output folder. overwrite: replace another result in this folder.
    level, name: what to explain: the "model", or one "part", "layer", "role" or "tensor" by its name.
    kappa: κ of single optimizer steps, if training logged it. The predictions then use it, which settles questions
    that sparse checkpoints leave open.
    weight_decay: λ. 0 means no weight decay; None means unknown.
    decay: "decoupled" (θ -= ηλθ; default for adamw), "coupled" (λθ in the gradient; default for sgd) or "eq3"
    (θ -= λθ, the paper's eq. (3)).
    optimizer, betas, momentum, gradient_norm, invariant: for the equilibrium under weight decay, see
    `normgrowth.equilibrium`.

    >>> found = ng.dynamics("published:t5-encoder")
    >>> round(found.budget.by_steps, 2)
    0.66
    >>> trace = ng.trace("checkpoints")
    >>> found = ng.dynamics(trace, "constant:lr=3e-3", weight_decay=0.01)
    >>> kappa, verdict = found.misaligned.kappa, found.verdict
    """
    from dataclasses import asdict

    from normgrowth.dynamics.explain import explain
    from normgrowth.dynamics.weight_decay import OptimizerSettings
    from normgrowth.measurements import identities
    from normgrowth.schedules import Schedule
    from normgrowth.workspace import ResultFolder

    settings = OptimizerSettings(optimizer, betas, momentum, gradient_norm, decay, invariant)
    options = {"level": level, "name": name, "kappa": kappa, "weight_decay": weight_decay}
    rates = asdict(schedule) if isinstance(schedule, Schedule) else schedule
    request = {**identities(out, trace=trace), "schedule": rates, **options, **asdict(settings)}
    folder = ResultFolder(out, "dynamics", request, overwrite)
    found = explain(trace, schedule, **options, settings=settings)
    folder.write(found)
    return found
