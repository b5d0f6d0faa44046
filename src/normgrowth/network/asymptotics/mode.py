"""Runs PyTorch operations on the leading orders of their arguments.

A tensor in the limit is an ordinary tensor that holds the coefficients of its highest degree. Its degree and
its lower terms hang on its storage, so views share them, operations in place change them for every view, and
C++ code, caches and output classes see plain tensors. A lower term is a storage of the same layout.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from normgrowth.errors import InputError
from normgrowth.network.asymptotics.context import Context
from normgrowth.network.asymptotics.series import ZERO, Series, Term, constant, nonzero

MARK = "_normgrowth"  # the attribute of a storage that holds its Growth
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}  # name of an ATen operation -> rule(operation, *arguments)
DRAWS = {"bernoulli", "bernoulli_", "native_dropout"}
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


@dataclass(frozen=True)
class Operation:
    """What a rule is called for."""

    func: Any  # the operation itself, never in place
    context: Context

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    @property
    def orders(self) -> int:
        return self.context.orders

    def named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments after the first, by name."""
        names = [argument.name for argument in self.func._schema.arguments[1:]]
        return dict(zip(names, args, strict=False)) | kwargs

    def refuse(self, why: str) -> Exception:
        return self.context.refuse(self.func, why)


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


@dataclass(frozen=True)
class Kind:
    """What the schema of an operation says, read once."""

    name: str
    writes: tuple[str, ...]  # the arguments that it changes
    views: bool  # its result shares the storage of its argument


@cache
def kind_of(func: Any) -> Kind:
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    writes = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    shares = not writes and any(r.alias_info is not None for r in schema.returns)
    return Kind(name, writes, shares or name in ALIASES or torch.Tag.inplace_view in func.tags)


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
        if kind.name in DRAWS:  # on a plain tensor of noise, which then multiplies
            raise self.context.refuse(func, "dropout is on; call model.eval() first")
        tensors = list(_tensors((args, kwargs)))
        grown = [t for t in tensors if self.growth(t) is not None]
        if not grown and not (self.context.attention_only and kind.name in SOFTMAXES):
            return func(*args, **kwargs)
        if func is torch.ops.aten.view.dtype:
            raise self.context.refuse(func, "the bits of a value that grows mean nothing in another dtype")
        if kind.views:
            return func(*args, **kwargs)
        if not kind.writes:
            result = self._ruled(func, kind.name, args, kwargs)
            return _map(lambda value: self.attach(value, tensors), result)
        name = kind.name.removesuffix("_")
        packet = getattr(torch.ops.aten, name, None)
        if kind.writes != ("self",) or name == kind.name or packet is None:
            raise self.context.refuse(func, "writes to a tensor in a way that has no rule")
        functional = getattr(packet, func._overloadname, packet)
        result = self._ruled(functional, name, args, kwargs)
        self._write(args[0], result if isinstance(result, Series) else constant(result))
        return args[0]

    def _ruled(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        found = RULES.get(name)
        if found is None:
            raise self.context.refuse(
                func,
                "no rule for this operation on tensors that grow; say what it becomes with "
                f'`@normgrowth.network.asymptotics.rule("{name}")`',
            )
        args, kwargs = _map(self.lift, (args, kwargs))
        return found(Operation(func, self.context), *args, **kwargs)

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
        terms = [Term(growth.degree, value, growth.sources)]
        for degree, storage, sources in growth.lower:
            terms.append(Term(degree, _like(value, storage), sources))
        return Series(tuple(terms), growth.rest, growth.zero, growth.doubt)

    def grow(self, tensor: Tensor, degree: Fraction, sources: int) -> None:
        """Give a whole storage a degree."""
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
        self._hang(tensor, Growth(self.run, degree, sources, [], None, zero=not nonzero(whole)))

    def _hang(self, tensor: Tensor, growth: Growth) -> None:
        setattr(tensor.untyped_storage(), MARK, growth)

    def attach(self, value: Any, inputs: Iterable[Tensor] = ()) -> Any:
        """A tensor of its own for a series."""
        if not isinstance(value, Series):
            return value
        top = value.top.value
        if top.untyped_storage()._cdata in _pointers(inputs) or not _owns_its_storage(top):
            top = top.clone(memory_format=torch.contiguous_format)
        lower = [(t.degree, _laid_out(t.value, top), t.sources) for t in value.terms[1:]]
        self._hang(
            top,
            Growth(
                self.run,
                value.top.degree,
                value.top.sources,
                lower,
                value.rest,
                value.zero,
                value.doubt,
            ),
        )
        return top

    def _write(self, tensor: Tensor, value: Series) -> None:
        """Put a series where a tensor is, which may be a part of a storage."""
        value = value.map(lambda v: v.to(tensor.dtype).expand(tensor.shape))
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
        old = self.growth(tensor)
        if _owns_its_storage(tensor):
            lower = [(t.degree, _laid_out(t.value, tensor), t.sources) for t in value.terms[1:]]
            tensor.copy_(value.top.value)
            top = value.top
            self._hang(
                tensor,
                Growth(self.run, top.degree, top.sources, lower, value.rest, value.zero, value.doubt),
            )
            return
        if old is None:
            old = Growth(self.run, ZERO, 0, [], None, not nonzero(whole))
        kept = {} if old.zero else {old.degree: (whole.clone(), old.sources)}
        kept |= {
            d: (torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(s).clone(), src)
            for d, s, src in old.lower
        }
        new = {} if value.zero else {t.degree: t for t in value.terms}
        degrees = sorted({*kept, *new}, reverse=True) or [ZERO]
        written: list[tuple[Fraction, Tensor, int]] = []
        for degree in degrees:
            flat, sources = kept.get(degree, (torch.zeros_like(whole), 0))
            part = _like(tensor, flat.untyped_storage())
            if degree in new:
                part.copy_(new[degree].value)
                sources |= new[degree].sources
            else:
                part.zero_()
            written.append((degree, flat, sources))
        whole.copy_(written[0][1])  # last of all: a term of the value may be a view of it
        top_sources = written[0][2]
        lower = [(degree, flat.untyped_storage(), sources) for degree, flat, sources in written[1:]]
        rests = [rest for rest in (old.rest, value.rest) if rest is not None]
        self._hang(
            tensor,
            Growth(
                self.run,
                degrees[0],
                top_sources,
                lower,
                max(rests, default=None),
                not (kept or new),
                old.doubt or value.doubt,
            ),
        )


SOFTMAXES = {
    "_softmax",
    "_safe_softmax",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}


def _tensors(arguments: Any) -> Iterable[Tensor]:
    if isinstance(arguments, Tensor):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for item in arguments:
            yield from _tensors(item)
    elif isinstance(arguments, dict):
        yield from _tensors(list(arguments.values()))


def _map(f: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_map(f, item) for item in value)
    if isinstance(value, dict):
        return {key: _map(f, item) for key, item in value.items()}
    return f(value)


def _like(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """The same place in another storage."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    found = empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return found.conj() if tensor.is_conj() else found


def _pointers(inputs: Iterable[Tensor]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in inputs}


def _owns_its_storage(tensor: Tensor) -> bool:
    """Whether the tensor is all that its storage holds, each value once."""
    return (
        tensor.storage_offset() == 0
        and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        and not any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    )


def _laid_out(value: Tensor, like: Tensor) -> torch.UntypedStorage:
    """A storage of its own for a lower term, laid out as the leading one."""
    storage = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)
    storage.copy_(value)
    return storage.untyped_storage()
