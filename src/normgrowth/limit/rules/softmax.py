"""Rules for softmax, and attention built on it: what wins as c grows."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.exponentials import summed_over, times
from normgrowth.limit.pass_log import Context, Tie
from normgrowth.limit.rules.arithmetic import (
    add,
    find_finite_mask,
    mask_of,
    note,
    series,
    sized,
    summed,
    weigh,
)
from normgrowth.limit.rules.head_groups import WHOLE, at, four_dimensional, groups, one_hot, part_of
from normgrowth.limit.series import (
    ZERO,
    Exponential,
    Series,
    Term,
    combine,
    hides,
    highest,
    mask_bound,
    product,
)

SMALL = (
    16  # scores of random queries and keys are some tenth of |q||k|: below a 16th they are small by accident
)


@rule("_softmax", "_safe_softmax")
def softmax(operation: Operation, x: Any, dim: int, *_: Any) -> Series | Tensor:
    if not isinstance(x, Series):  # heads alone are made hard: scores are scaled, the network is not
        return distribution(operation, Series((Term(ZERO + 1, x, 0),)), dim).top.value
    return distribution(operation, x, dim)


def distribution(operation: Operation, x: Series, dim: int) -> Series:
    """Softmax of c^k v + c^j w + ...

    The highest positive order leaves its largest entries; among those that tie the next positive order decides,
    and so on. What is of degree 0 weighs the ones that are left by its own softmax. Nothing lower counts.
    """
    score = Score()
    rank = len(x.shape)
    if operation.context.exponentials or x.top.degree <= 0 or not 0 < rank <= 4 or dim % rank != rank - 1:
        shares = _decided(operation, x, dim, score)
    else:
        shares = _by_groups(operation, x, score)
    if score.tied:
        operation.context.ties.append(Tie(operation.context.module, **vars(score)))
    return shares


def _by_groups(operation: Operation, x: Series, score: "Score") -> Series:
    """Over the last dimension, some heads at a time."""
    whole = x.map(four_dimensional)
    found = torch.empty(whole.shape, dtype=whole.top.value.dtype, device=whole.top.value.device)
    sources, rest, doubt = x.top.sources, None, False
    simple = not any(float(term.value.amin()) <= mask_bound(term.value.dtype) for term in x.terms[1:])
    for place in groups(whole.shape):
        scores, target = at(whole.top.value, place), at(found, place)
        score.rows += target.shape[:-1].numel()
        scale = _scale(part := part_of(whole, place), x.top.degree, -1)
        unit = _unit(operation.context, scores.dtype)
        if simple and one_hot(scores, target, unit, None, None if scale is None else scale / SMALL):
            continue
        shares = _decided(operation, part, -1, here := Score())
        target.copy_(shares.top.value)
        score.add(here)
        sources, rest, doubt = sources | shares.sources, highest(rest, shares.rest), doubt or shares.doubt
    return Series((Term(ZERO, found.view(x.shape), sources),), rest, doubt=doubt)


def _decided(operation: Operation, x: Series, dim: int, score: "Score") -> Series:
    """By every order that counts, and how many rows tied on the way."""
    positive = [term for term in x.terms if term.degree > 0]
    level = x.at(ZERO)
    alive, closed = _seen(x, dim)
    if not positive:
        value = torch.zeros_like(x.top.value) if level is None else level
        if alive is not None:
            value = value.masked_fill(~alive, float("-inf"))
        return Series((Term(ZERO, torch.softmax(value, dim), x.sources),), _below_zero(x))
    visible, sources = alive, 0
    for place, term in enumerate(positive):
        sources |= term.sources
        value = _only(term.value, alive)
        scale = _scale(x, term.degree, dim)
        tolerance = _tolerance(operation.context, _only(term.value, visible), dim, scale)
        winners, near = _winners(value, tolerance, dim)
        if alive is not None:
            winners &= alive
        count = _count(winners, dim)
        if closed is not None:
            count = count.masked_fill(closed.squeeze(dim), 1)  # nothing to see there, and nothing to tell
        open_ = count > 1
        if place == 0:
            score.rows, score.tied, score.near = count.numel(), int(open_.sum()), near
        alive = winners
        if not score.tied or not bool(open_.any()):
            break
        following = positive[place + 1].degree if place + 1 < len(positive) else ZERO
        if x.rest is not None and x.rest >= following and not score.undecided:
            # What was left out comes before what is looked at next; but a score of exactly 0 has no lower orders.
            score.undecided = int((open_ & _differs_from_zero(x, visible, dim)).sum())
    assert alive is not None
    found = alive.to(x.top.value.dtype)
    several = found.sum(dim, keepdim=True)
    rest = None
    if score.tied and level is not None:
        found = torch.softmax(_only(level, alive), dim)
        score.uniform = int(((several > 1) & _equal(level, alive, dim)).sum())
        sources |= _sources_at(x, ZERO)
    else:
        found /= several
        score.uniform = int((several > 1).sum()) if score.tied else 0
    if score.tied:
        rest = _below_zero(x) if bool((several > 1).any()) else None
    shares = Series((Term(ZERO, found, sources),), rest, doubt=score.undecided > 0)
    if operation.context.exponentials:
        shares = replace(shares, exponential=_left_behind(x, found, visible, dim), lost=x.lost)
    return shares


def _left_behind(x: Series, shares: Tensor, visible: Tensor | None, dim: int) -> Exponential:
    """What other keys keep, exp(-(largest - score)), and what that takes away from those that win."""
    best = shares.argmax(dim, keepdim=True)
    open_ = x.map(lambda value: _only(value, visible).nan_to_num(neginf=0.0))
    behind = combine(
        lambda a, b: b - a, open_, open_.map(lambda value: value.gather(dim, best).expand(x.shape))
    )
    loses = shares == 0 if visible is None else (shares == 0) & visible
    weight = torch.where(loses, shares.gather(dim, best), shares.new_zeros(()))
    taken = summed_over(Exponential(weight, behind), [dim % weight.dim()], keep=True)
    winners = (shares > 0).expand(x.shape)
    decay = combine(
        lambda a, b: torch.where(winners, a, b), taken.decay.map(lambda v: v.expand(x.shape)), behind
    )
    return Exponential(torch.where(winners, -shares * taken.weight, weight), replace(decay, lost=False))


@dataclass
class Score:
    """The counts of a Tie, as they are found."""

    rows: int = 0
    tied: int = 0
    near: int = 0
    uniform: int = 0
    undecided: int = 0

    def add(self, other: "Score") -> None:
        """The ties of other rows; rows are counted once, by whoever goes through them."""
        self.tied += other.tied
        self.near += other.near
        self.uniform += other.uniform
        self.undecided += other.undecided


def _only(value: Tensor, alive: Tensor | None) -> Tensor:
    return value if alive is None else value.masked_fill(~alive, float("-inf"))


def _sources_at(x: Series, degree: Fraction) -> int:
    return next((term.sources for term in x.terms if term.degree == degree), 0)


def _winners(value: Tensor, tolerance: Tensor, dim: int) -> tuple[Tensor, int]:
    """The largest entries of each row, and how many rows have some that are equal within the tolerance only.

    Equal keys tie in every row, and rounding parts them. Keys that come close in one row and differ in others
    are not equal: there the larger one wins.
    """
    largest = value.amax(dim, keepdim=True)
    winners = value >= largest - tolerance
    exact = value == largest
    near = (_count(winners, dim) > _count(exact, dim)) & torch.isfinite(largest).squeeze(dim)
    count = int(near.sum())
    if not count:
        return winners, 0
    if dim % value.dim() != value.dim() - 1 or value.dim() < 2 or value.shape[-2] < 2:  # no other rows to ask
        return value >= largest - tolerance / 16, count
    at = near.nonzero()
    row = value[tuple(at.T)]
    best = row.argmax(-1)
    other = torch.where(winners[tuple(at.T)], row, float("inf")).argmin(-1)
    matrices = value.transpose(-1, -2)  # a row for each key
    heads = tuple(at[:, :-1].T)
    apart = (matrices[(*heads, best)] - matrices[(*heads, other)]).abs().nan_to_num(0.0, posinf=0.0)
    room = tolerance.squeeze(-1)[heads] if heads else tolerance.squeeze(-1).expand(len(at), -1)
    distinct = (apart > 16 * room).any(-1)
    chosen = tuple(at[distinct].T)
    winners[chosen] = exact[chosen]
    return winners, count


def _count(chosen: Tensor, dim: int) -> Tensor:
    """How many of each row; by way of float32, since a sum of booleans goes by way of int64."""
    return chosen.to(torch.float32).sum(dim)


def _differs_from_zero(x: Series, visible: Tensor | None, dim: int) -> Tensor:
    """Rows with a score that is not exactly 0."""
    found: Tensor | None = None
    for term in x.terms:
        value = term.value if visible is None else term.value.masked_fill(~visible, 0.0)
        found = value != 0 if found is None else found | (value != 0)
    assert found is not None
    return found.any(dim)


def _seen(x: Series, dim: int) -> tuple[Tensor | None, Tensor | None]:
    """Where nothing masks, and which rows are masked whole (these are open as a whole, as softmax has it)."""
    hidden: Tensor | None = None
    for term in x.terms:
        here = hides(term.value)
        hidden = here if hidden is None else hidden | here
    assert hidden is not None
    if not bool(hidden.any()):
        return None, None
    closed = hidden.all(dim, keepdim=True)
    return ~hidden | closed, closed if bool(closed.any()) else None


def _scale(x: Series, degree: Fraction, dim: int) -> Tensor | None:
    """What the scores of each matrix were summed from, in size; None if that is not known."""
    found = None if x.scales is None else x.scales.get(degree)
    outer = x.shape[:-2]
    if found is None or dim % len(x.shape) != len(x.shape) - 1 or found.numel() != outer.numel():
        return None
    return found.reshape(*outer, 1, 1)


def _tolerance(context: Context, value: Tensor, dim: int, scale: Tensor | None) -> Tensor:
    """Units of rounding of the largest score, in size, of a row.

    Equal tokens come out of a few layers some hundred units apart, in float32 and float64. In bfloat16 scores are so
    coarse that 1 to 6 rows in 100 tie by themselves, and a tolerance would tie every second one: no unit is larger
    than float32's, so that in 16 bits a tie is equality.
    """
    value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
    size = torch.maximum(-value.amin(dim, keepdim=True), value.amax(dim, keepdim=True))
    if scale is not None:  # scores far below what they are summed from round by more
        size = torch.maximum(size, scale / SMALL)
    return size * _unit(context, value.dtype)


def _unit(context: Context, dtype: torch.dtype) -> float:
    return context.tolerance * min(context.eps(dtype), torch.finfo(torch.float32).eps)


def _equal(level: Tensor, alive: Tensor, dim: int) -> Tensor:
    most = level.masked_fill(~alive, float("-inf")).amax(dim, keepdim=True)
    least = level.masked_fill(~alive, float("inf")).amin(dim, keepdim=True)
    return most == least


def _below_zero(x: Series) -> Fraction | None:
    """The highest order that changes the shares: they are bounded, so none is above 0."""
    return highest(
        *(min(d, ZERO) for d in (*(t.degree for t in x.terms if t.degree < 0), x.rest) if d is not None)
    )


@rule("_log_softmax")
def log_softmax(operation: Operation, x: Series, dim: int, *_: Any) -> Series:
    """x minus its largest entry, minus the logarithm of how many share it."""
    if x.top.degree <= 0:
        level = x.at(ZERO)
        found = distribution(operation, x, dim)
        value = torch.zeros_like(x.top.value) if level is None else level
        return found.map(lambda _: torch.log_softmax(value, dim))
    shares = distribution(operation, x, dim).top.value
    winner = shares.argmax(dim, keepdim=True)
    largest = x.map(lambda value: value.gather(dim, winner))
    return add(add(x, largest, -1), Series((Term(ZERO, shares.amax(dim, keepdim=True).log(), 0),)))


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def fused_attention(operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """Scores, softmax, values; the other results of the kernel serve its gradient only."""
    given = operation.named(args[1:], kwargs) | ({"query": args[0]} if args else {})
    if given.get("dropout_p"):
        raise operation.refuse("dropout is on; call model.eval() first")
    found = attention(
        operation,
        series(given["query"]),
        series(given["key"]),
        series(given["value"]),
        given.get("attn_mask", given.get("attn_bias")),
        bool(given.get("is_causal", False)),
        given.get("scale"),
    )
    plain = torch.zeros(0)
    count = len(operation.func._schema.returns)
    if operation.context.attention_only:
        found = found.top.value
    return (found, *[plain] * (count - 1))


def attention(
    operation: Operation, q: Series, k: Series, v: Series, mask: Any, causal: bool, scale: float | None
) -> Series:
    """Some heads at a time: at no time are there scores of all."""
    factor = float(q.shape[-1] ** -0.5 if scale is None else scale)
    if operation.context.attention_only:
        q = Series((Term(ZERO + 1, q.top.value, q.sources),))
    if (count := q.shape[-3] // k.shape[-3]) > 1:
        k, v = (x.map(lambda value: value.repeat_interleave(count, -3)) for x in (k, v))
    added: list[Series] = [] if mask is None else [_additive(mask, q.top.value.dtype)]
    if causal:
        ones = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.top.value.device)
        added.append(_additive(ones.tril(), q.top.value.dtype))
    whole = (*q.shape[:-1], v.shape[-1])
    q, k, v, *added = (x if len(x.shape) == 4 else x.map(four_dimensional) for x in (q, k, v, *added))
    sums = operation.context.sums
    before = len(sums)
    leads = _leads(operation, q, k, added)
    hiding = _hiding(added) if leads else None
    parts, score = [], Score()
    for place in groups(torch.Size((*q.shape[:3], k.shape[2]))):
        group = [x if place is WHOLE else part_of(x, place) for x in (q, k, v, *added)]
        hidden = None if hiding is None else at(hiding, place)
        parts.append(_attended(operation, group, factor, leads, hidden, score))
    sums[before:] = dict.fromkeys(sums[before:])  # one sum, if of many heads
    if score.tied:
        operation.context.ties.append(Tie(operation.context.module, **vars(score)))
    if len(parts) == 1:
        return parts[0].map(lambda value: value.reshape(whole))
    return combine(lambda *values: torch.cat([value.flatten(0, 1) for value in values]).view(whole), *parts)


def _leads(operation: Operation, q: Series, k: Series, added: list[Series]) -> bool:
    """Whether q times k is the leading order of the scores, and all that hides keys is known beforehand."""
    degree = q.top.degree + k.top.degree
    if operation.context.exponentials or q.zero or k.zero or degree <= 0:
        return False
    for x in added:
        constant = x.is_constant and not x.top.sources
        masks = not constant and any(float(t.value.amin()) <= mask_bound(t.value.dtype) for t in x.terms)
        if x.top.degree >= degree or masks:
            return False
    for x in added:
        scores = Series((Term(degree, q.top.value, q.top.sources | k.top.sources),))  # but for its values
        note(operation, scores, x)
        find_finite_mask(operation, scores, x)
    return True


def _hiding(added: list[Series]) -> Tensor | None:
    """0 where a key is seen, minus infinity where it is hidden; to be added to scores."""
    found = None
    for x in added:
        if (hidden := mask_of(x)) is not None:
            here = torch.zeros_like(x.top.value).masked_fill_(hidden, float("-inf"))
            found = here if found is None else found + here
    return found


def _attended(
    operation: Operation, group: list[Series], factor: float, leads: bool, hidden: Tensor | None, score: Score
) -> Series:
    q, k, v, *added = group
    keys = k.map(lambda value: value.transpose(-1, -2))
    score.rows += q.shape[:-1].numel()
    shares = _unrivaled(operation, q, keys, factor, hidden) if leads else None
    if shares is None:
        scores = times(sized(product(torch.matmul, q, keys, operation.orders), q, keys), factor)
        for x in added:
            scores = summed(operation, scores, x)
        shares = _decided(operation, scores, -1, here := Score())
        score.add(here)
    if shares.doubt:
        weigh(operation, shares, v)
    return product(torch.matmul, shares, v, operation.orders)


def _unrivaled(
    operation: Operation, q: Series, keys: Series, factor: float, hidden: Tensor | None
) -> Series | None:
    """Shares where every row has one largest score: no order but the leading one is looked at."""
    scores = torch.matmul(q.top.value, keys.top.value).mul_(factor)
    shares = torch.empty_like(scores)
    degree = q.top.degree + keys.top.degree
    leading = (Series(x.terms[:1]) for x in (q, keys))
    scale = _scale(times(sized(Series((Term(degree, scores, 0),)), *leading), factor), degree, -1)
    unit = _unit(operation.context, scores.dtype)
    if not one_hot(scores, shares, unit, hidden, None if scale is None else scale / SMALL):
        return None
    return Series((Term(ZERO, shares, q.top.sources | keys.top.sources),))


def _additive(mask: Any, dtype: torch.dtype) -> Series:
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return series(
            torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
        )
    return series(mask)
