"""Saturated attention: what softmax attention becomes when its scores are multiplied by c → ∞.

A query then attends to the positions of its maximal score and to nothing else; where several tie, to all of
them alike (section 4.2 of the paper; Merrill, 2019), or to the leftmost or the rightmost.

    saturated_attention(q, k, v, mask)   the attention itself, called like scaled_dot_product_attention
    saturated_weights(q, k, mask)        its weights
    attended_positions(q, k, mask)       how many positions each query attends to; near ties by a tolerance

Inside a model: `saturated(model, attention_only=True)`.

What counts as a tie. A matrix product rounds the scores of two equal keys differently, by where they stand in
the matrix. Scores are therefore computed in float64, where products of half and single precision are exact,
and two of them tie if they differ by no more than such a sum can be off: 2·D·ε of ‖q‖‖k‖ (or of the score, if
a mask makes it larger), ε = 2⁻⁵². What this cannot undo is what was rounded before: keys that became equal in
bfloat16 do tie. (A device without float64 computes in float32, where the bound is 10⁹ times wider.)

Shapes: q [..., heads, Q, D], k [..., groups, K, D], v [..., groups, K, E]; heads a multiple of groups.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from normgrowth.errors import InputError

Ties = Literal["average", "leftmost", "rightmost"]


def saturated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    ties: Ties = "average",
    causal: bool = False,
    scale: float | None = None,
    tolerance: float = 0.0,
) -> Tensor:
    """lim softmax(c·s)v as c → ∞, with the scores s = scale·qkᵀ + mask.

    mask: boolean, True where a query may look; or a tensor that is added to the scores. Of the latter, −∞ and
    whatever lies below half of its dtype's finfo.min close a position. Every other number is a part of the
    score, as in softmax: a −1e4 or −1e30 loses against any open position, and decides nothing in a row where
    all have it. A query with nothing to look at gets zeros, as from scaled_dot_product_attention; one
    with a score of NaN or +∞ gets NaN.

    causal: query i sees the keys up to i, counted from the start as in scaled_dot_product_attention.

    tolerance: positions attend too if their score lies within tolerance·max(scale·‖q‖‖k‖, abs(s)) of the
    maximal one, k and s being those of the maximum.

    Gradients flow through the values. The limit is piecewise constant in q and k, so they get none.
    """
    chosen, count = _chosen(q, k, mask, ties, causal, scale, tolerance)
    return _mean(chosen, count, v)


def saturated_weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    *,
    ties: Ties = "average",
    causal: bool = False,
    scale: float | None = None,
    tolerance: float = 0.0,
) -> Tensor:
    """The weights [..., heads, Q, K] of `saturated_attention`, in the dtype of q."""
    chosen, count = _chosen(q, k, mask, ties, causal, scale, tolerance)
    return (chosen / count).to(q.dtype)


def attended_positions(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    tolerance: float = 0.0,
) -> Tensor:
    """How many positions [..., heads, Q] lie within the tolerance of the maximal score; 0 if none is open.

    1 is an argmax head; more than 1 at tolerance 0 is a tie; what a tolerance adds to that are near ties.
    """
    chosen, _ = _chosen(q, k, mask, "average", causal, scale, tolerance)
    return chosen.sum(-1).long()


@torch.no_grad()
def _chosen(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    ties: Ties,
    causal: bool,
    scale: float | None,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """1 where a query attends, 0 elsewhere [..., heads, Q, K]; and the number to divide by [..., heads, Q, 1].

    The scores are overwritten step by step: one tensor of that size is all there ever is.
    """
    if ties not in ("average", "leftmost", "rightmost"):
        raise InputError(f"ties is {ties!r}: it can be 'average', 'leftmost' or 'rightmost'")
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InputError(f"tolerance is {tolerance}: it must be a number that is not negative")
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    wide = torch.float32 if q.device.type == "mps" else torch.float64
    q, k = q.to(wide), k.to(wide)

    scores = _grouped_matmul(q, k.mT).mul_(scale)
    _add_mask(scores, mask, causal)
    top, best = scores.max(-1, keepdim=True)

    key_norm = k.norm(dim=-1).unsqueeze(-2)  # [..., groups, 1, K]
    if k.ndim > 2:
        key_norm = key_norm.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    best_norm = key_norm.expand(scores.shape).gather(-1, best)
    size = torch.maximum(abs(scale) * q.norm(dim=-1, keepdim=True) * best_norm, top.abs())
    rounding = 2 * q.shape[-1] * torch.finfo(wide).eps
    closed = top == -torch.inf
    bound = (top - (tolerance + rounding) * size).masked_fill_(closed, torch.inf)

    chosen = scores.ge_(bound)
    count = chosen.sum(-1, keepdim=True).masked_fill_(closed, 1.0)  # a row of NaN keeps 0: 0/0 is NaN
    if ties != "average":
        place = torch.arange(1, chosen.shape[-1] + 1, device=q.device, dtype=wide)
        index = chosen.mul_(place.flip(0) if ties == "leftmost" else place).argmax(-1, keepdim=True)
        chosen.zero_().scatter_(-1, index, (~closed & (count > 0)).to(wide))
        count.clamp_(max=1.0)
    return chosen, count


def _mean(chosen: Tensor, count: Tensor, v: Tensor) -> Tensor:
    """Sum first, divide then: the mean of equal values is that value, and half precision does not overflow."""
    return (_grouped_matmul(chosen, v.to(chosen.dtype)) / count).to(v.dtype)


def _grouped_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a [..., heads, Q, X] @ b [..., groups, X, Y] -> [..., heads, Q, Y], without repeating b for each head."""
    if b.ndim == 2 or a.shape[-3] == b.shape[-3]:
        return a @ b
    heads, groups = a.shape[-3], b.shape[-3]
    if heads % groups:
        raise InputError(f"{heads} query heads cannot share {groups} key or value heads evenly")
    stacked = a.unflatten(-3, (groups, heads // groups)).flatten(-3, -2)  # [..., groups, heads/groups·Q, X]
    return (stacked @ b).unflatten(-2, (heads // groups, a.shape[-2])).flatten(-4, -3)


def _add_mask(scores: Tensor, mask: Tensor | None, causal: bool) -> None:
    if mask is not None:
        if mask.dtype == torch.bool:
            scores.masked_fill_(~mask, -torch.inf)
        elif mask.is_floating_point():
            scores.add_(mask)
            scores.masked_fill_(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)
        else:
            raise InputError(
                f"a mask is boolean or floating point, not {mask.dtype}: mask.bool() makes it so"
            )
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores.masked_fill_(~seen, -torch.inf)
