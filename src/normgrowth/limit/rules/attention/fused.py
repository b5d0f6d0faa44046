"""Rules for fused attention kernels: scores, weights and values of some heads at a time."""

from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch import Operation, rule
from normgrowth.limit.pass_log import Tie
from normgrowth.limit.power_series import ZERO, Series, Term, combine, product
from normgrowth.limit.rules.arithmetic import as_series, find_finite_mask, infinite_part, log_unequal_sum
from normgrowth.limit.rules.attention.head_groups import WHOLE, at, four_dimensional, groups, one_hot, part_of
from normgrowth.limit.rules.attention.scores import masks_below_the_leading_order, scores_of
from normgrowth.limit.rules.attention.shares import shares_of
from normgrowth.limit.rules.attention.ties import SMALL, TieCounts, longest, rounding_unit, weigh


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def fused_attention(operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """The output of fused attention; the other results of the kernel are only for its gradient."""
    given = operation.named(args[1:], kwargs) | ({"query": args[0]} if args else {})
    if given.get("dropout_p"):
        raise operation.refuse("dropout is active; call model.eval() first")
    found = attention_by_heads(
        operation,
        as_series(given["query"]),
        as_series(given["key"]),
        as_series(given["value"]),
        given.get("attn_mask", given.get("attn_bias")),
        bool(given.get("is_causal", False)),
        given.get("scale"),
    )
    plain = torch.zeros(0)
    count = len(operation.func._schema.returns)
    if operation.context.attention_only:
        found = found.top.value
    return (found, *[plain] * (count - 1))


def attention_by_heads(
    operation: Operation, q: Series, k: Series, v: Series, mask: Any, causal: bool, scale: float | None
) -> Series:
    """Attention for some heads at a time, so that the scores of all heads are never in memory together."""
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
    closed = _closed(mask)
    q, k, v, *added = (x if len(x.shape) == 4 else x.map(four_dimensional) for x in (q, k, v, *added))
    sums = operation.context.sums
    before = len(sums)
    leads = _leads(operation, q, k, added)
    hiding = _hiding(added) if leads else None
    parts, counts = [], TieCounts()
    for place in groups(torch.Size((*q.shape[:3], k.shape[2]))):
        group = [x if place is WHOLE else part_of(x, place) for x in (q, k, v, *added)]
        hidden = None if hiding is None else at(hiding, place)
        parts.append(_attended(operation, group, factor, leads, hidden, counts))
    sums[before:] = dict.fromkeys(sums[before:])  # record a sum once, not once per group of heads
    if counts.tied:
        operation.context.ties.append(Tie(operation.context.module, **vars(counts)))
    if len(parts) == 1:
        found = parts[0].map(lambda value: value.reshape(whole))
    else:
        found = combine(
            lambda *values: torch.cat([value.flatten(0, 1) for value in values]).view(whole), *parts
        )
    return found if closed is None else found.only(~closed)


def _closed(mask: Any) -> Tensor | None:
    """The queries that see no key, because the mask is −∞ at all keys; None if every query sees a key.

    PyTorch's kernels return 0 for such a query. A finite mask hides no key.
    """
    if not isinstance(mask, Tensor):
        return None
    found = (~mask if mask.dtype == torch.bool else mask == -torch.inf).all(-1, keepdim=True)
    return found if bool(found.any()) else None


def _leads(operation: Operation, q: Series, k: Series, added: list[Series]) -> bool:
    """Whether q times k is the leading order of the scores, and all masks are constants."""
    degree = q.top.degree + k.top.degree
    if operation.context.exponentials or q.zero or k.zero or degree <= 0:
        return False
    if any(x.top.degree >= degree or masks_below_the_leading_order(x) for x in added):
        return False
    for x in added:
        scores = Series(
            (Term(degree, q.top.value, q.top.sources | k.top.sources),)
        )  # only its degree matters
        log_unequal_sum(operation, scores, x)
        find_finite_mask(operation, scores, x)
    return True


def _hiding(added: list[Series]) -> Tensor | None:
    """An additive mask: 0 for visible keys, minus infinity for hidden keys; None if no key is hidden."""
    found = None
    for x in added:
        if (here := infinite_part(x)) is not None:
            found = here if found is None else found + here
    return found


def _attended(
    operation: Operation,
    group: list[Series],
    factor: float,
    leads: bool,
    hidden: Tensor | None,
    counts: TieCounts,
) -> Series:
    q, k, v, *added = group
    keys = k.map(lambda value: value.transpose(-1, -2))
    counts.rows += q.shape[:-1].numel()
    shares = _unrivaled(operation, q, keys, factor, hidden) if leads else None
    if shares is None:
        scores = scores_of(operation, q, keys, factor, added)
        shares = shares_of(operation, scores, -1, here := TieCounts())
        counts.add(here)
    if shares.doubt:
        weigh(operation, shares, v)
    return product(torch.matmul, shares, v, operation.orders)


def _unrivaled(
    operation: Operation, q: Series, keys: Series, factor: float, hidden: Tensor | None
) -> Series | None:
    """The weights if every row has a unique largest score, from the leading order alone; None otherwise."""
    scores = torch.matmul(q.top.value, keys.top.value).mul_(factor)
    shares = torch.empty_like(scores)
    least = None
    if q.top.degree > 0 and keys.top.degree > 0:  # the same scale as in `sized`
        scale = longest(q.top.value, -1) * longest(keys.top.value, -2) * abs(factor)
        least = (scale / SMALL).expand(scores.shape[:-2])[..., None, None]
    unit = rounding_unit(operation.context, scores.dtype)
    if not one_hot(scores, shares, unit, hidden, least):
        return None
    return Series((Term(ZERO, shares, q.top.sources | keys.top.sources),))


def _additive(mask: Any, dtype: torch.dtype) -> Series:
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return as_series(
            torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
        )
    return as_series(mask)
