"""The weights (shares) of keys in the limit: keys with the largest score, with ties broken by lower orders."""

from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation
from normgrowth.limit.exponentials import summed_over
from normgrowth.limit.power_series import ZERO, Exponential, Series, Term, combine, hides, highest
from normgrowth.limit.rules.attention.ties import TieCounts, count_of_rows, scale_of, tolerances, winners_of


def shares_of(operation: Operation, x: Series, dim: int, counts: TieCounts) -> Series:
    """The weights of keys from all orders down to degree 0; adds the numbers of ties to `counts`."""
    positive = [term for term in x.terms if term.degree > 0]
    level = x.at(ZERO)
    alive, closed = _seen(x, dim)
    if not positive:
        value = torch.zeros_like(x.top.value) if level is None else level
        if alive is not None:
            value = value.masked_fill(~alive, float("-inf"))
        return Series((Term(ZERO, torch.softmax(value, dim), x.sources),), _below_zero(x))
    visible, sources = alive, 0
    led: Tensor | None = None  # scores whose leading term was processed
    open_rows = tied = None  # rows with an undecided tie, and the keys that tie there
    for place, term in enumerate(positive):
        sources |= term.sources
        value = _only(term.value, alive)
        scale = scale_of(x, term.degree, dim)
        tolerance = tolerances(operation.context, _only(term.value, visible), dim, scale)
        winners, near = winners_of(value, tolerance, dim)
        if alive is not None:
            winners &= alive
        count = count_of_rows(winners, dim)
        if closed is not None:
            count = count.masked_fill(closed.squeeze(dim), 1)  # fully masked rows have no tie
        open_ = count > 1
        if place == 0:
            counts.rows, counts.tied, counts.near = count.numel(), int(open_.sum()), near
        alive = winners
        if not counts.tied or not bool(open_.any()):
            break
        led = term.value != 0 if led is None else led | (term.value != 0)
        following = positive[place + 1].degree if place + 1 < len(positive) else ZERO
        if x.rest is not None and x.rest >= following:
            # Omitted orders may come before the next term, but they are always below the leading term.
            rows = (open_ & (winners & led).any(dim)).unsqueeze(dim)
            tied = (
                winners
                if tied is None or open_rows is None
                else torch.where(rows & ~open_rows, winners, tied)
            )
            open_rows = rows if open_rows is None else open_rows | rows
    assert alive is not None
    found = alive.to(x.top.value.dtype)
    several = found.sum(dim, keepdim=True)
    rest = None
    if counts.tied and level is not None:
        found = torch.softmax(_only(level, alive), dim)
        counts.uniform = int(((several > 1) & _equal(level, alive, dim)).sum())
        sources |= _sources_at(x, ZERO)
    else:
        found /= several
        counts.uniform = int((several > 1).sum()) if counts.tied else 0
    if counts.tied:
        rest = _below_zero(x) if bool((several > 1).any()) else None
    shares = Series((Term(ZERO, found, sources),), rest)
    if tied is not None and open_rows is not None and (undecided := int(open_rows.sum())):
        counts.undecided = undecided
        equal = tied / tied.sum(dim, keepdim=True)
        shares = replace(shares, doubt=True, tied=torch.where(open_rows, equal.to(found.dtype), found))
    if operation.context.exponentials:
        part, several = _left_behind(x, found, visible, dim)
        known = not (x.lost or x.exponential is not None)
        known = known or (bool(positive) and not counts.tied)  # small parts do not change a growing distance
        shares = replace(shares, exponential=part, lost=several or not known)
    return shares


def _left_behind(x: Series, shares: Tensor, visible: Tensor | None, dim: int) -> tuple[Exponential, bool]:
    """The exponentially small weights exp(-(largest - score)) of losing keys, and their effect on the winners.

    Also returns whether an omitted order might change the winners.
    """
    best = shares.argmax(dim, keepdim=True)
    open_ = x.map(lambda value: _only(value, visible).nan_to_num(neginf=0.0))
    behind = combine(
        lambda a, b: b - a, open_, open_.map(lambda value: value.gather(dim, best).expand(x.shape))
    )
    loses = shares == 0 if visible is None else (shares == 0) & visible
    weight = torch.where(loses, shares.gather(dim, best), shares.new_zeros(()))
    taken, several, _ = summed_over(Exponential(weight, behind), [dim % weight.dim()], keep=True)
    winners = (shares > 0).expand(x.shape)
    decay = combine(
        lambda a, b: torch.where(winners, a, b), taken.decay.map(lambda v: v.expand(x.shape)), behind
    )
    weight = torch.where(winners, -shares * taken.weight, weight)
    part = Exponential(weight, replace(decay, lost=False), object())
    return part, several


def _only(value: Tensor, alive: Tensor | None) -> Tensor:
    return value if alive is None else value.masked_fill(~alive, float("-inf"))


def _sources_at(x: Series, degree: Fraction) -> int:
    return next((term.sources for term in x.terms if term.degree == degree), 0)


def _seen(x: Series, dim: int) -> tuple[Tensor | None, Tensor | None]:
    """The visible keys, and the fully masked rows, where all keys count as visible, as in softmax; None if no mask."""
    hidden: Tensor | None = None
    for term in x.terms:
        here = hides(term.value)
        hidden = here if hidden is None else hidden | here
    assert hidden is not None
    if not bool(hidden.any()):
        return None, None
    closed = hidden.all(dim, keepdim=True)
    return ~hidden | closed, closed if bool(closed.any()) else None


def _equal(level: Tensor, alive: Tensor, dim: int) -> Tensor:
    most = level.masked_fill(~alive, float("-inf")).amax(dim, keepdim=True)
    least = level.masked_fill(~alive, float("inf")).amin(dim, keepdim=True)
    return most == least


def _below_zero(x: Series) -> Fraction | None:
    """The highest omitted degree of the weights; at most 0, because weights are bounded."""
    return highest(
        *(min(d, ZERO) for d in (*(t.degree for t in x.terms if t.degree < 0), x.rest) if d is not None)
    )
