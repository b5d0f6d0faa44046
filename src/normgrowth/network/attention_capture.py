"""The scores of attention as a forward pass computes them, and the weights of attention in the limit.

    with seen(model, saw): model(...)               saw(call) for every attention, in the order of the pass
    with seen_weights(model, saw): limit(...)       saw(where, start, weights): of the queries from start on

Seen are `scaled_dot_product_attention` and softmaxes of scores (rows, heads, queries, keys), or (rows · heads, queries,
keys) in a module that says how many heads it has. Fused attention does not tell its scores, so they are computed again,
in float64, for the queries that are asked for: nothing of the size of all queries times all keys is made. In the limit
it is replaced by its parts, since only softmax tells which keys win.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
BLOCK = 1 << 18  # scores that are looked at together: 2 MB in float64, which stay in the cache
WHOLE = 1 << 24  # up to so many, the limit decides over all queries at once, as `saturated` does


@dataclass(frozen=True)
class Call:
    """One attention: its scores, for any block of its queries."""

    where: Where
    shape: tuple[int, int, int, int]  # rows, heads, queries, keys
    unit: float  # of rounding; at most that of float32, so that in 16 bits a tie is equality
    sinks: int  # of the keys, the last ones that are no tokens: 1 with a learned sink (GPT-OSS), else 0
    # of queries from start to stop: (rows, heads, stop − start, keys) in float64, −∞ where a mask hides
    scores: Callable[[int, int], Tensor] = field(repr=False)
    # the same anew, from what its module was given: whoever keeps this does not keep the scores
    again: "Callable[[], Call]" = field(repr=False)


def blocks(shape: tuple[int, ...], most: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Stretches of queries, each with no more than `most` scores, or a single one."""
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

        with _Tap(lambda: path.module, found):
            yield


@contextmanager
def seen_weights(
    model: nn.Module, saw: Callable[[Where, int, Tensor], None], began: Callable[[], None]
) -> Iterator[None]:
    """The same for `saturated(model)`, which may run the model twice: `began` is called before each pass."""
    with following(model, began) as path, _LimitTap(path, saw):
        yield


# The shape, the unit, the sinks and the scores of a Call.
Scores = tuple[tuple[int, int, int, int], float, int, Callable[[int, int], Tensor]]


