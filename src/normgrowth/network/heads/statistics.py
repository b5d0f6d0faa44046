"""Statistics of the heads of one attention, as sums over queries, from blocks of its scores.

With s the scores of a query over the n positions that it sees, A = softmax(s), in float64:

    entropy H = −Σ A log A      entropy_share H / log n      effective e^H      effective_2 1 / Σ A²
    largest_share max A         first_share, previous_share  A at the first token, at the previous token
    distance Σ A |q − k|        visible_distance             the mean of |q − k| over the n positions
    attended_distance           the mean of |q − k| over the attended positions of the limit
    hard_distance               ½ Σ |A − hard(s)|, where hard(s) has equal weight on the largest scores
    learned_sink_share          A at a learned sink, for models that have one (GPT-OSS)
    gap                         the largest score minus the second largest; 0 in a tie
    hard_scale                  the c at which softmax(c·s) has at most `tolerance` outside the largest position

A query that sees only one position has no choice and does not count. Padding counts neither as query nor as key. A
learned sink is one more position that every query sees, at distance 0. Scores within TIE units of rounding of the
largest score tie with it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normgrowth.errors import InputError
from normgrowth.network.attention_capture import Call, query_ranges

Floats = NDArray[np.float64]

TIE = 256  # units of rounding of the largest absolute score, as in the limit
HALF = 0.5  # positions with at least this share of the largest weight are attended
NEWTON = 100  # maximum number of steps; 4 to 8 suffice


class PaddingSeen(Exception):
    """A query attends to padding because no mask hides it."""


class NotFinite(InputError):
    """Scores overflowed."""


@dataclass
class Tally:
    """For each head: sums over queries, their number, maxima, and single values that are kept."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)
    largest: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, name: str, values: Tensor, counted: Tensor) -> None:
        """values and counted: (rows, heads, queries)."""
        total = torch.where(counted, values, 0.0).sum((0, 2)).cpu().double()
        count = counted.expand(values.shape).sum((0, 2)).cpu().double()
        self.sums[name] = self.sums[name] + total if name in self.sums else total
        self.counts[name] = self.counts[name] + count if name in self.counts else count

    def highest(self, name: str, values: Tensor) -> None:
        before = self.largest.get(name)
        values = values.cpu().double()
        self.largest[name] = values if before is None else torch.maximum(before, values)

    def keep(self, name: str, values: Tensor, counted: Tensor) -> None:
        """Keep the value of every query that counts for at least one head; NaN for heads where it does not count."""
        chosen = torch.where(counted, values, torch.nan).transpose(0, 1).flatten(1)  # (heads, rows · queries)
        some = counted.expand(values.shape).any(1).flatten()
        self.kept.setdefault(name, []).append(chosen[:, some].cpu().double())

    def merge(self, other: "Tally") -> None:
        for mine, theirs in ((self.sums, other.sums), (self.counts, other.counts)):
            for name, value in theirs.items():
                mine[name] = mine[name] + value if name in mine else value
        for name, value in other.largest.items():
            self.highest(name, value)
        for name, values in other.kept.items():
            self.kept.setdefault(name, []).extend(values)

    def mean(self, name: str) -> Floats:
        """NaN where no query counts."""
        return (self.sums[name] / self.counts[name]).numpy()

    def all(self, name: str) -> list[Floats]:
        """For each head, the values of its queries."""
        return [values[~np.isnan(values)] for values in torch.cat(self.kept[name], 1).numpy()]


