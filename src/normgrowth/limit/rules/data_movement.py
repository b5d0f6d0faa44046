"""Rules for operations that move values or choose among them."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import summed_over, times_constant
from normgrowth.limit.power_series import Series, Term, combine, constant_series
from normgrowth.limit.rules.arithmetic import (
    add,
    as_series,
    count_cancelled_sums,
    find_finite_mask,
    indicators,
    infinite_part,
)

# fmt: off
MOVES = (
    "clone", "contiguous", "flip", "roll", "rot90", "repeat", "repeat_interleave",
    "index", "index_select", "gather", "take_along_dim", "masked_select",
    # dtypes
    "_to_copy", "to",
    # views that are copied
    "view_copy", "expand_copy", "permute_copy", "transpose_copy", "t_copy", "slice_copy", "select_copy",
    "diagonal_copy", "squeeze_copy", "unsqueeze_copy", "unfold_copy", "alias_copy", "detach_copy",
    "_reshape_copy",
)
# Operations that are linear in their first argument, the only one that may grow.
LINEAR = (
    "mean", "cumsum", "trace", "tril", "triu", "diag_embed", "conj_physical", "_conj_physical",
    "_fft_c2c", "_fft_r2c", "_fft_c2r",
    # images
    "im2col", "col2im", "pixel_shuffle", "pixel_unshuffle", "avg_pool1d", "avg_pool2d",
    "adaptive_avg_pool1d", "_adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d",
)
# fmt: on
MOVING = frozenset(MOVES)
FOURIER = frozenset({"_fft_c2c", "_fft_r2c", "_fft_c2r"})
SUMS = frozenset({"sum", "mean", "cumsum", "trace", "col2im", *FOURIER})
SUMS |= {"avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d", "upsample_bilinear2d"}
SUMS |= {"upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"}
EMPTY = torch.Size([0])


@rule(*MOVES, *LINEAR)
def linear(operation: Operation, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a linear operation to every term."""
    if not isinstance(x, Series):
        raise operation.refuse("an index or a size must not grow")
    dtype = kwargs.get("dtype")
    if dtype is torch.bool:
        return operation(x.sign(), *args, **kwargs)
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise operation.refuse(f"a value of degree {x.top.degree} has no limit in {dtype}")
    if dtype is torch.float32 and x.top.value.dtype == torch.float64:
        operation.context.coarsest = torch.finfo(torch.float32).eps
    apply = x.move if operation.name in MOVING else x.map
    found = apply(lambda value: operation(value, *args, **kwargs))
    if x.rest is not None and not x.zero and operation.name in SUMS:

        def summed(term: Term) -> Tensor:
            present = (term.value != 0).to(torch.float32)
            if operation.name in FOURIER:  # every element of the result is a sum of all elements
                return present.amax(args[0], keepdim=True)
            return operation(present, *args, **kwargs)

        count_cancelled_sums(operation, found, [(term.degree, partial(summed, term)) for term in x.terms])
    return found


@rule("neg")
def negation(_: Operation, x: Series) -> Series:
    return times_constant(x, -1)


