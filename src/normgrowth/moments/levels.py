"""The levels at which sums are aggregated: tensor, layer, role, part and model."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

MATRICES, VECTORS = "matrices", "vectors"  # the parts; vectors are gains, biases and the like
DOMINANT = 0.25  # share of vectors in ‖θ‖² above which tables and pages lead with the matrices


class Placed(Protocol):
    """A tensor with its layer and role. matrix: whether it has at least two dimensions."""

    @property
    def name(self) -> str: ...
    @property
    def layer(self) -> int | None: ...
    @property
    def layer_name(self) -> str | None: ...
    @property
    def role(self) -> str: ...
    @property
    def matrix(self) -> bool: ...


class Level(NamedTuple):
    """The items of a level. group: for each tensor, the index of its item or -1; None if each tensor is an item."""

    name: str
    items: list[str]
    layers: list[int | None]
    roles: list[str | None]
    group: list[int] | None


def levels_of(tensors: Sequence[Placed]) -> Iterator[Level]:
    """The levels at which the tensors are summed.

    Layers are left out if the model has no blocks, parts if it has only matrices or only vectors.
    """
    yield Level(
        "tensor", [t.name for t in tensors], [t.layer for t in tensors], [t.role for t in tensors], None
    )
    layers = {t.layer_name: t.layer for t in tensors if t.layer_name is not None}
    if layers:
        place = {name: i for i, name in enumerate(layers)}
        group = [place.get(t.layer_name or "", -1) for t in tensors]
        yield Level("layer", list(layers), list(layers.values()), [None] * len(layers), group)
    roles = list(dict.fromkeys(t.role for t in tensors))
    group = [roles.index(t.role) for t in tensors]
    yield Level("role", roles, [None] * len(roles), [*roles], group)
    if len({t.matrix for t in tensors}) == 2:
        parts = [MATRICES, VECTORS]
        yield Level("part", parts, [None, None], [None, None], [0 if t.matrix else 1 for t in tensors])
    yield Level("model", ["model"], [None], [None], [0] * len(tensors))
