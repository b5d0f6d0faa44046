"""Rules for comparing, bounding and ordering values as c grows."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.power_series import ZERO, Series, highest, incomplete, infinities_first
from normgrowth.limit.rules.arithmetic import add, as_series, both, infinite_part, open_ties
from normgrowth.limit.rules.data_movement import choose


@rule("gt", "lt", "ge", "le", "eq", "ne")
def comparison(operation: Operation, a: Any, b: Any) -> Tensor:
    """Compare two values for large c, by the sign of their difference."""
    if _is_same(a, b):  # x == x, as in isfinite
        return operation(a.top.value, a.top.value)
    sign, difference, endless = _order(a, b)
    if difference.rest is not None or difference.lost:
        equal = incomplete(difference, *both(a, b)) | (
            difference.vanishes() if difference.lost else sign == 0
        )
        equal &= ~endless & torch.isfinite(difference.top.value)
        if _exact_zeros(a) and _exact_zeros(b):
            equal &= ~(as_series(a).vanishes() & as_series(b).vanishes())
        _count_open(operation, difference, open_ties(equal, a, b))
    return getattr(torch, operation.name)(sign, 0)


def _is_same(a: Any, b: Any) -> bool:
    """Whether both are the same tensor and thus equal in every order."""
    if not (isinstance(a, Series) and isinstance(b, Series)):
        return False
    x, y = a.top.value, b.top.value
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()


def _exact_zeros(x: Any) -> bool:
    """Whether elements that are 0 have no exponentially small part and no omitted order."""
    if not isinstance(x, Series) or x.exact_zeros or x.is_given:
        return True
    return x.zero and not x.lost and x.exponential is None


def _count_open(operation: Operation, x: Series, count: int, vanishing: int = 0) -> None:
    """Count ties that an omitted order, or an exponentially small part, might break.

    vanishing: ties of values without a power of c, which only an exponentially small part might break.
    """
    operation.context.unranked += vanishing
    rest = x.rest if x.exponential is None else highest(x.rest, x.exponential.decay.rest)
    if rest is not None:
        operation.context.doubtful += count
    elif x.lost:
        operation.context.unranked += count


def _difference(a: Any, b: Any) -> Series:
    return add(*both(a, b), -1)


def _order(a: Any, b: Any) -> tuple[Tensor, Series, Tensor]:
    """The sign of a - b for large c; the difference, and where a or b is infinite, which it does not show."""
    a, b = (infinities_first(x) for x in both(a, b))
    edges = [_edge(a), _edge(b)]
    if edges == [None, None]:
        difference = _difference(a, b)
        sign = difference.sign()
        return sign, difference, torch.zeros_like(sign, dtype=torch.bool)
    first, second = (
        torch.zeros_like(x.top.value) if e is None else e for x, e in zip((a, b), edges, strict=True)
    )
    endless = (first != 0) | (second != 0)
    opened = [x.move(lambda value: torch.where(endless, torch.zeros_like(value), value)) for x in (a, b)]
    difference = _difference(*opened)
    beyond = torch.sign(torch.nan_to_num(first - second, nan=0.0))  # infinities of one sign are equal
    return torch.where(endless, beyond, difference.sign()), difference, endless


def _edge(x: Series) -> Tensor | None:
    """A tensor with the infinite elements of a series, and 0 elsewhere; None if all are finite."""
    if x.is_constant:
        return infinite_part(x)
    endless = x.top.value.isinf()
    return torch.where(endless, x.top.value, 0.0) if bool(endless.any()) else None


@rule("maximum")
def larger(operation: Operation, a: Any, b: Any) -> Series:
    return _open(operation, a, b, -1) or _chosen(_order(a, b)[0] >= 0, a, b)


@rule("minimum")
def smaller(operation: Operation, a: Any, b: Any) -> Series:
    return _open(operation, a, b, 1) or _chosen(_order(a, b)[0] <= 0, a, b)


def _open(operation: Operation, a: Any, b: Any, side: int) -> Series | None:
    """The unbounded series if a bound is at the end of the dtype's range: it only excludes infinities; else None."""
    for x, bound in ((a, b), (b, a)):
        if isinstance(x, Series) and not isinstance(bound, Series):
            dtype = operation.dtype or x.top.value.dtype
            ends = torch.as_tensor(bound, dtype=torch.float64) * side
            if bool((ends >= torch.finfo(dtype).max / 2).all()):
                return x
    return None


