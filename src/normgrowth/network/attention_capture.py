"""Capture the attention scores of a forward pass, and the attention weights of the limit.

    with seen(model, saw): model(...)               calls saw(call) for every attention, in the order of the pass
    with seen_weights(model, saw): limit(...)       calls saw(where, start, weights) for the queries from start on

Captured are `scaled_dot_product_attention` and softmaxes of scores (rows, heads, queries, keys), or (rows · heads,
queries, keys) in a module with `num_heads`. Fused attention does not return its scores. They are recomputed in float64
for the requested queries only, so no queries × keys matrix is allocated. In the limit, fused attention is replaced by
matrix products and a softmax, because only the softmax shows which keys win.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from normgrowth.errors import InputError
from normgrowth.limit.power_series import mask_bound
from normgrowth.network.heads.call_sites import Frame, Path, Where, following
from normgrowth.network.saturated_attention import _grouped_matmul

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
BLOCK = 1 << 18  # scores per block: 2 MB in float64, which fit into the cache
WHOLE = 1 << 24  # up to this many scores, the limit processes all queries at once, as `saturated` does


@dataclass(frozen=True)
class Call:
    """One call of attention, with its scores for any block of queries."""

    where: Where
    shape: tuple[int, int, int, int]  # rows, heads, queries, keys
    unit: float  # unit of rounding; at most that of float32, so that 16-bit scores tie only if they are equal
    sinks: int  # number of last keys that are not tokens: 1 with a learned sink (GPT-OSS), else 0
    # scores(start, stop) of these queries: (rows, heads, stop − start, keys) in float64, −∞ where masked
    scores: Callable[[int, int], Tensor] = field(repr=False)
    # the same call, recomputed from the inputs of its module: keeping this function does not keep the scores alive
    again: "Callable[[], Call]" = field(repr=False)


def query_ranges(shape: tuple[int, ...], most: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Ranges of queries with at most `most` scores each, but at least one query."""
    rows, heads, queries, keys = shape
    size = max(1, most // max(1, rows * heads * keys))
    for start in range(0, queries, size):
        yield start, min(start + size, queries)


@contextmanager
def seen(model: nn.Module, saw: Callable[[Call], None]) -> Iterator[None]:
    with following(model) as path:

        def found(scores: Scores) -> None:
            where, frame, number = path.next_call()
            saw(Call(where, *scores, lambda: _again(where, frame, number)))

        with _ScoreTap(lambda: path.module, found):
            yield


@contextmanager
def seen_weights(
    model: nn.Module, saw: Callable[[Where, int, Tensor], None], began: Callable[[], None]
) -> Iterator[None]:
    """`seen` for `saturated(model)`, which may run the model twice: `began` is called before each pass."""
    with following(model, began) as path, _LimitTap(path, saw):
        yield


# The shape, the unit, the sinks and the scores of a Call.
Scores = tuple[tuple[int, int, int, int], float, int, Callable[[int, int], Tensor]]


@dataclass(frozen=True)
class Fused:
    """The arguments of `scaled_dot_product_attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def scores(self, start: int = 0, stop: int | None = None) -> Tensor:
        """The scores of the queries from start to stop, before the softmax; −∞ where masked."""
        query, key, mask = self.query, self.key, self.attn_mask
        stop = query.shape[-2] if stop is None else stop
        # The query is scaled before the product, so that float16 does not overflow.
        scores = _grouped_matmul(query[..., start:stop, :] * self.factor, key.mT)
        if self.is_causal:
            scores = scores.masked_fill(_later(start, stop, key), -torch.inf)
        if mask is None:
            return scores
        mask = _rows_of(mask, start, stop)
        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask, -torch.inf)
        return (scores + mask).masked_fill(mask <= mask_bound(mask.dtype), -torch.inf)

    @property
    def factor(self) -> float:
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale


class AttentionTap(TorchFunctionMode):
    """A torch function mode that intercepts every attention; subclasses define `fused` and `softmax`.

    `nn.MultiheadAttention` shows a mode only the call of `multi_head_attention_forward`, not the calls inside it. So
    this function runs without its check for modes, except while compiling. in_heads: this function is running.
    """

    in_heads = False

    def fused(self, attention: Fused, compute: Callable[[], Tensor]) -> Tensor:
        """Handle a call of `scaled_dot_product_attention`, whose output is compute()."""
        raise NotImplementedError

    def softmax(self, scores: Tensor, dim: int | None, compute: Callable[[], Tensor]) -> Tensor:
        """Handle a softmax of any tensor, whose output is compute()."""
        raise NotImplementedError

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self.fused(Fused(*args, **kwargs), lambda: func(*args, **kwargs))
        if func in SOFTMAX:
            scores = args[0] if args else kwargs.get("input")
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            if isinstance(scores, Tensor) and scores.numel():
                return self.softmax(scores, dim, lambda: func(*args, **kwargs))
        if func is not F.multi_head_attention_forward or torch.compiler.is_compiling() or self.in_heads:
            return func(*args, **kwargs)
        self.in_heads = True
        try:
            with self:
                return _without_mode_check(func)(*args, **kwargs)
        finally:
            self.in_heads = False


def _without_mode_check(function: FunctionType) -> FunctionType:
    """`multi_head_attention_forward` without its check whether a mode overrides the whole call."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


class _ScoreTap(AttentionTap):
    """Calls saw(scores) for every attention. module(): the module that is running."""

    def __init__(self, module: Callable[[], nn.Module | None], saw: Callable[[Scores], None]) -> None:
        super().__init__()
        self.module, self.saw = module, saw

    def fused(self, attention: Fused, compute: Callable[[], Tensor]) -> Tensor:
        query, key = attention.query, attention.key
        if query.dim() == 4 and query.numel() and key.numel():
            wide = _wide(query)
            detached = replace(attention, query=query.detach().to(wide), key=key.detach().to(wide))
            rows, heads, queries, _ = query.shape
            self.saw(((rows, heads, queries, key.shape[-2]), _unit(query), 0, detached.scores))
        return compute()

    def softmax(self, scores: Tensor, dim: int | None, compute: Callable[[], Tensor]) -> Tensor:
        if is_attention(scores, dim, self.module()):
            self.saw(_softmax_scores(scores.detach(), self.module()))
        return compute()


class _Found(Exception):
    pass


def _again(where: Where, frame: Frame, number: int) -> Call:
    found: list[Scores] = []

    def saw(scores: Scores) -> None:
        found.append(scores)
        if len(found) > number:
            raise _Found

    try:
        # The modes of a running limit are off: these are the scores of the network itself.
        with torch.no_grad(), _disable_current_modes(), _ScoreTap(lambda: frame.module, saw):
            frame.module.forward(*frame.given[0], **frame.given[1])
    except _Found:
        shape, unit, sinks, scores = found[-1]

        def plain(start: int, stop: int) -> Tensor:  # a parameter that is added to scores must not grow
            with torch.no_grad(), _disable_current_modes():
                return scores(start, stop)

        return Call(where, shape, unit, sinks, plain, lambda: _again(where, frame, number))
    raise InputError(f"{frame.name}: a second run on the same input did not repeat its attention")


def _softmax_scores(scores: Tensor, module: nn.Module | None) -> Scores:
    """The input of a softmax as scores in blocks of queries."""
    scores = _by_heads(scores, module)
    sink = _sink(module, scores)

    def some(start: int, stop: int) -> Tensor:
        part = scores[..., start:stop, :]
        found = part.to(_wide(part))
        if (
            sink is not None
        ):  # the model subtracted the maximum against overflow; the known score of the sink undoes it
            found = found + (sink.to(found.dtype)[:, None, None] - found[..., -1:])
        return found.masked_fill(part <= mask_bound(part.dtype), -torch.inf)

    rows, heads, queries, keys = scores.shape
    return (rows, heads, queries, keys), _unit(scores), int(sink is not None), some


def is_attention(scores: Tensor, dim: int | None, module: nn.Module | None) -> bool:
    """Whether a softmax runs over the keys of scores (rows, heads, queries, keys) or (rows · heads, queries, keys)."""
    if dim not in (-1, scores.dim() - 1):
        return False
    heads = _head_count(module)
    return scores.dim() == 4 or (scores.dim() == 3 and heads > 0 and not len(scores) % heads)


def _head_count(module: nn.Module | None) -> int:
    """The module's `num_heads`, or 0."""
    found = getattr(module, "num_heads", None)
    return found if isinstance(found, int) and found > 0 else 0


def _by_heads(x: Tensor, module: nn.Module | None) -> Tensor:
    return x.unflatten(0, (-1, _head_count(module))) if x.dim() == 3 else x


def _sink(module: nn.Module | None, scores: Tensor) -> Tensor | None:
    """The score of each head's learned sink if the last key is a sink, which gets weight but is no token; else None."""
    sink = getattr(module, "sinks", None)
    _, heads, queries, keys = scores.shape
    if isinstance(sink, Tensor) and sink.numel() == heads and keys == queries + 1:
        return sink.detach().flatten()
    return None


class _LimitTap(AttentionTap):
    """Calls saw(where, start, weights) for every attention of a limit; computes fused attention from its parts."""

    def __init__(self, path: Path, saw: Callable[[Where, int, Tensor], None]) -> None:
        super().__init__()
        self.path, self.saw = path, saw

    def softmax(self, scores: Tensor, dim: int | None, compute: Callable[[], Tensor]) -> Tensor:
        weights, module = compute(), self.path.module
        if is_attention(scores, dim, module):
            where, *_ = self.path.next_call()
            self.saw(where, 0, _by_heads(_plain(weights), module))
        return weights

    def fused(self, attention: Fused, compute: Callable[[], Tensor]) -> Tensor:
        query, key, value, mask = attention.query, attention.key, attention.value, attention.attn_mask
        if query.dim() != 4:
            return compute()
        where, *_ = self.path.next_call()
        assert not attention.dropout_p  # evaluation mode
        groups = query.shape[-3] // key.shape[-3]
        if groups > 1:
            key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
        parts = []
        for start, stop in query_ranges((*query.shape[:-1], key.shape[-2]), WHOLE):
            scores = query[..., start:stop, :] @ key.mT * attention.factor
            if attention.is_causal:
                scores = scores.masked_fill(_later(start, stop, key), -torch.inf)
            if mask is not None:
                rows = _rows_of(mask, start, stop)
                scores = scores.masked_fill(~rows, -torch.inf) if rows.dtype == torch.bool else scores + rows
            weights = scores.softmax(-1)
            self.saw(where, start, _plain(weights))
            parts.append(weights @ value)
        return torch.cat(parts, -2) if len(parts) > 1 else parts[0]


def _plain(weights: Tensor) -> Tensor:
    """A copy as an ordinary tensor, without a degree."""
    with _disable_current_modes():
        return weights.detach().clone()


def _rows_of(mask: Tensor, start: int, stop: int) -> Tensor:
    return mask if mask.shape[-2] == 1 else mask[..., start:stop, :]


def _later(start: int, stop: int, key: Tensor) -> Tensor:
    """True for keys after the query."""
    places = torch.arange(max(stop, key.shape[-2]), device=key.device)
    return places[: key.shape[-2]] > places[start:stop, None]


def _unit(x: Tensor) -> float:
    return min(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64
