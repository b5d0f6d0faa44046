"""`Parameters`: the tensors of a checkpoint with their layers and roles, and whether they are counted."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, ClassVar, overload

from normgrowth.checkpoints.checkpoint import STORAGE, Checkpoint
from normgrowth.checkpoints.parameters.parameter_names import Kind
from normgrowth.checkpoints.parameters.selection import Selection, stored_copies
from normgrowth.checkpoints.series import CheckpointSeries
from normgrowth.errors import installed
from normgrowth.records import Records
from normgrowth.results import Provenance, Result
from normgrowth.text import natural_order


@dataclass(frozen=True)
class Parameter:
    """One tensor: its layer and role, whether a norm counts it, and the reason."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stack: str  # for example "encoder"; "layer" in a model with one stack; "" outside of blocks
    layer: int | None  # the index of its block
    role: str
    kind: Kind  # tied: another name of a parameter
    counted: bool
    reason: str

    @property
    def layer_name(self) -> str:
        """For example "encoder.0"; "" outside of blocks."""
        return "" if self.layer is None else f"{self.stack}.{self.layer}"

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Parameters(Result, Sequence[Parameter]):
    """The tensors of one checkpoint in natural order, layer 2 before layer 10: a sequence of `Parameter`."""

    kind: ClassVar[str] = "parameters"

    records: Records = field(default_factory=lambda: Records.from_blocks("", []))  # nothing is measured
    source: str
    checkpoint: str = ""
    step: int | None = None
    selection: Selection = field(default_factory=Selection)
    parameters: tuple[Parameter, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Parameter: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Parameter, ...]: ...
    def __getitem__(self, index: int | slice) -> Parameter | tuple[Parameter, ...]:
        return self.parameters[index]

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def counted(self) -> tuple[Parameter, ...]:
        """The parameters that a norm counts."""
        return tuple(parameter for parameter in self.parameters if parameter.counted)

    def of_kind(self, kind: Kind) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.kind == kind)

    def to_pandas(self) -> Any:
        """A DataFrame with a row per tensor."""
        return installed("pandas").DataFrame(map(asdict, self.parameters))

    def to_polars(self) -> Any:
        """A DataFrame with a row per tensor."""
        return installed("polars").DataFrame(list(map(asdict, self.parameters)))


def list_parameters(series: CheckpointSeries, selection: Selection) -> Parameters:
    """The parameters of the first checkpoint of a series."""
    entry = series.entries[0]
    with closing(entry.open()) as checkpoint:
        return Parameters(
            source=series.label,
            checkpoint=entry.label,
            step=entry.step,
            selection=selection,
            parameters=_listed(checkpoint, selection),
            notes=(*series.notes, *(f"{checkpoint.label}: {note}" for note in checkpoint.notes)),
            provenance=Provenance.now(),
        )


def _listed(checkpoint: Checkpoint, selection: Selection) -> tuple[Parameter, ...]:
    readings = selection.readings(checkpoint.tensors, checkpoint.aliases)
    if not checkpoint.is_remote:  # for remote checkpoints, only the header is read
        copies = stored_copies(checkpoint, readings)
        readings = selection.readings(checkpoint.tensors, {**checkpoint.aliases, **copies})
    found = []
    for name in natural_order(readings):
        reading, tensor = readings[name], checkpoint.tensors[name]
        measurable = not reading.counted or tensor.dtype in STORAGE
        reason = reading.reason if measurable else "its dtype is not supported: --exclude it"
        place = reading.stack, reading.layer, reading.role, reading.kind
        found.append(Parameter(reading.name, tensor.shape, tensor.dtype, *place, reading.counted, reason))
    return tuple(found)