def _chosen(first: Tensor, a: Any, b: Any) -> Series:
    like = a if isinstance(a, Series) else b
    return choose(first, as_series(a, like), as_series(b, like))


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
    """The predicate of the sign of each element; a mask counts as minus infinity."""
    return operation(*(a.sign(infinite=True) if isinstance(a, Series) else a for a in args), **kwargs)


@rule("_local_scalar_dense", "item", "equal", "is_nonzero")
def as_number(operation: Operation, x: Series, *others: Any) -> Any:
    if not x.is_constant and x.top.degree != 0:
        raise operation.refuse(
            f"a value of degree {x.top.degree} has no finite limit and cannot be converted to a number"
        )
    return operation(x.top.value, *(o.top.value if isinstance(o, Series) else o for o in others))


# --- order ---------------------------------------------------------------------------------------------------
def ranks(x: Series, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rank of each element along a dimension, from 0, with equal ranks for ties; and undecided ties, in order.

    Elements are ranked by their leading coefficients, then by the next orders, and last by the exponentially small
    part. Undecided ties are returned in two tensors: ties that omitted powers of c might break, and ties that only an
    exponentially small part might break.
    """
    x = infinities_first(x)
    keys = [term.value for term in x.terms]
    if (part := x.exponential) is not None:
        side = torch.sign(part.weight)
        size = part.weight.abs().log()  # a level of the decay is a factor of the weight
        if (level := part.decay.at(ZERO)) is not None:
            size = size - level
        keys += [side, *(-side * term.value for term in part.decay.terms if term.degree > 0)]
        keys += [torch.where(side == 0, side, side * size)]
        keys += [-side * term.value for term in part.decay.terms if term.degree < 0]
    order: Tensor | None = None
    for key in reversed(keys):
        if order is None:
            order = torch.argsort(key, dim=dim, stable=True)
        else:
            again = torch.argsort(key.gather(dim, order), dim=dim, stable=True)
            order = order.gather(dim, again)
    assert order is not None
    sorted_keys = [key.gather(dim, order) for key in keys]
    count, powers = x.shape[dim], len(x.terms)

    def equal(some: list[Tensor]) -> Tensor:
        return torch.stack([k.narrow(dim, 1, count - 1) == k.narrow(dim, 0, count - 1) for k in some]).all(0)

    same = equal(sorted_keys)
    new = torch.cat([torch.zeros_like(order.narrow(dim, 0, 1)), (~same).long()], dim)
    ranked = torch.empty_like(order).scatter_(dim, order, new.cumsum(dim))
    nowhere = torch.zeros_like(same)
    if x.rest is None and not x.lost and part is None:
        return ranked, nowhere, nowhere
    known = sorted_keys[:powers] if x.lost else sorted_keys  # a part that was not computed may be larger
    tied, small = equal(known), nowhere
    if part is not None and not x.lost:  # equal parts: the next part, which decays faster, is not known
        small = same & (sorted_keys[powers].narrow(dim, 1, count - 1) != 0)
    if x.rest is None and not x.lost and (part is None or part.decay.rest is None):
        return ranked, nowhere, small
    nothing = torch.stack([key == 0 for key in known]).all(0).narrow(dim, 1, count - 1)
    tied |= _incomplete_neighbors(replace(x, exponential=None), order, dim)
    if part is not None and part.decay.rest is not None and not x.lost:
        tied |= equal(sorted_keys[: powers + 1]) & _incomplete_neighbors(part.decay, order, dim)
    open_ = tied & torch.isfinite(sorted_keys[0].narrow(dim, 1, count - 1))
    # A value of exactly 0 has no lower orders; it may have an exponentially small part.
    if x.exact_zeros or not x.lost:
        return ranked, open_ & ~nothing, small
    return (ranked, open_ & ~nothing, open_ & nothing) if x.known_zeros else (ranked, open_, nowhere)


def _incomplete_neighbors(x: Series, order: Tensor, dim: int) -> Tensor:
    """Neighbors with equal leading terms, whose order depends on a term at or below the highest omitted one."""
    after, before = (
        x.map(lambda value, s=s: value.gather(dim, order).narrow(dim, s, x.shape[dim] - 1)) for s in (1, 0)
    )
    return incomplete(_difference(after, before), after, before)


@rule("sort", "topk", "kthvalue", "argsort", "median")
def in_order(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> Any:
    """Sort by rank with torch's own operation, so that exact ties are resolved as in the network."""
    given = operation.named(args, kwargs)
    if not x.shape:
        return x, torch.zeros((), dtype=torch.long, device=x.top.value.device)
    dim = given.get("dim", -1)
    ranked, *ties = ranks(x, dim)
    found = operation(ranked, *args, **kwargs)
    count, k = x.shape[dim], given.get("k")
    if k is not None and operation.name == "topk":
        at = (
            count - k if given.get("largest", True) else k
        ) - 1  # the tie between the last chosen element and the next one
        inside = 0 <= at < count - 1
        ties = [t.narrow(dim, at if inside else 0, int(inside)) for t in ties]
    _count_open(operation, x, *(int(t.sum()) for t in ties))
    if operation.name == "argsort":
        return found
    indices = found[1]
    if operation.name not in ("kthvalue", "median"):
        return x.move(lambda value: value.gather(dim, indices)), indices
    keep = bool(given.get("keepdim", False))
    places = indices if keep else indices.unsqueeze(dim)
    value = x.move(lambda v: v.gather(dim, places) if keep else v.gather(dim, places).squeeze(dim))
    return value, indices


@rule("aminmax")
def extremes(operation: Operation, x: Series, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = [] if dim is None else [dim]
    least, most = torch.ops.aten.amin.default, torch.ops.aten.amax.default
    return tuple(extreme(Operation(f, operation.context), x, dims, keepdim) for f in (least, most))


@rule("amax", "amin", "max", "min", "argmax", "argmin")
def extreme(operation: Operation, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The element with the largest or smallest rank."""
    given = operation.named(args, kwargs)
    name = operation.name
    if isinstance(other := given.get("other"), Series | Tensor):
        return larger(operation, x, other) if name == "max" else smaller(operation, x, other)
    if not x.shape:
        first = torch.zeros((), dtype=torch.long, device=x.top.value.device)
        return (
            first if name.startswith("arg") else (x, first) if len(operation.func._schema.returns) == 2 else x
        )
    dims, keep = given.get("dim"), bool(given.get("keepdim", False))
    dims = [dims] if isinstance(dims, int) else [d % len(x.shape) for d in dims or []]
    several = len(dims) != 1
    shape = list(x.shape)
    outer = [d for d in range(len(shape)) if dims and d not in dims]
    sizes = [shape[d] for d in outer]
    if several:  # flatten these dimensions into one at the end
        dims = dims or list(range(len(shape)))
        x = x.move(lambda value: value.permute(*outer, *dims).reshape(*sizes, -1))
    dim = -1 if several else dims[0]
    ranked, *ties = ranks(x, dim)
    place = (ranked.argmax if "max" in name else ranked.argmin)(dim, keepdim=True)

    def shaped(value: Tensor) -> Tensor:
        if several:
            return value.reshape([1 if d in dims else n for d, n in enumerate(shape)] if keep else sizes)
        return value if keep else value.squeeze(dim)

    found = x.move(lambda value: shaped(value.gather(dim, place)))
    indexed = name.startswith("arg") or len(operation.func._schema.returns) == 2
    if indexed and (count := ties[0].shape[dim]):
        at = count - 1 if "max" in name else 0
        _count_open(operation, x, *(int(t.select(dim, at).sum()) for t in ties))
    if name.startswith("arg"):
        return shaped(place)
    return (found, shaped(place)) if indexed else found
