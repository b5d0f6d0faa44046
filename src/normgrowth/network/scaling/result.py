"""`Scaling`: the convergence of a network to its saturated limit as its weights grow (section 5.2, Figure 4).

Quantities compare the network with c times all weights with its exact limit (`saturated`), of degree k:

    cosine_saturated   mean over tokens of cos(f(x; cθ), limit)
    cosine_flattened   the cosine with all tokens as one vector, as in the paper's Figure 4; model only
    scaling_error      ‖f(x; cθ)/cᵏ − limit‖ / ‖limit‖ over all tokens: approximate homogeneity, corrected
    error_power        p if the error falls like c^(-p) between the previous scale and this one
    scaled_norm        ‖cθ‖ over all parameters that grow; model only

In the records the column `scale` is c and the column `seed` the seed of random weights. Level "layer" is the output
of each block; "model" is the last state. Networks that differ only by their seed are one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.network.scaling.convergence import Rate
from normgrowth.records import Matrix, Records
from normgrowth.results import Result
from normgrowth.text import one_line, visible

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScaledNetwork:
    """One network whose weights were scaled.

    run       the run of its rows: the same for networks that differ only by their seed
    kind      position of its layer norms ("post_norm"); None for models without an `EncoderConfig`
    degree    k: the last state grows like cᵏ; None if only cosines are known
    norm      ‖θ‖ over all parameters that grow
    rounding  relative rounding error of the last state
    undecided number of values in the limit that a term of lower order might change
    overflow  the smallest c at which a norm overflows; None: no overflow
    """

    __repr__ = one_line

    run: str
    seed: int | None = None
    kind: str | None = None
    bias: bool | None = None
    degree: float | None = None
    rate: Rate | None = None
    norm: float | None = None
    rounding: float | None = None
    undecided: int = 0
    overflow: float | None = None
    config: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScalingCurves:
    """The curves of the final hidden state of one run. Each array in `values` has the shape (seeds, scales)."""

    networks: tuple[ScaledNetwork, ...]
    scales: Floats
    values: dict[str, Floats]

    @property
    def run(self) -> str:
        return self.networks[0].run

    @property
    def kind(self) -> str:
        return self.networks[0].kind or self.run

    @property
    def bias(self) -> bool | None:
        return self.networks[0].bias

    @property
    def overflow(self) -> float | None:
        """The smallest c at which a norm overflows, for any seed."""
        return min((one.overflow for one in self.networks if one.overflow is not None), default=None)

    def of(self, quantity: str) -> Floats:
        if quantity not in self.values:
            raise InputError(f"{self.run!r} does not have {quantity} at all of its scales")
        return self.values[quantity]

    def mean(self, quantity: str) -> Floats:
        """The mean over seeds at each scale."""
        return self.of(quantity).mean(0)

    def at(self, quantity: str, c: float) -> Floats:
        """The value of each seed at c, interpolated along log c; NaN outside the scales."""
        where = np.log(c), np.log(self.scales)
        return np.array([np.interp(*where, row, np.nan, np.nan) for row in self.of(quantity)])


@dataclass(frozen=True, kw_only=True)
class Scaling(Result):
    """Cosine and distance to the saturated network at each scale c."""

    kind: ClassVar[str] = "scaling"

    source: str = ""
    input: str = ""  # description of the inputs
    unknown_share: float | None = None  # share of unknown tokens; None: not text
    fixed: tuple[str, ...] = ()  # parameters that do not grow, as names or patterns
    networks: tuple[ScaledNetwork, ...] = ()

    def __repr__(self) -> str:
        """One line: the networks and the range of c."""
        scales = [c for c in self.records.distinct("scale") if c is not None]
        ends = f"; c = {min(scales):g} to {max(scales):g}" if scales else ""
        count = f"{len(self.networks)} network{'' if len(self.networks) == 1 else 's'}"
        return f"Scaling({visible(self.source)}, {count}{ends})"

    @property
    def curves(self) -> list[ScalingCurves]:
        """The curves of the last state, by run."""
        runs = dict.fromkeys(one.run for one in self.networks)
        return [self._curves([one for one in self.networks if one.run == run]) for run in runs]

    def rows_of(self, network: ScaledNetwork) -> Records:
        """The records of one network."""
        rows = self.records.where(run=network.run)
        return rows.where(seed=network.seed) if "seed" in rows.table.column_names else rows

    def matrix(
        self,
        quantity: str,
        by: str = "layer",
        *,
        run: str | None = None,
        reference: str | None = None,
        scale: float | None = None,
        seed: int | None = None,
    ) -> Matrix:
        """One quantity as a matrix: a row per scale, a column per layer; the mean over seeds unless `seed` is given.

        scale: only the row of this c.
        """
        run = self.records.single_run() if run is None else run
        networks = [one for one in self.networks if one.run == run and seed in (None, one.seed)]
        if not networks:
            raise InputError(f"no network {run!r}{'' if seed is None else f' with seed {seed}'}")
        found = [
            rows.matrix(quantity, level=by, reference=reference, axis="scale")
            for one in networks
            for rows in [self.rows_of(one) if scale is None else self.rows_of(one).where(scale=scale)]
        ]
        return replace(found[0], values=np.mean([one.values for one in found], axis=0))

    def _curves(self, networks: Sequence[ScaledNetwork]) -> ScalingCurves:
        values: dict[str, list[Floats]] = {}
        scales = np.zeros(0)
        for network in networks:
            rows = self.rows_of(network).where(level="model")
            for quantity in rows.distinct("quantity"):
                found = rows.matrix(quantity, level="model", axis="scale")
                if not len(scales):
                    scales = found.steps
                if np.array_equal(found.steps, scales):
                    values.setdefault(quantity, []).append(found.values[:, 0])
        whole = {name: np.stack(rows) for name, rows in values.items() if len(rows) == len(networks)}
        return ScalingCurves(tuple(networks), scales, whole)


def joined_scalings(parts: Sequence[Scaling], **fields: Any) -> Scaling:
    """Join the networks of several results. fields: replace those of the first result."""
    records = Records.joined([part.records for part in parts])
    networks = tuple(network for part in parts for network in part.networks)
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return replace(parts[0], **{"records": records, "networks": networks, "notes": notes, **fields})