def opened(function: FunctionType) -> FunctionType:
    """`multi_head_attention_forward` without its first question, whether a mode wants the whole call."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


class _Tap(TorchFunctionMode):
    """module: that which runs when it is asked for."""

    def __init__(self, module: Callable[[], nn.Module | None], saw: Callable[[Scores], None]) -> None:
        super().__init__()
        self.module, self.saw = module, saw

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return opened(func)(*args, **kwargs)
        found = _scores_of(func, args, kwargs, self.module())
        if found is not None:
            self.saw(found)
        return func(*args, **kwargs)


class _Found(Exception):
    pass


def _again(where: Where, frame: Frame, number: int) -> Call:
    found: list[Scores] = []

    def saw(scores: Scores) -> None:
        found.append(scores)
        if len(found) > number:
            raise _Found

    try:
        # Not within the limit, if it is that which runs: these are the scores of the network itself.
        with torch.no_grad(), _disable_current_modes(), _Tap(lambda: frame.module, saw):
            frame.module.forward(*frame.given[0], **frame.given[1])
    except _Found:
        shape, unit, sinks, scores = found[-1]

        def plain(start: int, stop: int) -> Tensor:  # a parameter that is added to scores must not grow
            with torch.no_grad(), _disable_current_modes():
                return scores(start, stop)

        return Call(where, shape, unit, sinks, plain, lambda: _again(where, frame, number))
    raise InputError(f"{frame.name}: runs twice on the same input, and attends only once")


def _scores_of(func: Any, args: Any, kwargs: Any, module: nn.Module | None) -> Scores | None:
    if func is F.scaled_dot_product_attention:
        return _fused(*args, **kwargs)
    scores = _softmax_input(func, args, kwargs, module)
    if scores is None:
        return None
    scores = _by_heads(scores.detach(), module)
    sink = _sink(module, scores)

    def some(start: int, stop: int) -> Tensor:
        part = scores[..., start:stop, :]
        found = part.to(_wide(part))
        if sink is not None:  # its score is known: what was taken off all, against overflow, comes back
            found = found + (sink.to(found.dtype)[:, None, None] - found[..., -1:])
        return found.masked_fill(part <= mask_bound(part.dtype), -torch.inf)

    return tuple(scores.shape), _unit(scores), int(sink is not None), some  # pyright: ignore[reportReturnType]


def _softmax_input(func: Any, args: Any, kwargs: Any, module: nn.Module | None) -> Tensor | None:
    """What a softmax is taken of, if that is over the keys of scores: by rows and heads, or by both as one."""
    if func not in SOFTMAX:
        return None
    scores = args[0] if args else kwargs.get("input")
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(scores, Tensor) or not scores.numel() or dim not in (-1, scores.dim() - 1):
        return None
    heads = _head_count(module)
    return scores if scores.dim() == 4 or (scores.dim() == 3 and heads and not len(scores) % heads) else None


def _head_count(module: nn.Module | None) -> int:
    """How many heads a module says that it has, or 0."""
    found = getattr(module, "num_heads", None)
    return found if isinstance(found, int) and found > 0 else 0


def _by_heads(x: Tensor, module: nn.Module | None) -> Tensor:
    return x.unflatten(0, (-1, _head_count(module))) if x.dim() == 3 else x


def _sink(module: nn.Module | None, scores: Tensor) -> Tensor | None:
    """The score of each head's learned sink, if the last key is such: it takes weight, and is no token."""
    sink = getattr(module, "sinks", None)
    _, heads, queries, keys = scores.shape
    if isinstance(sink, Tensor) and sink.numel() == heads and keys == queries + 1:
        return sink.detach().flatten()
    return None


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,  # noqa: ARG001
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> Scores | None:
    if query.dim() != 4 or not (query.numel() and key.numel()):
        return None
    wide, unit = _wide(query), _unit(query)
    query, key = query.detach().to(wide), key.detach().to(wide)

    def some(start: int, stop: int) -> Tensor:
        return fused_scores(query, key, attn_mask, is_causal, scale, start, stop)

    return (*query.shape[:-1], key.shape[-2]), unit, 0, some  # pyright: ignore[reportReturnType]


def fused_scores(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    start: int = 0,
    stop: int | None = None,
) -> Tensor:
    """What `scaled_dot_product_attention` takes the softmax of, of the queries from start to stop; −∞ is hidden."""
    stop = query.shape[-2] if stop is None else stop
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    # scaled first: float16 must not overflow before
    scores = _grouped_matmul(query[..., start:stop, :] * factor, key.mT)
    if is_causal:
        scores = scores.masked_fill(_later(start, stop, key), -torch.inf)
    if mask is None:
        return scores
    mask = _rows_of(mask, start, stop)
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -torch.inf)
    return (scores + mask).masked_fill(mask <= mask_bound(mask.dtype), -torch.inf)


class _LimitTap(TorchFunctionMode):
    def __init__(self, path: Path, saw: Callable[[Where, int, Tensor], None]) -> None:
        super().__init__()
        self.path, self.saw = path, saw

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return opened(func)(*args, **kwargs)
        if func is F.scaled_dot_product_attention and (args[0] if args else kwargs["query"]).dim() == 4:
            return self._by_parts(*args, **kwargs)
        found = func(*args, **kwargs)
        module = self.path.module
        if _softmax_input(func, args, kwargs, module) is not None:
            where, *_ = self.path.next_call()
            self.saw(where, 0, _by_heads(_plain(found), module))
        return found

    def _by_parts(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: ARG002
    ) -> Tensor:
        where, *_ = self.path.next_call()
        assert not dropout_p  # it is evaluated
        groups = query.shape[-3] // key.shape[-3]
        if groups > 1:
            key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        parts = []
        for start, stop in blocks((*query.shape[:-1], key.shape[-2]), WHOLE):
            scores = query[..., start:stop, :] @ key.mT * factor
            if is_causal:
                scores = scores.masked_fill(_later(start, stop, key), -torch.inf)
            if attn_mask is not None:
                mask = _rows_of(attn_mask, start, stop)
                scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            weights = scores.softmax(-1)
            self.saw(where, start, _plain(weights))
            parts.append(weights @ value)
        return torch.cat(parts, -2) if len(parts) > 1 else parts[0]


def _plain(weights: Tensor) -> Tensor:
    """A copy that has no degree."""
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