@dataclass(frozen=True)
class QueryBlock:
    """A block of queries of an attention: their scores, and which queries count."""

    scores: Tensor  # (rows, heads, queries, keys), −∞ where masked
    start: int
    visible: Tensor  # number of visible positions, (rows, heads, queries)
    asks: Tensor  # which queries count, (rows, heads, queries)
    first: Tensor  # position of each row's first token, (rows,)
    away: Tensor  # |q − k|, 0 for a learned sink, (queries, keys)

    @staticmethod
    def of(call: Call, real: Tensor | None, start: int, stop: int) -> "QueryBlock":
        scores = call.scores(start, stop)
        open_ = scores > -torch.inf
        visible = open_.sum(-1)
        asks, first = visible > 1, torch.zeros(scores.shape[0], dtype=torch.long, device=scores.device)
        if real is not None:
            real = real.to(scores.device)
            asks = asks & real[:, None, start:stop]
            first = real.long().argmax(1)
            tokens = F.pad(real, (0, call.sinks), value=True)
            if bool((open_ & real[:, None, start:stop, None] & ~tokens[:, None, None, :]).any()):
                raise PaddingSeen
        check_finite(call, scores, None if real is None else real[:, None, start:stop])
        keys = torch.arange(scores.shape[-1], device=scores.device)
        away = (keys - torch.arange(start, stop, device=scores.device)[:, None]).abs().to(scores.dtype)
        away[:, len(keys) - call.sinks :] = 0
        return QueryBlock(scores, start, visible, asks, first, away)

    def mean_distance(self, chosen: Tensor) -> Tensor:
        """The mean of |q − k| over the chosen positions of each query; 0 where none is chosen."""
        return (chosen * self.away).sum(-1) / chosen.sum(-1).clamp(min=1)

    def at_first(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weight on the row's first token, and which queries see it."""
        index = self.first[:, None, None, None].expand(*self.scores.shape[:-1], 1)
        return self._at(weights, index)

    def at_previous(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        queries = torch.arange(self.scores.shape[-2], device=self.scores.device) + self.start
        index = (queries - 1).clamp(min=0)[:, None].expand(*self.scores.shape[:-1], 1)
        found, sees = self._at(weights, index)
        return found, sees & (queries > 0)

    def _at(self, weights: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        sees = self.scores.gather(-1, index).squeeze(-1) > -torch.inf
        return weights.gather(-1, index).squeeze(-1), self.asks & sees


def check_finite(call: Call, scores: Tensor, counted: Tensor | None = None) -> None:
    bad = ~(scores < torch.inf).all(-1)  # NaN or +∞
    if bool((bad if counted is None else bad & counted).any()):
        raise NotFinite(
            f"{call.where.module}: scores are not finite; try a dtype with a wider range, or batches without padding"
        )


def add_soft(call: Call, real: Tensor | None, tolerance: float, tally: Tally) -> None:
    """Add all statistics of the scores of the network itself."""
    # Allocated once for all queries: many small tensors between large ones would fragment the memory.
    counted = torch.zeros(call.shape[:3], dtype=torch.bool)
    kept = {name: torch.zeros(call.shape[:3], dtype=torch.float64) for name in ("gap", "hard_scale")}
    for start, stop in query_ranges(call.shape):
        block = QueryBlock.of(call, real, start, stop)
        scores, asks = block.scores, block.asks
        if not bool(asks.any()):
            continue
        top, best = scores.max(-1, keepdim=True)
        below = torch.where(asks[..., None], top - scores, 0.0)  # rows that do not count stay finite
        hidden = below == torch.inf
        powers = torch.exp(-below)
        total = powers.sum(-1, keepdim=True)
        weights = powers / total
        entropy = total.squeeze(-1).log() + (weights * below.masked_fill(hidden, 0.0)).sum(-1)
        visible = block.visible.to(scores.dtype)
        tally.add("visible", visible, asks)
        tally.add("one_share", 1 / visible.clamp(min=1), asks)
        tally.add("entropy", entropy, asks)
        tally.add("entropy_share", (entropy / visible.clamp(min=2).log()).clamp(max=1), asks)
        tally.add("effective", entropy.exp(), asks)
        tally.add("effective_2", 1 / weights.square().sum(-1), asks)
        tally.add("largest_share", 1 / total.squeeze(-1), asks)
        tally.add("distance", (weights * block.away).sum(-1), asks)
        tally.add("visible_distance", block.mean_distance(scores > -torch.inf), asks)
        tally.add("first_share", *block.at_first(weights))
        tally.add("previous_share", *block.at_previous(weights))
        if call.sinks:
            tally.add("learned_sink_share", weights[..., -1], asks)

        size = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1)
        tally.highest("largest_logit", torch.where(asks, size, 0.0).amax((0, 2)))
        within = (TIE * call.unit * size)[..., None]
        tied = (below <= within) & asks[..., None]
        hard = tied / tied.sum(-1, keepdim=True).clamp(min=1)
        tally.add("hard_distance", (hard - weights).clamp(min=0).sum(-1), asks)
        rest = below.scatter(-1, best, torch.inf)  # without the largest
        gap = rest.amin(-1)
        gap = torch.where(gap <= within.squeeze(-1), 0.0, gap)
        counted[..., start:stop] = asks
        kept["gap"][..., start:stop] = gap
        kept["hard_scale"][..., start:stop] = _hard_scale(rest, torch.where(asks, gap, 0.0), tolerance)
    for name, values in kept.items() if bool(counted.any()) else ():
        tally.keep(name, values, counted)


def _hard_scale(rest: Tensor, gap: Tensor, tolerance: float) -> Tensor:
    """The c with Σ exp(−c·d) = tolerance / (1 − tolerance), d = largest − other score; ∞ in a tie.

    log Σ exp(−c·d) is convex and decreasing. Newton's method starts left of the solution, where the second largest
    score alone reaches the bound, and approaches it from below without overshooting.
    """
    wanted = math.log(tolerance / (1 - tolerance))
    tie = gap == 0
    c = torch.where(tie, 0.0, -wanted / torch.where(tie, 1.0, gap))
    finite = rest.masked_fill(rest == torch.inf, 0.0)
    for _ in range(NEWTON):
        powers = torch.where(rest == torch.inf, 0.0, torch.exp(-c[..., None] * finite))
        total = powers.sum(-1)
        slope = (powers * finite).sum(-1) / total
        step = torch.where(tie, 0.0, (total.log() - wanted) / torch.where(tie, 1.0, slope))
        c = c + step.clamp(min=0)
        if bool((step <= 1e-12 * c).all()):
            break
    return torch.where(tie, torch.inf, c)


def add_limit(weights: Tensor, start: int, call: Call, real: Tensor | None, tally: Tally) -> None:
    """Add the statistics of the limit's weights for the queries from `start` on. call: the same attention, soft."""
    shape = (*call.shape[:2], weights.shape[2], call.shape[3])
    if tuple(weights.shape) != shape:
        raise InputError(
            f"{call.where.module}: weights have shape {tuple(weights.shape)} in the limit, expected {shape}"
        )
    for low, high in query_ranges(shape):
        block = QueryBlock.of(call, real, start + low, start + high)
        hard = weights[:, :, low:high].to(block.scores.dtype)
        _attended(block, attended(hard), tally)
        tally.add("saturated_largest_share", hard.amax(-1), block.asks)
        tally.add("saturated_first_share", *block.at_first(hard))
        tally.add("saturated_previous_share", *block.at_previous(hard))
        if call.sinks:
            tally.add("saturated_learned_sink_share", hard[..., -1], block.asks)
        scores = torch.where(block.asks[..., None], block.scores, 0.0)
        own = scores.softmax(-1)
        tally.add("saturated_distance", (hard - own).clamp(min=0).sum(-1), block.asks)


def add_scaled(call: Call, real: Tensor | None, unit: float, tally: Tally) -> None:
    """Add the attended positions of the network with c times its weights."""
    for start, stop in query_ranges(call.shape):
        block = QueryBlock.of(call, real, start, stop)
        _attended(block, attended_at(block.scores, unit), tally)


def attended(weights: Tensor) -> Tensor:
    """Positions with at least half of the largest weight: all ties, or the best of scores that do not grow."""
    return (weights >= HALF * weights.amax(-1, keepdim=True)) & (weights > 0)


def attended_at(scores: Tensor, unit: float) -> Tensor:
    """`attended` from scores; large scores tie if they differ by no more than rounding."""
    top = scores.amax(-1, keepdim=True)
    size = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1, keepdim=True)
    return (scores >= top - (TIE * unit * size).clamp(min=-math.log(HALF))) & (scores > -torch.inf)


def _attended(block: QueryBlock, chosen: Tensor, tally: Tally) -> None:
    count = chosen.sum(-1).to(block.scores.dtype)
    tally.add("attended", count, block.asks)
    tally.add("attended_share", count / block.visible.clamp(min=1), block.asks)
    tally.add("attended_spread", (count - 1) / (block.visible - 1).clamp(min=1), block.asks)
    tally.add("attended_distance", block.mean_distance(chosen), block.asks)


def add_window(count: Callable[[int, int], Tensor], shape: tuple[int, ...], tally: Tally) -> None:
    """Add the number of attended positions of every query; count(start, stop) returns (rows, heads, queries)."""
    for start, stop in query_ranges(shape):
        found = count(start, stop).cpu().double()
        tally.add("attended_window", found, torch.ones_like(found, dtype=torch.bool))
