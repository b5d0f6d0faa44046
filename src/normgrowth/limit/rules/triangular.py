"""The rule for triangular systems of linear equations."""

from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.power_series import Series, combine, product
from normgrowth.limit.rules.arithmetic import as_series, sum_of_series
from normgrowth.limit.rules.elementwise.powers import division


@rule("linalg_solve_triangular")
def solution(
    operation: Operation, a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Series:
    """The solution X of A X = B or X A = B, by substitution row by row."""
    a, b = as_series(a), as_series(b)
    if not left:  # the transposed system
        a, b = (x.move(lambda value: value.transpose(-1, -2)) for x in (a, b))
        upper = not upper
    if upper:  # the last row first
        a = a.move(lambda value: value.flip(-1, -2))
        b = b.move(lambda value: value.flip(-2))
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x.move(lambda value: value.expand(*batch, *value.shape[-2:])) for x in (a, b))
    rows: Series | None = None
    for i in range(a.shape[-1]):
        row = _rows(b, i, 1)
        if rows is not None:
            factors = _rows(a, i, 1).move(lambda value, i=i: value[..., :i])
            row = sum_of_series(operation, row, product(torch.matmul, factors, rows, operation.orders), -1)
        if not unitriangular:
            row = division(operation, row, _rows(a, i, 1).move(lambda value, i=i: value[..., i : i + 1]))
        rows = row if rows is None else combine(_below, rows, row, moves=True)
    assert rows is not None
    if upper:
        rows = rows.move(lambda value: value.flip(-2))
    return rows if left else rows.move(lambda value: value.transpose(-1, -2))


def _rows(x: Series, start: int, count: int) -> Series:
    return x.move(lambda value: value.narrow(-2, start, count))


def _below(above: Tensor, row: Tensor) -> Tensor:
    return torch.cat([above, row], -2)
