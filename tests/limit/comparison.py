"""The limit of a model beside the model itself with its parameters times c: every output of every submodule.

what a hook sees in the limit      c^3 A + c B + ...    (elements may differ in their leading degree)
what it sees in the scaled model   x(c)
errors                             of x(c) / c^k against the coefficient, where the leading degree is k
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from limit.architectures import Case, Double, Inputs, build, inputs
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from normgrowth.limit.growing_parameters import growing_parameters
from normgrowth.limit.power_series import Series, constant_series
from normgrowth.limit.saturated import Limit, saturated

FACTORS = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
MASK = torch.finfo(torch.float64).min / 4  # what is below hides a key; it does not count as a value


@dataclass
class Row:
    """One output of one call of one submodule, where its leading degree is `degree`."""

    module: str
    call: int
    leaf: int
    degree: Fraction | None  # None: exactly zero
    share: float  # of the elements that have this degree
    doubt: bool = False  # a pattern some of whose ties the limit says it left open
    cosines: list[float] = field(default_factory=list)  # 1 - the smallest over the last dimension, per factor
    sizes: list[float] = field(default_factory=list)  # relative error, per factor
    norms: list[float] = field(default_factory=list)  # of the scaled model's output, per factor

    @property
    def cosine(self) -> float:
        return smallest(self.cosines)

    @property
    def size(self) -> float:
        return smallest(self.sizes)

    def agrees(self, cosine: float, size: float, slope: float) -> bool:
        if self.degree is None:
            return not any(self.norms)
        steep = self.slope is not None and abs(self.slope - self.degree) <= slope
        return self.cosine <= cosine and self.size <= size and steep

    @property
    def slope(self) -> float | None:
        """The degree as measured: of log norm against log c, between the last two factors that do not overflow."""
        finite = [(c, n) for c, n in zip(FACTORS, self.norms, strict=True) if math.isfinite(n) and n > 0]
        if len(finite) < 2:
            return None
        (a, x), (b, y) = finite[-2:]
        return math.log(y / x) / math.log(b / a)


def smallest(errors: list[float]) -> float:
    return min((e for e in errors if not math.isnan(e)), default=math.nan)


@dataclass
class Comparison:
    case: Case
    limit: Limit
    rows: list[Row]
    result: Any

    @property
    def output(self) -> Row:
        return next(row for row in self.rows if row.module == "")

    @property
    def main_degrees(self) -> list[tuple[str, Fraction | None]]:
        """Of the first output of each call; of its highest degree."""
        first: dict[tuple[str, int], Row] = {}
        for row in self.rows:
            first.setdefault((row.module, row.call), row)
        return [(row.module, row.degree) for row in first.values()]


@dataclass(frozen=True)
class Seen:
    module: str
    call: int
    leaf: int
    value: Any  # Series in the limit, Tensor otherwise


@contextmanager
def watched(model: nn.Module, whole: bool = False) -> Iterator[list[Seen]]:
    """What every submodule returns, in the order of the calls; with `whole`, the model only."""
    seen: list[Seen] = []
    calls: dict[str, int] = {}

    def look(name: str, result: Any) -> None:
        mode = _get_current_dispatch_mode()
        call = calls[name] = calls.get(name, -1) + 1
        for place, leaf in enumerate(floating(result)):
            value = mode.lift(leaf) if mode is not None else leaf
            with _disable_current_modes():  # a copy: what follows may write in place
                if isinstance(value, Series):
                    value = value.map(torch.clone)
                else:
                    value = constant_series(value.clone()) if mode is not None else value.clone()
            seen.append(Seen(name, call, place, value))

    def restart(*_: Any) -> None:  # the limit may take a second pass, with more orders
        seen.clear()
        calls.clear()

    handles: list[Any] = [model.register_forward_pre_hook(restart)]
    for name, module in [("", model)] if whole else model.named_modules():
        handles.append(module.register_forward_hook(lambda _, __, result, name=name: look(name, result)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def compare(case: Case, orders: int | None = None, **options: Any) -> Comparison:
    model = build(case)
    given = inputs(case, model)
    limit = saturated(model, orders=orders)
    rows, result = compared(limit, Inputs(given.args, given.kwargs | options))
    return Comparison(case, limit, rows, result)


@torch.no_grad()
def compared(limit: Limit, given: Inputs) -> tuple[list[Row], Any]:
    """What every submodule returns, compared with the scaled model, and what the limit returned."""
    model = limit.model
    with Double(), watched(model) as expected:
        result = limit(*given.args, **given.kwargs)
    for one, returned in zip([s for s in expected if s.module == ""], floating(result), strict=True):
        assert torch.equal(leading_value(one.value), returned), "the limit returns what its last hook saw"
    parts = [part for one in expected for part in leading(one)]
    for c in FACTORS:
        scaled = copy.deepcopy(model)
        growing = {name for name, _ in growing_parameters(scaled, limit.fixed)}
        for name, parameter in scaled.named_parameters():
            if name in growing:
                parameter.mul_(c)
        with Double(), watched(scaled) as found:
            scaled(*given.args, **given.kwargs)
        values = {(one.module, one.call, one.leaf): one.value for one in found}
        assert len(values) == len(expected)
        for row, here, coefficient in parts:
            measure(row, here, coefficient, values[row.module, row.call, row.leaf], c)
    return [row for row, _, _ in parts], result


def floating(result: Any) -> list[Tensor]:
    return [
        leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


def leading_value(series: Series) -> Tensor:
    return next((term.value for term in series.terms if bool(term.value.any())), series.top.value)


def leading(seen: Seen) -> Iterator[tuple[Row, Tensor, Tensor]]:
    """A row for each leading degree that elements have; that of the highest takes in all elements."""
    terms = [term for term in seen.value.terms if bool(term.value.any())]
    place = seen.module, seen.call, seen.leaf
    if not terms:
        zeros = seen.value.top.value
        yield Row(*place, None, 1.0), torch.ones_like(zeros, dtype=torch.bool), zeros
    open_ = torch.ones_like(terms[0].value, dtype=torch.bool) if terms else torch.ones(())
    for order, term in enumerate(terms):
        here = open_ & (term.value != 0)
        if here.any():
            share = float(here.double().mean())
            row = Row(*place, term.degree, share, seen.value.doubt)
            yield row, open_ if order == 0 else here, term.value
        open_ = open_ & ~here


def measure(row: Row, here: Tensor, coefficient: Tensor, value: Tensor, c: float) -> None:
    masked = coefficient < MASK
    assert torch.equal(masked & here, (value < MASK) & here), f"{row.module} masks other keys than its limit"
    here = here & ~masked
    x = torch.where(here, value, 0.0)
    y = torch.where(here, coefficient, 0.0)
    if row.doubt:  # how tied keys share is open, not which keys they are
        y = torch.where(y != 0, x, 0.0)
    row.norms.append(float(x.norm()))
    if row.degree is None:
        row.cosines.append(0.0)
        row.sizes.append(float(x.norm()))
        return
    x = x / torch.tensor(c, dtype=torch.float64) ** float(
        row.degree
    )  # infinite, where a float would overflow
    row.sizes.append(float((x - y).norm() / y.norm()))
    x, y = (t.reshape(-1, t.shape[-1]) if t.dim() else t.reshape(1, 1) for t in (x, y))
    cosines = torch.nn.functional.cosine_similarity(x, y, dim=-1, eps=0.0)[y.norm(dim=-1) != 0]
    row.cosines.append(float((1 - cosines.min()).clamp(min=0.0)))  # NaN stays NaN
