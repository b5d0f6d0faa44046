"""Which softmaxes are attention: their scores are products of two activations, not of an activation and a parameter.

A router's logits are a product with a parameter; what attention returns is a product with a softmax. Only
`attention_only` needs the difference.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from normgrowth.limit.dispatch.marked_storage import torch_storage

ORIGIN = "_normgrowth_origin"  # storage attribute: the run, and one of these:
PARAMETER, SCORES, SHARES = "parameter", "scores", "shares"
SOFTMAX = ("_softmax", "_safe_softmax")
FACTORS = {  # position of the first factor of a product
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "_grouped_mm", "convolution"), 0),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), 1),
}


@contextmanager
def known_parameters(parameters: Iterable[Tensor], run: object) -> Iterator[None]:
    """Temporarily mark parameters, so that products with them are known."""
    storages = [parameter.untyped_storage() for parameter in parameters]
    try:
        for storage in storages:
            setattr(storage, ORIGIN, (run, PARAMETER))
        yield
    finally:
        for storage in storages:
            if hasattr(storage, ORIGIN):
                delattr(storage, ORIGIN)


def is_attention(name: str, tensors: Sequence[Tensor], run: object) -> bool:
    """Whether a softmax gets attention scores; fused attention always does."""
    return name not in SOFTMAX or _origin(tensors[0], run) == SCORES


def with_origin(found: Any, name: str, tensors: Sequence[Tensor], run: object) -> Any:
    """Mark a result as computed from parameters only, from attention scores or from a softmax, and return it."""
    if not isinstance(found, Tensor) or (storage := torch_storage(found)) is None:
        return found
    origins = [_origin(tensor, run) for tensor in tensors]
    origin = None
    if (first := FACTORS.get(name)) is not None:
        factors = origins[first : first + 2]
        origin = None if PARAMETER in factors or SHARES in factors else SCORES
    elif name in SOFTMAX or SHARES in origins:
        origin = SHARES
    elif SCORES in origins:
        origin = SCORES
    elif origins and all(one == PARAMETER for one in origins):
        origin = PARAMETER
    if origin is not None:
        setattr(storage, ORIGIN, (run, origin))
    elif hasattr(storage, ORIGIN):
        delattr(storage, ORIGIN)
    return found


def _origin(tensor: Tensor, run: object) -> str | None:
    storage = torch_storage(tensor)
    owner, found = (None, None) if storage is None else getattr(storage, ORIGIN, (None, None))
    return found if owner is run else None
