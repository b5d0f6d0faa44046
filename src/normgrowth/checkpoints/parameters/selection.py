"""Which parameters a norm counts: the default, the user's choice, and their number."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

import numpy as np

from normgrowth.checkpoints.checkpoint import STORAGE, Checkpoint, Tensor
from normgrowth.checkpoints.parameters.blocks import DEFAULT_INCLUDE
from normgrowth.checkpoints.parameters.parameter_names import Reading, read_names
from normgrowth.errors import InputError


class NothingCounts(InputError):
    """No parameter is counted. would_count: option -> the number of parameters that it would count."""

    def __init__(
        self, label: str, selection: "Selection", parameters: int, would_count: Mapping[str, int]
    ) -> None:
        self.label, self.selection = label, selection
        self.parameters, self.would_count = parameters, dict(would_count)
        asked = ", ".join(f"{key} {value}" for key, value in asdict(selection).items() if value is not None)
        ways = " or ".join(
            f"{option} ({count} of {parameters} parameters)" for option, count in would_count.items() if count
        )
        way_out = (
            f"count them with {ways}, or choose some with --select REGEX" if ways else "it has no parameters"
        )
        super().__init__(
            f"{label}: no tensor is counted ({asked}); {way_out}; `normgrowth parameters` lists all tensors"
        )


@dataclass(frozen=True)
class Selection:
    """Which parameters are counted, as the user chose."""

    include: str = DEFAULT_INCLUDE
    select: str | None = None
    exclude: str | None = None

    def readings(
        self, tensors: Mapping[str, Tensor], aliases: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Reading]:
        return read_names(tensors, aliases=aliases, **asdict(self))

    def choose(
        self, label: str, tensors: Mapping[str, Tensor], aliases: Mapping[str, str] = MappingProxyType({})
    ) -> "Chosen":
        """The counted parameters. Raises NothingCounts, with the options that would count some, if there are none."""
        readings = self.readings(tensors, aliases)
        parameters = [reading.name for reading in readings.values() if reading.is_parameter]
        counted = [reading for reading in readings.values() if reading.counted]
        if not counted:
            raise NothingCounts(label, self, len(parameters), self._alternatives(tensors, aliases))
        dtypes = {reading.name: tensors[reading.name].dtype for reading in counted}
        return Chosen(counted, {name: tensors[name].numel for name in parameters}, dtypes)

    def _alternatives(self, tensors: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, int]:
        """Option -> the number of parameters that it would count."""
        others = {'--include all (in Python include="all")': Selection("all")}
        if self.select is not None:
            others["no --select"] = Selection(exclude=self.exclude)
        if self.exclude is not None:
            others["no --exclude"] = Selection(self.include, self.select)
        return {
            option: sum(reading.counted for reading in other.readings(tensors, aliases).values())
            for option, other in others.items()
            if other != self
        }


def stored_copies(checkpoint: Checkpoint, readings: Mapping[str, Reading]) -> dict[str, str]:
    """Name of a head -> name of the embedding that it is a stored copy of. Reads the values of both."""
    first: list[str] = []
    copies: dict[str, str] = {}
    matrices = [reading for reading in readings.values() if reading.is_parameter]
    for reading in sorted(matrices, key=lambda reading: reading.role == "head"):
        if reading.role not in ("embedding", "head"):
            continue
        mine = checkpoint.tensors[reading.name]
        alike = [name for name in first if checkpoint.tensors[name][:2] == mine[:2]]
        if mine.dtype in STORAGE and mine.numel > 1:
            values = checkpoint.dense(reading.name) if alike else np.empty(0)
            same = next((name for name in alike if np.array_equal(values, checkpoint.dense(name))), None)
            if same is not None:
                copies[reading.name] = same
                continue
        first.append(reading.name)
    return copies


@dataclass(frozen=True)
class CountedParameters:
    """The number of counted tensors and values, and the totals. dtypes: counted tensors by dtype, if known."""

    tensors: int
    of_tensors: int
    values: int
    of_values: int
    dtypes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Chosen:
    """The counted parameters, and the sizes of all parameters."""

    readings: list[Reading]
    sizes: Mapping[str, int]  # of all parameters: without buffers and optimizer state, tied ones once
    dtypes: Mapping[str, str]  # of counted parameters

    def counts(self, copies: Mapping[str, str] = MappingProxyType({})) -> CountedParameters:
        """The number of counted tensors and values, and the totals; both exclude copies."""
        sizes = {name: size for name, size in self.sizes.items() if name not in copies}
        counted = [reading.name for reading in self.readings if reading.name not in copies]
        return CountedParameters(
            tensors=len(counted),
            of_tensors=len(sizes),
            values=sum(sizes[name] for name in counted),
            of_values=sum(sizes.values()),
            dtypes=dict(Counter(self.dtypes[name] for name in counted)),
        )


def parameters_text(selection: Selection, counted: CountedParameters | None = None) -> str:
    """The counted parameters and their number: "blocks (144 of 148 tensors, 85.1M of 124.4M values)"."""
    said = f"those that match {selection.select!r}" if selection.select is not None else selection.include
    said += f" without {selection.exclude!r}" if selection.exclude is not None else ""
    if counted is None:
        return said
    values, of_values = _short(counted.values), _short(counted.of_values)
    return f"{said} ({counted.tensors:,} of {counted.of_tensors:,} tensors, {values} of {of_values} values)"


def _short(count: int) -> str:
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return f"{count:,}"
