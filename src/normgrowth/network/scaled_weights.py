"""`scaled_weights`: a network with c times its weights inside a `with` block.

Scaling back by 1/c does not restore weights, because most products are rounded. So a tensor is copied and the copy
restored. If c is a power of two and no bit is lost by scaling, the tensor is scaled in place instead.

Tensors may share memory (tied weights, slices of one flat buffer). So ranges of memory are scaled, each element once,
even if several parameters share it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import frexp, isfinite
from numbers import Real
from typing import NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from normgrowth.errors import InputError
from normgrowth.limit.forward_pass.compiled import plain_name
from normgrowth.limit.growing_parameters.fixed import matching
from normgrowth.limit.growing_parameters.memory import (
    Named,
    extent,
    local_weights,
    overlapping,
    refuse_packed_weights,
)

Include = str | Callable[[str], bool]
Weights = nn.Module | Tensor | Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]
Given = TypeVar("Given", bound=Weights)

PIECE = 1 << 18  # values per chunk, to avoid temporary copies of whole tensors


def scaled_weights(
    model_or_parameters: Given, c: float = 1000, include: Include | None = None, fixed: Sequence[str] = ()
) -> AbstractContextManager[Given]:
    """Multiply the parameters by c within a `with` block; afterwards they are bit-identical to before.

    Takes a module, a tensor, a dict, an iterable of tensors (their names are "0", "1", ...) or of
    (name, tensor). `include` is a regular expression searched for in the names, or a function of the name;
    a tied parameter is chosen by any of its names. `fixed`: names or patterns (`*.A_log`) of parameters that are not
    scaled, as for `saturated`. Buffers and gradients are not changed.

    A tensor is copied only if necessary (see above); never for c = 1024 and ordinary weights.

    The object can be reused and nested. A module's parameters are looked up at each entry. Values written to
    parameters within the block are lost. Autograd detects the change: backward through a graph recorded before the
    block, or within it and used afterwards, raises an error instead of returning a wrong gradient. Of a DTensor, each
    process scales its own shard.

    Raises InputError, with nothing changed, if a finite weight would overflow its dtype, and for parameters that cannot
    be scaled (integers, i.e. packed or quantized weights; float8, complex, sparse, meta): a network with only some
    weights scaled would be neither f(θ) nor f(cθ). If such parameters are not weights, exclude them with `include`.

    >>> norm = model.transformer.h[0].mlp.c_fc.weight.norm().item()
    >>> with ng.scaled_weights(model, 1024):
    ...     model.transformer.h[0].mlp.c_fc.weight.norm().item() / norm
    1024.0
    """
    return _Scaled(model_or_parameters, _factor(c), _chooser(include), fixed)


class _Scaled(AbstractContextManager[Given]):
    def __init__(
        self, given: Given, c: float, chosen: Callable[[str], bool] | None, fixed: Sequence[str] = ()
    ):
        self.given, self.c, self.chosen, self.fixed = given, c, chosen, fixed
        self.named = None if isinstance(given, nn.Module) else _named(given)
        self._chosen()  # raises an error for unknown names
        self.entries: list[list[_Change]] = []

    def _chosen(self) -> Named:
        """The parameters that are not fixed; those of a module are looked up at each entry."""
        return _without(_named(self.given) if self.named is None else self.named, self.fixed)

    def __enter__(self) -> Given:
        named = _choose(self._chosen(), self.chosen)
        changes: list[_Change] = []
        try:
            with torch.inference_mode(False), torch.no_grad():
                changes += [_Change(part, self.c, _invertible(part, self.c)) for part in _stretches(named)]
                for change in changes:
                    change.make()
            torch.clear_autocast_cache()  # it contains casts of the unscaled weights
            self.entries.append(changes)
            return self.given
        except BaseException:
            _undo(changes)
            self.entries = [entry for entry in self.entries if entry is not changes]
            raise

    def __exit__(self, *exception: object) -> None:
        changes = self.entries[-1]
        try:
            _undo(changes)
        except BaseException:  # interrupted: undoing can be repeated
            _undo(changes)
            raise
        finally:
            torch.clear_autocast_cache()
            self.entries.pop()


# Arguments -------------------------------------------------------------------------------------------


def _factor(c: float) -> float:
    if not isinstance(c, Real) or isinstance(c, bool):
        raise InputError(f"c must be a real number, got {c!r}")
    try:
        factor = float(c)
    except OverflowError:
        factor = float("inf")
    if factor == 0 or not isfinite(factor):
        raise InputError(f"c must be finite and nonzero, got {c!r}")
    return factor


def _chooser(include: Include | None) -> Callable[[str], bool] | None:
    if not isinstance(include, str):
        if include is None or callable(include):
            return include
        raise InputError(f"include must be a regular expression or a function of the name, got {include!r}")
    try:
        pattern = re.compile(include)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"include {include!r} is not a regular expression: {error}") from None
    return lambda name: pattern.search(name) is not None


def _named(given: Weights) -> Named:
    if isinstance(given, nn.Module):
        refuse_packed_weights(given.named_modules())
        return list(given.named_parameters(remove_duplicate=False))
    if isinstance(given, Tensor):  # iterating over it would give its rows
        given = [given]
    if not isinstance(given, Iterable):
        raise InputError(f"scaled_weights takes a module or parameters, got {type(given).__name__}")
    named: Named = []
    for position, entry in enumerate(given.items() if isinstance(given, Mapping) else given):
        name, tensor = entry if isinstance(entry, tuple) and len(entry) == 2 else (str(position), entry)
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise InputError(f"scaled_weights takes a module or parameters; entry {position} is {entry!r}")
        named.append((name, tensor))
    if not named:
        raise InputError("no parameters were given (is the iterator exhausted?)")
    return named


def _choose(named: Named, chosen: Callable[[str], bool] | None) -> Named:
    kept = [(name, tensor) for name, tensor in named if chosen is None or chosen(name)]
    if named and not kept:
        some = ", ".join(name for name, _ in named[:3])
        raise InputError(f"include matches none of the {len(named)} parameters ({some}, ...)")
    return kept


def _without(named: Named, fixed: Sequence[str]) -> Named:
    """All parameters but the fixed ones, which are recognized by any of their names."""
    if not fixed:
        return named
    names = matching([plain_name(name) for name, _ in named], fixed)
    left = {id(tensor) for name, tensor in named if plain_name(name) in names}
    return [(name, tensor) for name, tensor in named if id(tensor) not in left]


# Ranges of memory ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stretch:
    """A range of memory as one row of values, with a mask of the values that are parameters (None: all)."""

    name: str  # of its first parameter
    row: Tensor
    covered: Tensor | None
    shown_by: list[Tensor]

    def values(self) -> Tensor:
        return self.row if self.covered is None else self.row[self.covered]


def _stretches(named: Named) -> list[_Stretch]:
    """Group parameters that overlap in memory into one range each."""
    groups = overlapping([(name, local_weights(name, tensor)) for name, tensor in named])
    return [_stretch(*zip(*group, strict=True)) for group in groups]


def _stretch(names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> _Stretch:
    first, storage = tensors[0], tensors[0].untyped_storage()
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.dtype != first.dtype or tensor.untyped_storage().data_ptr() != storage.data_ptr():
            raise InputError(f"{name} shares memory with {names[0]}, but not its dtype or storage")
    start = first.storage_offset()
    end = max(tensor.storage_offset() + extent(tensor) for tensor in tensors)
    row = torch.empty(0, dtype=first.dtype, device=first.device)
    row.set_(storage, start, (end - start,), (1,))
    if first.is_contiguous() and first.numel() == row.numel():
        return _Stretch(names[0], row, None, list(tensors))
    places = torch.arange(row.numel(), device=row.device)
    covered = torch.zeros_like(places, dtype=torch.bool)
    for tensor in tensors:
        covered[places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - start)] = True
    return _Stretch(names[0], row, None if covered.all() else covered, list(tensors))


# Scaling ---------------------------------------------------------------------------------------------


def _times(values: Tensor, c: float) -> Tensor:
    if _within_reach(values.dtype, c):
        return values * c
    return (values.double() * c).to(values.dtype)


def _within_reach(dtype: torch.dtype, c: float) -> bool:
    """Whether c and 1/c are normal numbers in the dtype of the multiplication (float32 for 16-bit values)."""
    tiny = torch.finfo(torch.promote_types(dtype, torch.float32)).tiny
    return tiny <= abs(c) <= 1 / tiny


def _invertible(stretch: _Stretch, c: float) -> bool:
    """Whether values · c / c has the same bits; raises an error if finite values overflow."""
    values = stretch.values()
    dtype = values.dtype
    tiny = values.new_tensor(torch.finfo(dtype).tiny)
    in_place = (
        abs(frexp(c)[0]) == 0.5
        and stretch.covered is None
        and _within_reach(dtype, c)
        and bool(tiny / 2)  # 0 if denormal numbers are flushed to zero (torch.set_flush_denormal)
    )
    largest = torch.stack(values.aminmax()).abs().max()
    if largest.isfinite():
        if not _times(largest, c).isfinite():
            _overflow(stretch.name, float(largest), c, dtype)
        if not in_place or abs(c) >= 1:
            return in_place
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    for piece in values.split(PIECE):
        scaled = _times(piece, c)
        finite = piece.isfinite()
        if not scaled.isfinite().equal(finite):
            _overflow(stretch.name, float(piece[finite].abs().max()), c, dtype)
        in_place = in_place and (scaled / c).view(bits).equal(piece.view(bits))
    return in_place


def _overflow(name: str, largest: float, c: float, dtype: torch.dtype) -> NoReturn:
    limit = f"{torch.finfo(dtype).max:g}, the largest {dtype}"
    raise InputError(f"{name} overflows: {c:g} times {largest:g} exceeds {limit}; use a smaller c")


@dataclass
class _Change:
    """The scaling of a range of memory and its undoing. Both may be interrupted at any point: a copy can be restored
    twice. Without a copy, the version counter of the row, which every operation increments, shows whether the scaling
    was carried out. (This needs inference mode to be off, which does not count versions.)"""

    stretch: _Stretch
    c: float
    in_place: bool
    saved: Tensor | None = None
    version: int | None = None  # version counter of the row before scaling

    def make(self) -> None:
        row, covered = self.stretch.row, self.stretch.covered
        if self.in_place:
            self.version = row._version
            row.mul_(self.c)
        elif covered is None:
            self.saved = row.clone()
            for piece in row.split(PIECE):
                piece.copy_(_times(piece, self.c))
        else:
            self.saved = row[covered]
            row[covered] = _times(self.saved, self.c)
        increment_version(self.stretch.shown_by)

    def undo(self) -> None:
        row, covered = self.stretch.row, self.stretch.covered
        if self.saved is not None:
            row[... if covered is None else covered] = self.saved
        elif self.version is not None and row._version == self.version + 1:
            row.div_(self.c)
        increment_version(self.stretch.shown_by)


def _undo(changes: list[_Change]) -> None:
    with torch.inference_mode(False), torch.no_grad():
        for change in changes:
            change.undo()
