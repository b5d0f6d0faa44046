"""Attention scores whose lower orders are computed only for heads in which rows tie.

Lower orders of all heads at once would take several times the memory of the scores. Instead, the queries and keys are
kept, which are small, together with the factor of the scores and the terms added to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from normgrowth.limit.dispatch import HALVES, Operation
from normgrowth.limit.exponentials import times_constant
from normgrowth.limit.power_series import Series, Term, broadcast_shape, mask_bound, nonzero, product
from normgrowth.limit.rules.arithmetic import find_finite_mask, infinite_part, log_unequal_sum, sum_of_series
from normgrowth.limit.rules.attention import head_groups
from normgrowth.limit.rules.attention.head_groups import Place, four_dimensional, part_of
from normgrowth.limit.rules.attention.ties import sized


def scores_of(
    operation: Operation, q: Series, keys: Series, factor: float, added: Sequence[Series]
) -> Series:
    """Queries times keys times a factor plus the added terms, with all orders. keys: one column per key."""
    scores = sized(product(torch.matmul, q, keys, operation.orders), q, keys)
    scores = scores if factor == 1 else times_constant(scores, factor)
    for x in added:
        scores = sum_of_series(operation, scores, x)
    return scores


def masks_below_the_leading_order(x: Series) -> bool:
    """Whether a term added to the scores masks keys although it is not a constant."""
    given = x.is_constant and not x.top.sources
    return not given and any(float(t.value.amin()) <= mask_bound(t.value.dtype) for t in x.terms)


def leading_scores(operation: Operation, q: Series, keys: Series) -> Series | None:
    """The scores of many queries with deferred lower orders; None if all orders must be computed at once."""
    size = q.shape[:-1].numel() * keys.shape[-1] if len(q.shape) == 3 else 0
    if size <= head_groups.GROUP or operation.orders == 1 or len(q.terms) == len(keys.terms) == 1:
        return None
    if operation.context.exponentials or operation.dtype in HALVES:
        return None
    for x in (q, keys):
        if x.zero or x.top.degree <= 0 or x.exponential is not None or x.doubt or x.exact_zeros or x.diverges:
            return None
    top = torch.bmm(q.top.value, keys.top.value)
    if not nonzero(top):
        return None
    lead = Term(q.top.degree + keys.top.degree, top, q.top.sources | keys.top.sources)
    found = sized(Series((lead,)), _leading(q), _leading(keys))
    return found.changed(unfinished=Scores(operation, _kept(q), _kept(keys), top.shape))


def _leading(x: Series) -> Series:
    return Series(x.terms[:1])


def _kept(x: Series) -> Series:
    """The series with a copy of its leading term, because the network may write to the original tensor."""
    return x.changed(terms=(replace(x.top, value=x.top.value.clone()), *x.terms[1:]), scales=None)


@dataclass(frozen=True)
class Scores:
    """The deferred lower orders of scores: queries, keys, factor and added terms."""

    operation: Operation
    q: Series
    keys: Series
    shape: torch.Size
    factor: float = 1
    added: tuple[Series, ...] = ()

    def finished(self) -> Series:
        return self._orders(self.q, self.keys, self.added)

    def part(self, place: Place) -> Series:
        """All orders of some heads."""
        q, keys, *added = (part_of(x.move(four_dimensional), place) for x in (self.q, self.keys, *self.added))
        return self._orders(q, keys, added)

    def _orders(self, q: Series, keys: Series, added: Sequence[Series]) -> Series:
        sums = self.operation.context.sums
        before = len(sums)
        found = scores_of(self.operation, q, keys, self.factor, added)
        del sums[before:]  # `plus` has already recorded them
        return found

    def viewed(self, shape: torch.Size) -> "Scores | None":
        if shape == self.shape:
            return self
        if self.added or shape[-2:] != self.shape[-2:]:
            return None
        q, keys = (
            x.move(lambda value: value.reshape(*shape[:-2], *value.shape[-2:])) for x in (self.q, self.keys)
        )
        return replace(self, q=q, keys=keys, shape=shape)

    def times(self, factor: float) -> "Scores | None":
        return None if self.added or factor == 0 else replace(self, factor=self.factor * factor)

    def plus(self, scores: Series, other: Series) -> Series | None:
        top = scores.top
        fits = broadcast_shape(top.value.shape, other.shape) == top.value.shape
        if not fits or torch.result_type(top.value, other.top.value) != top.value.dtype:
            return None
        if other.zero:
            return scores
        if other.top.degree >= top.degree or other.doubt or other.exponential is not None or other.diverges:
            return None
        if masks_below_the_leading_order(other):
            return None
        log_unequal_sum(self.operation, scores, other)
        find_finite_mask(self.operation, scores, other)
        if (edge := infinite_part(other)) is not None:
            top = replace(top, value=top.value + edge)
        unfinished = replace(self, added=(*self.added, _kept(other)))
        return scores.changed(terms=(top,), lost=scores.lost or other.lost, unfinished=unfinished)
