"""Saturated attention: the limit of softmax attention when its scores are multiplied by c → ∞.

A query then attends only to the positions of its maximal score. If several positions tie, it attends to all of
them with equal weight (section 4.2 of the paper; Merrill, 2019), or to the leftmost or the rightmost.

It is called like scaled_dot_product_attention. Inside a model, use `saturated(model, attention_only=True)`.

Definition of a tie. A matrix product may round the scores of two equal keys differently, depending on their position in
the matrix. So scores are computed in float64, where products of half and single precision are exact. Two scores tie if
they differ by no more than the rounding error of such a sum: 2·D·ε of ‖q‖‖k‖ (or of the score, if a mask makes it
larger), ε = 2⁻⁵². Earlier rounding cannot be undone: keys that became equal in bfloat16 tie. (On a device without
float64, scores are computed in float32, where the bound is 10⁹ times wider.)

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

    mask: boolean, True at visible positions; or a tensor that is added to the scores. In an added mask, −∞ and values
    below half of the dtype's finfo.min hide a position. Every other value is part of the score, as in softmax: −1e4
    or −1e30 loses against any position without it, and has no effect in a row where all positions have it. A query
    without visible positions gets zeros, as in scaled_dot_product_attention. A query with a score of NaN or +∞ gets
    NaN.

    causal: query i sees the keys up to i, counted from the start as in scaled_dot_product_attention.

    tolerance: a query also attends to positions whose score is within tolerance·max(scale·‖q‖‖k‖, abs(s)) of the
    maximal score s, where k is the key of the maximum.

    Gradients flow through the values only: the limit is piecewise constant in q and k.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 4)
    >>> ng.saturated_attention(q, k, v, causal=True).shape
    torch.Size([1, 2, 5, 4])
    """
    chosen, count = _chosen(q, k, mask, ties, causal, scale, tolerance)
    # The mean as sum / count in the wide dtype: exact for equal values, and without overflow in half precision.
    return (_grouped_matmul(chosen, v.to(chosen.dtype)) / count).to(v.dtype)


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
    """1 at attended positions, else 0 [..., heads, Q, K]; and the divisor [..., heads, Q, 1].

    Scores are overwritten in place, so that only one tensor of that size is allocated.
    """
    if ties not in ("average", "leftmost", "rightmost"):
        raise InputError(f"ties must be 'average', 'leftmost' or 'rightmost', got {ties!r}")
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InputError(f"tolerance must be finite and >= 0, got {tolerance}")
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


def _grouped_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a [..., heads, Q, X] @ b [..., groups, X, Y] -> [..., heads, Q, Y], without repeating b for each head."""
    if b.ndim == 2 or a.shape[-3] == b.shape[-3]:
        return a @ b
    heads, groups = a.shape[-3], b.shape[-3]
    if heads % groups:
        raise InputError(f"{heads} query heads are not divisible by {groups} key or value heads")
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
            raise InputError(f"mask must be boolean or floating point, got {mask.dtype}: pass mask.bool()")
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores.masked_fill_(~seen, -torch.inf)
