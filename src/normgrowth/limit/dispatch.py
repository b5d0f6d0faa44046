"""Runs PyTorch operations on the leading orders of their arguments.

A tensor in the limit is an ordinary tensor that holds the coefficients of its highest degree. Its degree and
its lower terms hang on its storage, so views share them, operations in place change them for every view, and
C++ code, caches and output classes see plain tensors. A lower term is a storage of the same layout.

Tensors of 16 bits are computed in float32: each also carries its leading coefficients in float32, and rounds only
what the network's own code sees. Otherwise rounding would decide which score is the largest.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from normgrowth.errors import InputError
from normgrowth.limit.pass_log import Context
from normgrowth.limit.series import ZERO, Exponential, Series, Term, constant, mask_bound, masked, nonzero

MARK = "_normgrowth"  # the attribute of a storage that holds its Growth
EXACT = "_normgrowth_exact"  # that of a constant of 16 bits which was rounded from float32
HALVES = (torch.bfloat16, torch.float16)
HALF_MASK = mask_bound(torch.float16)
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}  # name of an ATen operation -> rule(operation, *arguments)
DRAWS = {"bernoulli", "bernoulli_", "native_dropout"}
SEVERAL = (list, tuple)
# These share the storage of their argument without saying so in their schema.
ALIASES = {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift_fresh", "lift"}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register what operations become in the limit.

    A rule gets the Operation, then the arguments: Series for tensors that grow, plain tensors for the rest. It
    returns a Series, a plain tensor (no part of it grows), or a tuple of these.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


@dataclass(slots=True)
class Operation:
    """What a rule is called for."""

    func: Any  # the operation itself, never in place
    context: Context
    dtype: torch.dtype | None = None  # of the network's own result, where it has 16 bits
    arguments: Any = ()  # as the rule gets them

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    @property
    def name(self) -> str:
        return kind_of(self.func).name

    @property
    def orders(self) -> int:
        return self.context.orders

    def named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments after the first, by name."""
        names = [argument.name for argument in self.func._schema.arguments[1:]]
        return dict(zip(names, args, strict=False)) | kwargs

    @property
    def degrees(self) -> list[Fraction | None]:
        """Of its arguments that grow; None is exactly zero."""
        found = [x for x in pytree.tree_leaves(self.arguments) if isinstance(x, Series)]
        return [None if x.zero else x.top.degree for x in found]

    def refuse(self, why: str) -> Exception:
        return self.context.refuse(self.func, why, self.degrees)

    def diverges(self, sources: int) -> Exception:
        """The refusal of a value that grows faster than any power of c; sources: of what makes it grow."""
        return self.context.diverges(self.func, self.degrees, sources)


@dataclass
class Growth:
    """What hangs on a storage; `run` tells one Limit's tensors from another's."""

    run: object
    degree: Fraction
    sources: int
    lower: list[tuple[Fraction, torch.UntypedStorage, int]]
    rest: Fraction | None
    zero: bool = False
    doubt: bool = False
    exact: torch.UntypedStorage | None = None  # of a tensor of 16 bits: its leading coefficients in float32
    exponential: "HungExponential | None" = None
    lost: bool = False
    exact_zeros: bool = False
    diverges: Exception | None = None
    scales: dict[Fraction, Tensor] | None = None


Hung = list[tuple[Fraction, torch.UntypedStorage, int]]  # terms: degree, coefficients, sources


@dataclass
class HungExponential:
    """An `Exponential` in storages laid out as the tensor's own."""

    weight: torch.UntypedStorage
    decay: Hung
    rest: Fraction | None
    zero: bool


@dataclass(frozen=True)
class Kind:
    """What the schema of an operation says, read once."""

    name: str
    writes: tuple[str, ...]  # the arguments that it changes
    views: bool  # its result shares the storage of its argument
    only_views: bool  # ... and that is all it does: what hangs on the storage holds for the result
    draws: bool
    saturates: bool
    softmax: bool


