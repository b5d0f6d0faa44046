"""Whether misaligned dynamics, fitted to the beginning of a run, predict the rest of it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from normgrowth import schedules
from normgrowth.dynamics.growth_models import MODELS
from normgrowth.dynamics.kappa import fit_kappa
from normgrowth.dynamics.prediction import predict_norm
from normgrowth.errors import InputError
from normgrowth.fit import fit
from normgrowth.paper.claim import Claim, Ruling, fails, holds, in_part, number
from normgrowth.paper.claims.t5_growth import JUDGED, SCOPES, listed
from normgrowth.paper.evidence import Evidence, Floats
from normgrowth.paper.published.figure1 import SCHEDULE
from normgrowth.schedules import Schedule

CLOSE = 0.1  # largest relative error of a prediction that counts as one
LAWS = {"power law": "power", "eq. (2)": "sqrt2"}


@dataclass(frozen=True)
class Predicted:
    """The largest relative error over the last two thirds of a run of what its first third predicts."""

    errors: Mapping[str, float]  # by "misaligned", "aligned", "power law", "eq. (2)" and "constant"

    @property
    def explained(self) -> bool:
        """Whether misaligned dynamics come close, and no less close than a power law and than a constant norm."""
        return self.errors["misaligned"] <= min(CLOSE, self.errors["power law"], self.errors["constant"])


class Prediction(Claim):
    """From the first third of a run, κ in ‖δ‖ = κη‖θ‖ and a power law a·t^p + b are fitted; both predict the norm of
    the rest. A run is explained if misaligned dynamics miss by at most 10%, and by no more than the power law and a
    constant norm. Holds if T5 (total and encoder) and all models trained here are explained. In part if some of them
    are, or if eq. (2) with steps of constant size, √(b² + a²t), misses T5's norms by at most 10%.
    """

    id, where, needs = "prediction", "§5.3, §5.4, §5.5", ("language_models",)
    statement = "Misaligned dynamics explain the growth of the norm."
    published, source = "a candidate that is tested on T5", "the paper's text; T5 published (Figure 1)"
    scope = "T5's blocks, total and encoder, and models trained here; δ is the step between two checkpoints"
    would_change = "κ of single optimizer steps, or a model of their correlation: κ is fitted to checkpoints."
    misaligned: Mapping[str, float] = number("T5, error of misaligned dynamics: ")
    power_law: Mapping[str, float] = number("T5, error of a power law: ")
    constant_steps: Mapping[str, float] = number("T5, error of √(b² + a²t): ")
    aligned: Mapping[str, float] = number("T5, log10 of the error of aligned dynamics: ")
    models: float = number("models here")
    explained: float = number("of these explained")
    median: float = number("models here, median error of misaligned dynamics")
    median_power: float = number("models here, median error of a power law")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        rate, t5 = schedules.parse(SCHEDULE), {}
        for name, stack in SCOPES.items():
            sums = evidence.t5.sums(stack)
            norms = sums.norms()
            t5[name] = predicted(norms["step"], norms["norm"], sums.steps()["step_size"], rate).errors
        found = []
        for model in evidence.language_models.where(leaking=False):
            rows = model.trace.records.where(level="model")
            (steps, norms), (_, sizes) = (rows.series(quantity) for quantity in ("norm", "step_size"))
            found.append(predicted(steps, norms, sizes, model.rate, model.weight_decay))
        return cls(
            {name: one["misaligned"] for name, one in t5.items()},
            {name: one["power law"] for name, one in t5.items()},
            {name: one["eq. (2)"] for name, one in t5.items()},
            {name: float(np.log10(one["aligned"])) for name, one in t5.items()},
            len(found),
            sum(one.explained for one in found),
            *(
                float(np.median([one.errors[name] for one in found])) if found else 0.0
                for name in ("misaligned", "power law")
            ),
        )

    def judge(self) -> Ruling:
        told = (
            f"From its first third, misaligned dynamics miss T5's norm by up to {listed(self.misaligned, '.0%')}, a "
            f"power law by {listed(self.power_law, '.1%')}, eq. (2) with steps of constant size by "
            f"{listed(self.constant_steps, '.1%')}; aligned dynamics by a factor of 10^{self.aligned['total']:.0f}. "
            f"Misaligned dynamics explain {self.explained:.0f} of {self.models:.0f} models trained here (median error "
            f"{self.median:.1%}; of a power law {self.median_power:.1%})."
        )
        of_t5 = [self.misaligned[name] <= min(CLOSE, self.power_law[name]) for name in JUDGED]
        if all(of_t5) and self.explained == self.models:
            return holds(told)
        if any(of_t5) or self.explained or max(self.constant_steps[name] for name in JUDGED) <= CLOSE:
            return in_part(told)
        return fails(told)


def predicted(
    steps: NDArray[Any], norms: Floats, sizes: Floats, rate: Schedule, weight_decay: float = 0.0
) -> Predicted:
    """Fit to the checkpoints of the first third of the steps, at least 4, and predict the later ones."""
    known = max(int(np.searchsorted(steps, steps[-1] / 3, side="right")), 4)
    later, measured = steps[known:], norms[known:]
    found = {"constant": np.full(len(later), norms[known - 1])}
    for model in MODELS:
        kappa = fit_kappa(
            steps[:known], norms[:known], sizes[: known - 1], rate, model=model, weight_decay=weight_decay
        ).value
        start = {"norm0": float(norms[known - 1]), "start": int(steps[known - 1])}
        found[model] = predict_norm(rate, kappa, later, model=model, weight_decay=weight_decay, **start)
    for name, law in LAWS.items():
        found[name] = found["constant"]
        with suppress(InputError):  # norms that do not change determine no law
            found[name] = fit(steps[:known], norms[:known], laws=[law], bootstrap=0)[law].predict(later)
    return Predicted({name: float(np.abs(norm / measured - 1).max()) for name, norm in found.items()})


CLAIMS = (Prediction,)
