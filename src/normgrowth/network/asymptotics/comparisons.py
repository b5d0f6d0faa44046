"""Rules for comparing, bounding and ordering: what holds as c grows."""

from typing import Any

import torch
from torch import Tensor

from normgrowth.network.asymptotics.arithmetic import add, series
from normgrowth.network.asymptotics.mode import Operation, rule
from normgrowth.network.asymptotics.series import Series, combine


@rule("gt", "lt", "ge", "le", "eq", "ne")
def comparison(operation: Operation, a: Any, b: Any) -> Tensor:
    """What the sign of the difference says as c grows."""
    name = operation.func._schema.name.removeprefix("aten::")
    return getattr(torch, name)(_difference(a, b).sign(), 0)


def _difference(a: Any, b: Any) -> Series:
    like = a if isinstance(a, Series) else b
    return add(series(a, like), series(b, like), -1)


@rule("maximum")
def larger(_: Operation, a: Any, b: Any) -> Series:
    return _open(a, b, -1) or _chosen(_difference(a, b).sign() >= 0, a, b)


@rule("minimum")
def smaller(_: Operation, a: Any, b: Any) -> Series:
    return _open(a, b, 1) or _chosen(_difference(a, b).sign() <= 0, a, b)


def _open(a: Any, b: Any, side: int) -> Series | None:
    """A bound at the end of the dtype, there to keep infinities out, is no bound in the limit."""
    for x, bound in ((a, b), (b, a)):
        if isinstance(x, Series) and not isinstance(bound, Series):
            dtype = x.top.value.dtype
            ends = torch.as_tensor(bound, dtype=torch.float64) * side
            if bool((ends >= torch.finfo(dtype).max / 2).all()):
                return x
    return None


def _chosen(first: Tensor, a: Any, b: Any) -> Series:
    like = a if isinstance(a, Series) else b
    return combine(lambda x, y: torch.where(first, x, y), series(a, like), series(b, like))


@rule("clamp", "hardtanh")
def clamp(operation: Operation, x: Series, low: Any = None, high: Any = None) -> Series:
    if "hardtanh" in str(operation.func):
        low, high = -1 if low is None else low, 1 if high is None else high
    x = x if low is None else larger(operation, x, low)
    return x if high is None else smaller(operation, x, high)


@rule("clamp_min")
def at_least(operation: Operation, x: Series, low: Any) -> Series:
    return larger(operation, x, low)


@rule("clamp_max")
def at_most(operation: Operation, x: Series, high: Any) -> Series:
    return smaller(operation, x, high)


@rule("isnan", "isinf", "isfinite", "isposinf", "isneginf", "any", "all", "count_nonzero", "nonzero")
@rule("logical_not", "logical_and", "logical_or")
def question(operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """Of the element itself; a mask of minus infinity is one."""
    return operation(*(a.sign(infinite=True) if isinstance(a, Series) else a for a in args), **kwargs)


@rule("_local_scalar_dense", "item", "equal", "is_nonzero")
def as_number(operation: Operation, x: Series, *others: Any) -> Any:
    if not x.is_constant and x.top.degree != 0:
        raise operation.refuse(
            f"asks for the number behind a value of degree {x.top.degree}, which has none in the limit"
        )
    return operation(x.top.value, *(o.top.value if isinstance(o, Series) else o for o in others))


# --- order ---------------------------------------------------------------------------------------------------
def order(x: Series, dim: int) -> Tensor:
    """Indices from the smallest to the largest: by the leading coefficients, among equals by the next ones."""
    found: Tensor | None = None
    for term in reversed(x.terms):
        if found is None:
            found = torch.argsort(term.value, dim=dim, stable=True)
        else:
            again = torch.argsort(term.value.gather(dim, found), dim=dim, stable=True)
            found = found.gather(dim, again)
    assert found is not None
    return found


@rule("sort", "topk")
def in_order(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> Any:
    given = operation.named(args, kwargs)
    dim = given.get("dim", -1)
    falling = given.get("descending", False) if "k" not in given else given.get("largest", True)
    found = order(x, dim).flip(dim) if falling else order(x, dim)
    if "k" in given:
        found = found.narrow(dim, 0, given["k"])
    return x.map(lambda value: value.gather(dim, found)), found


@rule("amax", "amin", "max", "min", "argmax", "argmin")
def extreme(operation: Operation, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The last, or the first, in order."""
    given = operation.named(args, kwargs)
    name = operation.func._schema.name.removeprefix("aten::")
    if isinstance(other := given.get("other"), Series | Tensor):
        return larger(operation, x, other) if name == "max" else smaller(operation, x, other)
    dims, keep = given.get("dim"), bool(given.get("keepdim", False))
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    if len(dims) > 1:
        raise operation.refuse("an extreme over several dimensions has no rule")
    whole, dim = not dims, dims[0] if dims else 0
    shape = [1] * len(x.shape) if keep else []
    flat = x.map(torch.flatten) if whole else x
    place = order(flat, dim).select(dim, -1 if "max" in name else 0).unsqueeze(dim)

    def shaped(value: Tensor) -> Tensor:
        return value.reshape(shape) if whole else value if keep else value.squeeze(dim)

    found = flat.map(lambda value: shaped(value.gather(dim, place)))
    if name.startswith("arg"):
        return shaped(place)
    return (found, shaped(place)) if len(operation.func._schema.returns) == 2 else found