@cache
def kind_of(func: Any) -> Kind:
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    writes = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    shares = not writes and any(r.alias_info is not None for r in schema.returns)
    views = shares or name in ALIASES or torch.Tag.inplace_view in func.tags
    return Kind(
        name,
        writes,
        views,
        views and not writes and func is not torch.ops.aten.view.dtype,
        name in DRAWS,
        name.removesuffix("_") in SATURATING,
        name in SOFTMAXES,
    )


class LimitMode(TorchDispatchMode):
    """`run` is the same for all passes of one Limit: what one pass returns may be given to the next."""

    def __init__(self, context: Context, run: object) -> None:
        super().__init__()
        self.context = context
        self.run = run

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its wrapper around every operation costs more than our own work on a view

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        if kind.only_views:
            return func(*args, **kwargs)
        if kind.draws:  # on a plain tensor of noise, which then multiplies
            raise self.context.refuse(func, self._why_no_draw())
        tensors = _tensors(args, kwargs)
        grown = [mark for tensor in tensors if (mark := self.growth(tensor)) is not None]
        if not grown and not (self.context.attention_only and kind.softmax):
            return self._plain(func, kind, args, kwargs)
        if func is torch.ops.aten.view.dtype:
            raise self.context.refuse(func, "the bits of a value that grows mean nothing in another dtype")
        if kind.views:
            return func(*args, **kwargs)
        endless = self._diverges(grown, kind.name.removesuffix("_"), args)
        half = any(tensor.dtype in HALVES for tensor in tensors)
        if not kind.writes:
            dtype = _result_dtype(kind.name, args, kwargs, tensors, half)
            result = self._ruled(func, kind.name, args, kwargs, dtype, half)
            lost = self._loses(grown, kind)
            if isinstance(result, Series):
                return self.attach(_diverging(_losing(result, lost), endless), tensors, dtype)
            return _map(
                lambda value: self.attach(_diverging(_losing(value, lost), endless), tensors, dtype), result
            )
        name = kind.name.removesuffix("_")
        packet = getattr(torch.ops.aten, name, None)
        if kind.writes != ("self",) or name == kind.name or packet is None:
            raise self.context.refuse(func, "writes to a tensor in a way that has no rule")
        functional = getattr(packet, func._overloadname, packet)
        result = self._ruled(functional, name, args, kwargs, args[0].dtype, half)
        lost = self._loses(grown, kind)
        written = _losing(result if isinstance(result, Series) else constant(result), lost)
        self._write(args[0], _diverging(written, endless))
        return args[0]

    def _why_no_draw(self) -> str:
        if self.context.training:
            return "dropout is on; call model.eval() first"
        return "draws random numbers although the model is in evaluation mode: its output has no single limit"

    def _loses(self, grown: list[Growth], kind: Kind) -> bool:
        """Whether a rule that says nothing of exponentially small parts may have lost one."""
        if kind.saturates and not self.context.exponentials:
            return True
        return any(mark.lost or mark.exponential is not None for mark in grown)

    def _diverges(self, grown: list[Growth], name: str, args: Any) -> Exception | None:
        """The refusal of an infinite argument, which an operation that bounds it puts off."""
        found = next((mark.diverges for mark in grown if mark.diverges), None)
        if found is not None:
            divided = self.growth(args[0]) if name == "div" and isinstance(args[0], Tensor) else None
            if name not in BOUNDING or (divided is not None and divided.diverges):
                raise found
        return found

    def _plain(self, func: Any, kind: Kind, args: Any, kwargs: Any) -> Any:
        """An operation on constants; one that is rounded to 16 bits (a table of rotations) is remembered in 32."""
        found = func(*args, **kwargs)
        if kind.views or not isinstance(found, Tensor):
            return found
        if kind.writes:
            if hasattr(storage := found.untyped_storage(), EXACT):
                delattr(storage, EXACT)
            return found
        if kind.name == "_to_copy" and found.dtype in HALVES and args[0].dtype == torch.float32:
            exact = args[0].to(found.device)
        elif any(self._remembered(tensor) is not None for tensor in _tensors(args, kwargs)):
            args, kwargs = _map(self._exact_argument, (args, kwargs))
            exact = func(*args, **kwargs)
        else:
            return found
        if found.dtype not in HALVES:  # the network goes back to 32 bits
            return exact.to(found.dtype)
        setattr(found.untyped_storage(), EXACT, (self, _laid_out(exact, found)))
        return found

    def _exact_argument(self, value: Any) -> Any:
        """What an operation on constants sees; a number that masks stays one, since 0 times infinity is none."""
        if isinstance(value, torch.dtype):
            return _wide(value)
        if not isinstance(value, Tensor) or value.dtype not in HALVES:
            return value
        exact = self._remembered(value)
        return value.float() if exact is None else _like(value, exact)

    def _remembered(self, tensor: Tensor) -> torch.UntypedStorage | None:
        """What a constant of 16 bits was rounded from, in this run."""
        if tensor.dtype not in HALVES or tensor.layout != torch.strided:
            return None
        run, exact = getattr(tensor.untyped_storage(), EXACT, (None, None))
        return exact if run is self else None

    def _ruled(
        self, func: Any, name: str, args: Any, kwargs: Any, dtype: torch.dtype | None, half: bool
    ) -> Any:
        found = RULES.get(name)
        if found is None:
            raise self.context.refuse(
                func,
                "no rule for this operation on tensors that grow; say what it becomes with "
                f'`@normgrowth.limit.rule("{name}")`',
                [
                    None if mark.zero else mark.degree
                    for mark in map(self.growth, _tensors(args, kwargs))
                    if mark
                ],
            )
        lift = self._wide_argument if half or dtype in HALVES else self.lift
        args = tuple(_map(lift, value) for value in args)
        kwargs = {key: _map(lift, value) for key, value in kwargs.items()} if kwargs else kwargs
        return found(Operation(func, self.context, dtype, (args, kwargs)), *args, **kwargs)

    def _wide_argument(self, value: Any) -> Any:
        """What a rule sees of 16 bits: series and constants in float32."""
        if isinstance(value, torch.dtype):
            return _wide(value)
        if isinstance(value, float):  # a mask of float16 is an ordinary number in float32
            return -math.inf if value <= HALF_MASK else value
        lifted = self.lift(value)
        if not isinstance(lifted, Tensor) or lifted.dtype not in HALVES:
            return lifted
        if (exact := self._remembered(lifted)) is not None:
            return _like(lifted, exact)
        wide = lifted.float()
        return wide if (hidden := masked(lifted)) is None else wide.masked_fill(hidden, -math.inf)

    def growth(self, tensor: Tensor) -> Growth | None:
        try:
            found = getattr(tensor.untyped_storage(), MARK, None)
        except (NotImplementedError, RuntimeError):  # sparse, meta: nothing grows there
            return None
        if found is not None and found.run is not self.run:
            raise InputError(
                f"a tensor of degree {found.degree} that another saturated(...) made: its parameters are not "
                "this one's; give its .clone() if it is meant as a constant"
            )
        return found

    def lift(self, value: Any) -> Any:
        """The series of a tensor that grows; anything else as it is."""
        if not isinstance(value, Tensor) or (growth := self.growth(value)) is None:
            return value
        top = value if growth.exact is None else _like(value, growth.exact)
        if top.dtype in HALVES:  # a parameter: exact as it is
            top = top.float()
        terms = (Term(growth.degree, top, growth.sources),)
        if growth.lower:
            terms += tuple(
                Term(degree, _like(value, part), sources) for degree, part, sources in growth.lower
            )
        return Series(
            terms,
            growth.rest,
            growth.zero,
            growth.doubt,
            None if growth.exponential is None else _lifted(value, growth.exponential),
            growth.lost,
            growth.exact_zeros,
            growth.diverges,
            growth.scales,
        )

    def grow(self, tensor: Tensor, degree: Fraction, sources: int) -> None:
        """Give a whole storage a degree."""
        whole = tensor
        if not _owns_its_storage(tensor):
            whole = _flat(tensor.untyped_storage(), tensor, tensor.dtype)
        self._hang(tensor, Growth(self.run, degree, sources, [], None, zero=not nonzero(whole)))

    def _hang(self, tensor: Tensor, growth: Growth) -> None:
        setattr(tensor.untyped_storage(), MARK, growth)

    def attach(self, value: Any, inputs: Iterable[Tensor] = (), dtype: torch.dtype | None = None) -> Any:
        """A tensor of its own for a series; of 16 bits if `dtype` is."""
        if not isinstance(value, Series):
            if dtype in HALVES and isinstance(value, Tensor) and value.is_floating_point():
                return value.to(dtype)
            return value
        top, exact = value.top.value, None
        if not _owns_its_storage(top) or _shares(top, inputs):
            top = top.clone(memory_format=torch.contiguous_format)
        if dtype in HALVES and top.dtype == torch.float32:
            top = top.to(dtype)
            exact = _laid_out(value.top.value, top)
        self._hang(top, self._growth(value, top, exact))
        return top

    def _growth(self, value: Series, tensor: Tensor, exact: torch.UntypedStorage | None) -> Growth:
        """What hangs on a tensor that is all of its storage."""
        return Growth(
            self.run,
            value.top.degree,
            value.top.sources,
            _hung(value.terms[1:], tensor),
            value.rest,
            value.zero,
            value.doubt,
            exact,
            None if value.exponential is None else _hung_exponential(value.exponential, tensor),
            value.lost,
            value.exact_zeros,
            value.diverges,
            value.scales,
        )

    def _write(self, tensor: Tensor, value: Series) -> None:
        """Put a series where a tensor is, which may be a part of a storage."""
        value = value.move(lambda v: v.to(_wide(tensor.dtype)).expand(tensor.shape))
        half = tensor.dtype in HALVES
        old = self.growth(tensor)
        if _owns_its_storage(tensor):
            growth = self._growth(value, tensor, _laid_out(value.top.value, tensor) if half else None)
            tensor.copy_(value.top.value)
            self._hang(tensor, growth)
            return
        whole = _flat(tensor.untyped_storage(), tensor, tensor.dtype)
        if old is None:
            old = Growth(self.run, ZERO, 0, [], None, not nonzero(whole))
        leading = whole if old.exact is None else _flat(old.exact, tensor, torch.float32)
        kept = {} if old.zero else {old.degree: (leading.to(_wide(tensor.dtype), copy=True), old.sources)}
        kept |= {d: (_flat(s, tensor, _wide(tensor.dtype)).clone(), src) for d, s, src in old.lower}
        new = {} if value.zero else {t.degree: t for t in value.terms}
        degrees = sorted({*kept, *new}, reverse=True) or [ZERO]
        written: list[tuple[Fraction, Tensor, int]] = []
        for degree in degrees:
            flat, sources = kept.get(
                degree, (torch.zeros(whole.shape, dtype=_wide(whole.dtype), device=whole.device), 0)
            )
            part = _like(tensor, flat.untyped_storage())
            if degree in new:
                part.copy_(new[degree].value)
                sources |= new[degree].sources
            else:
                part.zero_()
            written.append((degree, flat, sources))
        whole.copy_(written[0][1])  # last of all: a term of the value may be a view of it
        rests = [rest for rest in (old.rest, value.rest) if rest is not None]
        self._hang(
            tensor,
            Growth(
                self.run,
                degrees[0],
                written[0][2],
                [(degree, flat.untyped_storage(), sources) for degree, flat, sources in written[1:]],
                max(rests, default=None),
                not (kept or new),
                old.doubt or value.doubt,
                written[0][1].untyped_storage() if half else None,
                lost=any(g.lost or g.exponential is not None for g in (old, value)),
                diverges=old.diverges or value.diverges,
            ),
        )


