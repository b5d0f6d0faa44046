"""The levels at which sums are aggregated: tensor, layer, matrices of each layer, role, part and model."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

MATRICES, VECTORS = "matrices", "vectors"  # the parts; vectors are gains, biases and the like
LAYER_MATRICES = "layer_matrices"  # the layers without their vectors
LEVELS = ("tensor", "layer", LAYER_MATRICES, "role", "part", "model")
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

    Layers are left out if the model has no blocks, parts and the matrices of layers if it has only matrices or only
    vectors.
    """
    yield Level(
        "tensor", [t.name for t in tensors], [t.layer for t in tensors], [t.role for t in tensors], None
    )
    both = len({t.matrix for t in tensors}) == 2
    yield from _layers("layer", [t.layer_name for t in tensors], tensors)
    if both:
        yield from _layers(LAYER_MATRICES, [t.layer_name if t.matrix else None for t in tensors], tensors)
    roles = list(dict.fromkeys(t.role for t in tensors))
    group = [roles.index(t.role) for t in tensors]
    yield Level("role", roles, [None] * len(roles), [*roles], group)
    if both:
        parts = [MATRICES, VECTORS]
        yield Level("part", parts, [None, None], [None, None], [0 if t.matrix else 1 for t in tensors])
    yield Level("model", ["model"], [None], [None], [0] * len(tensors))


def _layers(level: str, names: Sequence[str | None], tensors: Sequence[Placed]) -> Iterator[Level]:
    """The layers. names: for each tensor, the layer that it is summed in, or None."""
    layers = {name: t.layer for name, t in zip(names, tensors, strict=True) if name is not None}
    if layers:
        place = {name: i for i, name in enumerate(layers)}
        group = [-1 if name is None else place[name] for name in names]
        yield Level(level, list(layers), list(layers.values()), [None] * len(layers), group)
