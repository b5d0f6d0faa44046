"""Rules for softmax and its logarithm."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.pass_log import Tie
from normgrowth.limit.power_series import (
    ZERO,
    Series,
    Term,
    hides,
    highest,
    mask_bound,
    with_all_orders,
    without_zeros,
)
from normgrowth.limit.rules.arithmetic import add
from normgrowth.limit.rules.attention.head_groups import Place, at, four_dimensional, groups, one_hot, part_of
from normgrowth.limit.rules.attention.shares import shares_of
from normgrowth.limit.rules.attention.ties import SMALL, TieCounts, rounding_unit, scale_of


@rule("_softmax", "_safe_softmax", unfinished=True)
def softmax(operation: Operation, x: Any, dim: int, *_: Any) -> Series | Tensor:
    if not isinstance(x, Series):  # attention_only: the scores grow, the network does not
        return distribution(operation, Series((Term(ZERO + 1, x, 0),)), dim).top.value
    found = distribution(operation, x, dim)
    if operation.name == "_softmax":
        return found
    closed = torch.stack([hides(term.value) for term in x.terms]).any(0).all(dim, keepdim=True)
    return found.only(~closed) if bool(closed.any()) else found


def distribution(operation: Operation, x: Series, dim: int) -> Series:
    """Softmax of c^k v + c^j w + ...

    The highest positive order keeps only its largest entries; the next positive order breaks ties, and so on. The
    remaining entries are weighted by the softmax of their part of degree 0. Lower orders have no effect.
    """
    counts = TieCounts()
    rank = len(x.shape)
    if operation.context.exponentials or x.top.degree <= 0 or not 0 < rank <= 4 or dim % rank != rank - 1:
        shares = shares_of(operation, with_all_orders(x), dim, counts)
    else:
        shares = _by_groups(operation, x, counts)
    if counts.tied:
        operation.context.ties.append(Tie(operation.context.module, **vars(counts)))
    return shares


def _by_groups(operation: Operation, x: Series, counts: TieCounts) -> Series:
    """Softmax over the last dimension, for some heads at a time."""
    whole = x.map(four_dimensional)
    found = torch.empty(whole.shape, dtype=whole.top.value.dtype, device=whole.top.value.device)
    sources, rest = x.top.sources, None
    undecided: list[tuple[Place, Tensor]] = []
    simple = not any(float(term.value.amin()) <= mask_bound(term.value.dtype) for term in x.terms[1:])
    for place in groups(whole.shape):
        scores, target = at(whole.top.value, place), at(found, place)
        counts.rows += target.shape[:-1].numel()
        scale = scale_of(part := part_of(whole, place), x.top.degree, -1)
        unit = rounding_unit(operation.context, scores.dtype)
        if simple and one_hot(scores, target, unit, None, None if scale is None else scale / SMALL):
            continue
        if x.unfinished is not None:
            part = x.unfinished.part(place)
        shares = shares_of(operation, part, -1, here := TieCounts())
        target.copy_(shares.top.value)
        counts.add(here)
        sources, rest = sources | shares.sources, highest(rest, shares.rest)
        if shares.tied is not None:
            undecided.append((place, shares.tied))
    tied = found.clone() if undecided else None
    for place, values in undecided:
        at(found if tied is None else tied, place).copy_(values)
    return Series(
        (Term(ZERO, found.view(x.shape), sources),),
        rest,
        doubt=bool(undecided),
        tied=None if tied is None else tied.view(x.shape),
    )


@rule("_log_softmax")
def log_softmax(operation: Operation, x: Series, dim: int, *_: Any) -> Series:
    """x minus its largest entry, minus the logarithm of the number of ties."""
    if x.top.degree <= 0:
        level = x.at(ZERO)
        found = distribution(operation, x, dim)
        value = torch.zeros_like(x.top.value) if level is None else level
        return found.map(lambda _: torch.log_softmax(value, dim))
    found = distribution(operation, x, dim)
    if found.doubt:  # which entry is the largest determines the logarithms of all
        operation.context.doubtful += operation.context.ties[-1].undecided
    shares = found.top.value
    winner = shares.argmax(dim, keepdim=True)
    largest = x.map(lambda value: value.gather(dim, winner))
    away = _without_rounding(operation, add(x, largest, -1), x, shares > 0, dim)
    return add(away, Series((Term(ZERO, shares.amax(dim, keepdim=True).log(), 0),), lost=True))


def _without_rounding(operation: Operation, away: Series, x: Series, tied: Tensor, dim: int) -> Series:
    """The distances to the largest entry: 0 for tied entries, whose distance is rounding, which must not grow.

    Entries that are as near, but do not tie, are counted.
    """
    if away.zero:
        return away
    size = x.top.value.masked_fill(hides(x.top.value), 0.0).abs().amax(dim, keepdim=True)
    noise = SMALL * operation.context.eps(size.dtype) * size
    top = away.at(x.top.degree)
    if top is not None and (count := int(((top != 0) & (top.abs() <= noise) & ~tied).sum())):
        operation.context.cancelled[operation.context.module] += count
    terms = [
        replace(term, value=term.value.masked_fill(tied, 0.0)) if term.degree > 0 else term
        for term in away.terms
    ]
    found = without_zeros(terms, away.rest)
    return away.changed(terms=found.terms, rest=found.rest, zero=found.zero)
