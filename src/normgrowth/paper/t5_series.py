"""The series on which the claims of Figures 1 and 5 are judged: the published points, or a trace of T5."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from normgrowth.engine import Progress
from normgrowth.errors import InputError
from normgrowth.paper.published.figure1 import t5_trace
from normgrowth.paper.published.t5_stacks import Stack, StackSums, Sums, t5_sums
from normgrowth.paper.published.tables import Column, published
from normgrowth.records import Matrix, Records
from normgrowth.results import load
from normgrowth.stored_result import has_records
from normgrowth.trace import trace
from normgrowth.trace.result import Trace

FIGURE_1, FIGURE_5 = "published (Figure 1)", "derived from Figure 1"  # sources of published numbers
FEWEST = 5  # checkpoints with which every quantity of Figures 1 and 5 has a value


class T5Series(ABC):
    """Norms, directions and steps of an encoder-decoder model over training."""

    @property
    def source(self) -> str:
        """The source of the trace; empty for published numbers."""
        return ""

    def data_of(self, published_source: str) -> str:
        """The data behind a claim whose published numbers have this source."""
        found = published_source
        for figure in (FIGURE_1, FIGURE_5):
            found = found.replace(figure, self.source or figure)
        return found

    @property
    @abstractmethod
    def records(self) -> Records:
        """The records of encoder and decoder together."""

    @abstractmethod
    def sums(self, stack: Stack) -> StackSums: ...

    @abstractmethod
    def encoder_norms(self) -> dict[int, Mapping[str, Column]]:
        """The columns `step` and `norm` of each encoder layer."""

    def encoder_matrix(self) -> Matrix:
        """The norms of the encoder's layers, with layers counted from 0."""
        layers = self.encoder_norms()
        values = np.stack([own["norm"] for own in layers.values()], axis=1)
        names, numbers = [f"encoder.{number - 1}" for number in layers], [number - 1 for number in layers]
        return Matrix(names, [*numbers], next(iter(layers.values()))["step"], values)

    @abstractmethod
    def cosines(self) -> tuple[Column, Column]:
        """Cosines to the previous checkpoint: of the model at each step, and of each encoder layer at the last."""


class PublishedT5(T5Series):
    """The series that was read off the paper's figures."""

    @property
    def records(self) -> Records:
        return t5_trace().records

    def sums(self, stack: Stack) -> StackSums:
        return t5_sums(stack)

    def encoder_norms(self) -> dict[int, Mapping[str, Column]]:
        table = published("t5_norm_by_layer")
        return {int(number): table.layer(int(number)) for number in np.unique(table["layer"])}

    def cosines(self) -> tuple[Column, Column]:
        layers = published("t5_direction_by_layer")
        ends = layers["cosine_to_previous"][layers["step"] == layers["step"].max()]
        return published("t5_direction")["cosine_to_previous"], ends


@dataclass(frozen=True)
class TracedT5(T5Series):
    """A series traced from checkpoints. Squares and inner products of a stack are sums over its layers."""

    trace: Trace

    def __post_init__(self) -> None:
        stacks = self.trace.records.matrix("norm").stacks()
        missing = [stack for stack in ("encoder", "decoder") if stack not in stacks]
        if missing:
            raise InputError(
                f"{self.source} has no {missing[0]} layers (its stacks: {', '.join(stacks) or 'none'}); "
                "the claims are about an encoder-decoder model traced with --include encoder,decoder"
            )
        steps, _ = self.trace.records.series("norm")
        if len(steps) < FEWEST:
            raise InputError(f"{self.source} has {len(steps)} checkpoints; at least {FEWEST} are needed")

    @property
    def source(self) -> str:
        return f"traced here: {self.trace.source}"

    @property
    def records(self) -> Records:
        return self.trace.records

    def sums(self, stack: Stack) -> StackSums:
        if stack == "both":
            return self.sums("encoder") + self.sums("decoder")
        return reduce(StackSums.__add__, self._layers(stack).values())

    def encoder_norms(self) -> dict[int, Mapping[str, Column]]:
        return {number: sums.norms() for number, sums in self._layers("encoder").items()}

    def cosines(self) -> tuple[Column, Column]:
        ends = [sums.steps()["cosine_to_previous"][-1] for sums in self._layers("encoder").values()]
        return self.sums("both").steps()["cosine_to_previous"], np.array(ends)

    def _layers(self, stack: str) -> dict[int, StackSums]:
        """The layers of a stack by number, from 1 as in the paper. The budget has 2⟨θ,δ⟩ and ‖δ‖²."""
        norms, dots, deltas = (
            self.records.matrix(quantity) for quantity in ("norm", "growth_alignment", "growth_steps")
        )
        found: dict[int, StackSums] = {}
        for number, name in enumerate(norms.stacks()[stack], 1):
            sums = Sums(norms.steps, norms.curve(name) ** 2, dots.curve(name) / 2, deltas.curve(name))
            exact = Sums(norms.steps, *(np.zeros_like(part) for part in (sums.square, sums.dot, sums.delta)))
            found[number] = StackSums(sums, exact)
        return found


def traced_t5(source: str | Path, out: Path, progress: Progress | None = None) -> TracedT5:
    """The series in the output folder of a trace, or of checkpoints, which are traced into `out`."""
    folder = Path(source)
    if folder.is_dir() and has_records(folder):
        result = load(folder)
        if not isinstance(result, Trace):
            raise InputError(f"{folder}: contains a result of kind {result.kind!r}, not a trace")
    else:
        result = trace(source, out, include="encoder,decoder", progress=progress)
    return TracedT5(replace(result, source=result.source or str(source)))