# What comes to its limit faster than any power of c.
SATURATING = {"sigmoid", "tanh", "erf", "exp", "expm1", "exp2", "_softmax", "_safe_softmax", "glu"}
SATURATING |= {"gelu", "silu", "mish", "softplus", "log_sigmoid_forward", "elu", "celu", "_log_softmax"}
SATURATING |= {"erfc", "logsumexp", "special_logsumexp", "logaddexp", "logaddexp2"}
SOFTMAXES = {
    "_softmax",
    "_safe_softmax",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}


# What may get a value that is infinite in the limit: that keep it so, leave it out, bound it or divide by it.
BOUNDING = {"add", "log", "log1p", "clone", "_to_copy", "where", "masked_fill"}
BOUNDING |= {"clamp", "clamp_max", "minimum", "reciprocal", "div"}


def _diverging(value: Any, endless: Exception | None) -> Any:
    """A result that is still infinite somewhere keeps the refusal; beside a power of c it is refused at once."""
    if not isinstance(value, Series) or (endless is None and value.diverges is None):
        return value
    refusal = endless or value.diverges
    assert refusal is not None
    infinite = reduce(torch.logical_or, (torch.isposinf(term.value) for term in value.terms))
    if not bool(infinite.any()):
        return replace(value, diverges=None)
    if any(term.degree > 0 and bool((infinite & (term.value != 0)).any()) for term in value.terms):
        raise refusal  # a rule would take the power for what leads
    return replace(value, diverges=refusal)


