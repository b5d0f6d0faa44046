"""Rules for matrix products and convolutions."""

from fractions import Fraction
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import times_constant
from normgrowth.limit.power_series import Series, Term, decided, highest, product
from normgrowth.limit.rules.arithmetic import (
    add,
    as_series,
    count_cancelled_sums,
    log_unequal_sum,
    scaled_series,
    shortened_series,
    sum_of_series,
)
from normgrowth.limit.rules.attention.scores import leading_scores
from normgrowth.limit.rules.attention.ties import sized, weigh


@rule("mm", "bmm", "mv", "dot")
def matrix_product(operation: Operation, a: Any, b: Any) -> Series:
    a, b = as_series(a), as_series(b)
    _weigh_either(operation, a, b)
    if operation.name == "bmm" and (found := leading_scores(operation, a, b)) is not None:
        return found
    found = sized(product(operation.func, a, b, operation.orders), a, b)
    _count_cancelled(operation, operation.func, found, a, b)
    if (a.exact_zeros or b.exact_zeros) and _sums_of_zeros(operation, found, a, b):
        return found.changed(exact_zeros=True)
    return found


def _weigh_either(operation: Operation, a: Series, b: Series) -> None:
    if a.doubt:
        weigh(operation, a, b)
    if b.doubt:
        weigh(operation, *(x.map(lambda v: v.transpose(-1, -2) if v.dim() > 1 else v) for x in (b, a)))


def _count_cancelled(operation: Operation, f: Any, found: Series, a: Series, b: Series) -> None:
    """Count sums whose leading products cancel to 0 although an omitted order may remain."""
    if found.zero:
        return

    pairs: dict[Fraction, list[tuple[Term, Term]]] = {}
    for s in a.terms:
        for t in b.terms:
            pairs.setdefault(s.degree + t.degree, []).append((s, t))

    def entered(degree: Fraction) -> Tensor:
        here = [f(*((term.value != 0).to(torch.float32) for term in pair)) for pair in pairs[degree]]
        return reduce(torch.add, here)

    entering = [(degree, partial(entered, degree)) for degree in sorted(pairs, reverse=True)]
    count_cancelled_sums(operation, found, entering)


def _sums_of_zeros(operation: Operation, found: Series, a: Series, b: Series) -> bool:
    """Whether each element that is 0 is a sum of products with exact zeros, not a sum that cancels."""
    zeros = found.vanishes()
    if not bool(zeros.any()):
        return True
    counts = [
        (~x.vanishes() if x.exact_zeros else torch.ones_like(x.top.value)).to(torch.float32) for x in (a, b)
    ]
    return not bool((zeros & (operation(*counts) > 0)).any())


@rule("_grouped_mm")
def grouped_product(
    operation: Operation, a: Any, b: Any, offs: Any = None, bias: Any = None, *_: Any
) -> Series:
    """Each expert's rows times its matrix. Computed in a loop, because the kernel does not support float64."""
    a, b = as_series(a), as_series(b)
    if offs is None or len(a.shape) != 2 or len(b.shape) != 3 or bias is not None:
        raise operation.refuse("only grouped rows times one matrix per group, without a bias, have a rule")
    ends = offs.tolist()

    def grouped(x: Tensor, y: Tensor) -> Tensor:
        found = x.new_zeros(x.shape[0], y.shape[-1])
        for expert, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            found[start:end] = x[start:end] @ y[expert]
        return found

    return product(grouped, a, b, operation.orders)


@rule("addmm", "addmv", "baddbmm")
def product_and_sum(
    operation: Operation, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **_: Any
) -> Series:
    a, b = as_series(a), as_series(b)
    _weigh_either(operation, a, b)
    found = sized(product(torch.matmul, a, b, operation.orders), a, b)
    _count_cancelled(operation, torch.matmul, found, a, b)
    found = found if alpha == 1 else times_constant(found, alpha)
    x = as_series(x) if beta == 1 else scaled_series(as_series(x), beta)
    if x.zero and len(x.shape) == 1:
        return shortened_series(found, operation.orders)
    # The bias of a linear map usually vanishes, but a term added to scores (ALiBi) may break a tie.
    bias = x.top.value.dim() == 1
    if bias and operation.orders == 1 and not (x.zero or found.zero) and x.top.degree < found.top.degree:
        log_unequal_sum(operation, found, x)
        if decided([found.top.value]):
            lower = highest(x.top.degree, x.rest, found.rest, *(t.degree for t in found.terms[1:]))
            return Series(found.terms[:1], lower)
        return shortened_series(add(found, x), 1)
    found = sum_of_series(operation, found, x)
    return shortened_series(found, operation.orders) if bias else found


@rule("convolution", "_convolution")
def convolution(operation: Operation, x: Any, weight: Any, bias: Any, *args: Any) -> Series:
    x, weight = as_series(x), as_series(weight)

    def convolved(a: Tensor, b: Tensor) -> Tensor:
        return operation(a, b, None, *args)

    found = product(convolved, x, weight, operation.orders)
    _count_cancelled(operation, convolved, found, x, weight)
    if bias is None:
        return found
    shape = (1, -1, *[1] * (len(found.shape) - 2))
    return shortened_series(
        sum_of_series(operation, found, as_series(bias).map(lambda v: v.view(shape))), operation.orders
    )


@rule("_trilinear")
def trilinear_form(operation: Operation, a: Any, b: Any, c: Any, *dims: Any, **_: Any) -> Series:
    """sum(a · b · c), each with inserted dimensions: `nn.Bilinear`, whose weight is b. dims: a's, b's, c's, summed."""
    count = len(as_series(a).shape) + len(dims[0])
    added = [[d % count for d in some] for some in dims[:4]]
    left, weight, right = ([d for d in range(count) if d not in some] for some in added[:3])
    kept = [d for d in range(count) if d not in added[3]]
    outer = [d for d in range(count) if d in left or d in right]

    def pairs(x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum(x, left, y, right, outer)

    def summed(x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum(x, outer, y, weight, kept)

    a, b, c = (as_series(x) for x in (a, b, c))
    whole = len(a.terms) * len(c.terms)  # all orders, because the sum may cancel leading terms
    both = product(pairs, a, c, whole)
    found = product(summed, both, b, operation.orders)
    _count_cancelled(operation, summed, found, both, b)
    return found