@rule("sum")
def total(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> Series:
    found = linear(operation, x, *args, **kwargs)
    if x.exact_zeros:
        zeros = found.vanishes()
        summed = (
            zeros
            if not bool(zeros.any())
            else operation((~x.vanishes()).to(torch.float32), *args, **kwargs) > 0
        )
        found = found.changed(exact_zeros=not bool((zeros & summed).any()))
    if x.exponential is None:
        return found
    given = operation.named(args, kwargs)
    dims = [d % len(x.shape) for d in given.get("dim") or range(len(x.shape))]
    part, several, cancelled = summed_over(x.exponential, dims, bool(given.get("keepdim", False)))
    lost = x.lost or several or bool((cancelled & found.vanishes()).any())
    beside = bool(cancelled.any()) and not lost  # a part that decays faster remains beside a power of c
    return found.changed(exponential=part, lost=lost or beside, lost_beside=beside)


@rule("constant_pad_nd")
def padded(operation: Operation, x: Series, pad: list[int], value: Any = 0) -> Series:
    """Pad every term with zeros; another padding value becomes a term of degree 0."""
    found = x.map(lambda v: operation(v, pad, 0))
    if value == 0:
        return found
    inside = operation(torch.ones_like(x.top.value, dtype=torch.bool), pad, False)
    filling = as_series(value, x)
    find_finite_mask(operation, x, filling)
    return choose(inside, found, filling)


@rule("embedding")
def embedding(operation: Operation, weight: Series, indices: Tensor, *args: Any) -> Series:
    return weight.move(lambda value: operation(value, indices, *args))


@rule("split_copy", "split_with_sizes_copy", "unbind_copy")
def pieces(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> list[Series]:
    parts = [operation(term.value, *args, **kwargs) for term in x.terms]
    return [
        Series(tuple(Term(t.degree, p[i], t.sources) for t, p in zip(x.terms, parts, strict=True)), x.rest)
        for i in range(len(parts[0]))
    ]


# --- operations that are jointly linear in several arguments -------------------------------------------------
@rule("cat", "stack")
def joined(operation: Operation, parts: list[Any], dim: int = 0) -> Series:
    """A concatenation or stack: elements keep their degrees, with zeros in terms of other degrees."""
    given = [as_series(part) for part in parts]
    if operation.name == "cat":  # ignore the empty one-dimensional tensors that caches start with
        filled = [x for x in given if x.shape != EMPTY]
        if filled and len({x.top.value.dtype for x in given}) == 1:
            given = filled
    return combine(lambda *values: operation(list(values), dim), *given, moves=True)


@rule("complex")
def complex_number(operation: Operation, real: Any, imaginary: Any) -> Series:
    return combine(lambda a, b: operation(a, b), as_series(real), as_series(imaginary))


@rule("copy")
def copy(operation: Operation, x: Any, source: Any, *_: Any) -> Series:
    x, source = as_series(x), as_series(source)
    find_finite_mask(operation, x, source)
    target = x.top.value
    return source.move(lambda value: value.to(target.dtype).expand(target.shape).clone())


@rule("slice_scatter", "select_scatter", "diagonal_scatter")
def scattered(operation: Operation, x: Any, source: Any, *args: Any, **kwargs: Any) -> Series:
    return placed(operation, lambda a, b: operation(a, b, *args, **kwargs), as_series(x), as_series(source))


@rule("index_put", "_unsafe_index_put")
def index_put(operation: Operation, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Series:
    def put(a: Tensor, b: Tensor) -> Tensor:
        return operation(a, indices, b, accumulate)

    return (
        sum_of_two(operation, put, as_series(x), as_series(values))
        if accumulate
        else placed(operation, put, as_series(x), as_series(values))
    )


@rule("masked_scatter")
def masked_scatter(operation: Operation, x: Any, mask: Tensor, source: Any) -> Series:
    return placed(operation, lambda a, b: operation(a, mask, b), as_series(x), as_series(source))


@rule("scatter_add", "index_add")
def scatter_sum(operation: Operation, x: Any, dim: int, index: Tensor, source: Any, **kwargs: Any) -> Series:
    def summed(a: Tensor, b: Tensor) -> Tensor:
        return operation(a, dim, index, b, **kwargs)

    return sum_of_two(operation, summed, as_series(x), as_series(source))


def sum_of_two(
    operation: Operation, f: Callable[[Tensor, Tensor], Tensor], x: Series, source: Series
) -> Series:
    """A function that is jointly linear in both and adds elements of them; counts sums that cancel."""
    found = combine(f, x, source)
    if found.rest is not None:
        here, there = indicators(x), indicators(source)
        nothing = [torch.zeros_like(s.top.value, dtype=torch.float32) for s in (x, source)]

        def entered(degree: Fraction) -> Tensor:  # no factor of the source cancels pi
            return f(here.get(degree, nothing[0]), there.get(degree, nothing[1]) * math.pi)

        degrees = sorted({*here, *there}, reverse=True)
        count_cancelled_sums(operation, found, [(degree, partial(entered, degree)) for degree in degrees])
    return found


@rule("scatter", "index_copy")
def scatter(operation: Operation, x: Any, dim: int, index: Tensor, source: Any, **kwargs: Any) -> Series:
    x = as_series(x)
    if kwargs.get("reduce") is not None:
        raise operation.refuse("no rule for a scatter that multiplies")
    if isinstance(source, Series | Tensor):
        return placed(operation, lambda a, b: operation(a, dim, index, b, **kwargs), x, as_series(source))
    filling = torch.full(index.shape, source, dtype=x.top.value.dtype, device=index.device)
    return placed(operation, lambda a, b: torch.scatter(a, dim, index, b), x, as_series(filling))


def placed(
    operation: Operation, put: Callable[[Tensor, Tensor], Tensor], x: Series, values: Series
) -> Series:
    """x with some elements replaced by values; infinite elements of either stay infinite."""
    find_finite_mask(operation, x, values)
    edges = [infinite_part(x), infinite_part(values)]
    if edges == [None, None]:
        return combine(put, x, values, moves=True)
    x, values = (s if e is None else _opened(s, e) for s, e in zip((x, values), edges, strict=True))
    found = combine(put, x, values, moves=True)
    infinities = [
        torch.zeros_like(s.top.value) if e is None else e for s, e in zip((x, values), edges, strict=True)
    ]
    return add(found, constant_series(put(*infinities)))


@rule("index_fill")
def index_fill(operation: Operation, x: Any, dim: int, index: Tensor, value: Any) -> Series:
    x = as_series(x)
    kept = operation(torch.ones_like(x.top.value, dtype=torch.bool), dim, index, False)
    filling = as_series(value, x)
    find_finite_mask(operation, x, filling)
    return choose(kept, x, filling)


# --- choices -------------------------------------------------------------------------------------------------
@rule("where")
def where(operation: Operation, condition: Any, *branches: Any) -> Any:
    if isinstance(condition, Series):
        condition = condition.sign() != 0
    if not branches:
        return operation(condition)
    known = next(b for b in branches if isinstance(b, Series | Tensor))
    like = as_series(known)
    a, b = (as_series(branch, like) for branch in branches)
    find_finite_mask(operation, a, b)
    return choose(condition, a, b)


@rule("masked_fill")
def masked_fill(operation: Operation, x: Any, mask: Tensor, value: Any) -> Series:
    x = as_series(x)
    filling = as_series(value, x).map(lambda v: v.to(x.top.value.dtype))
    if bool(mask.any()):
        find_finite_mask(operation, x, filling)
    return choose(~mask, x, filling)


@rule("nan_to_num")
def finite(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> Series:
    """Replace masks and NaN by numbers; growing values are finite for every c and stay."""
    top = x.top.value
    kept = torch.isfinite(top)
    if bool(kept.all()):
        return x
    return choose(kept, x, constant_series(operation(top.masked_fill(kept, 0.0), *args, **kwargs)))


def choose(condition: Tensor, a: Series, b: Series) -> Series:
    """Elements of a where the condition holds, else of b; chosen infinite elements stay infinite."""
    edges = [infinite_part(a), infinite_part(b)]
    if edges == [None, None]:
        return combine(lambda x, y: torch.where(condition, x, y), a, b, moves=True)
    a, b = (x if e is None else _opened(x, e) for x, e in zip((a, b), edges, strict=True))
    found = combine(lambda x, y: torch.where(condition, x, y), a, b, moves=True)
    first, second = (found.top.value.new_zeros(()) if e is None else e for e in edges)
    return add(found, constant_series(torch.where(condition, first, second)))


def _opened(x: Series, edge: Tensor) -> Series:
    """The series with zeros in place of its infinite elements."""
    return constant_series(x.top.value.masked_fill(edge != 0, 0.0))


# --- tensors of which only the shape is used -----------------------------------------------------------------
@rule("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "zero")
@rule("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")
def made_like(operation: Operation, x: Series, *args: Any, **kwargs: Any) -> Any:
    return operation(x.top.value, *args, **kwargs)


@rule("fill", "full")
def filled(operation: Operation, x: Any, value: Any) -> Any:
    x = as_series(x)
    if not isinstance(value, Series):
        find_finite_mask(operation, x, as_series(value, x))
        return operation(x.top.value, value)
    return value.map(lambda v: v.to(x.top.value.dtype).expand(x.shape).clone())