def _losing(value: Any, lost: bool) -> Any:
    if lost and isinstance(value, Series) and value.exponential is None and not value.lost:
        return replace(value, lost=True)
    return value


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for values in (args, kwargs.values()) if kwargs else (args,):
        for value in values:
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, SEVERAL):
                found += _tensors(value, {})
    return found


def _map(f: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, SEVERAL):
        return type(value)(_map(f, item) for item in value)
    if isinstance(value, dict):
        return {key: _map(f, item) for key, item in value.items()}
    return f(value)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which coefficients of a tensor are kept."""
    return torch.float32 if dtype in HALVES else dtype


def _result_dtype(name: str, args: Any, kwargs: Any, tensors: list[Tensor], half: bool) -> torch.dtype | None:
    """The dtype that the network expects of an operation; None where no 16 bits are in play."""
    if kwargs.get("dtype") is not None:
        return kwargs["dtype"]
    if not half:
        return None
    if name in ("_softmax", "_log_softmax") and args[2]:
        return torch.float32
    floating = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    sized = [tensor for tensor in floating if tensor.dim()] or floating
    return reduce(torch.promote_types, (tensor.dtype for tensor in sized))


def _hung(terms: Iterable[Term], like: Tensor) -> Hung:
    return [(term.degree, _laid_out(term.value, like), term.sources) for term in terms]


def _hung_exponential(part: Exponential, like: Tensor) -> HungExponential:
    decay = part.decay
    return HungExponential(_laid_out(part.weight, like), _hung(decay.terms, like), decay.rest, decay.zero)


def _lifted(value: Tensor, part: HungExponential) -> Exponential:
    terms = tuple(Term(degree, _like(value, storage), sources) for degree, storage, sources in part.decay)
    return Exponential(_like(value, part.weight), Series(terms, part.rest, part.zero))


def _flat(storage: torch.UntypedStorage, like: Tensor, dtype: torch.dtype) -> Tensor:
    """All that a storage holds."""
    return torch.empty(0, dtype=dtype, device=like.device).set_(storage)


def _like(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """The same place in another storage."""
    empty = torch.empty(0, dtype=_wide(tensor.dtype), device=tensor.device)
    found = empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return found.conj() if tensor.is_conj() else found


def _shares(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    pointer = tensor.untyped_storage()._cdata
    return any(other.untyped_storage()._cdata == pointer for other in others)


def _owns_its_storage(tensor: Tensor) -> bool:
    """Whether the tensor is all that its storage holds, each value once."""
    if tensor.storage_offset() or tensor.nbytes != tensor.untyped_storage().nbytes():
        return False
    return tensor.is_contiguous() or not any(
        n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _laid_out(value: Tensor, like: Tensor) -> torch.UntypedStorage:
    """A storage of its own for a lower term, laid out as the leading one."""
    storage = torch.empty_strided(like.size(), like.stride(), dtype=_wide(like.dtype), device=like.device)
    storage.copy_(value)
    return storage.untyped_storage()
