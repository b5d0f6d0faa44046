"""`scaled_weights`: a network with c times its weights, for as long as a `with` block lasts.

Scaling back by 1/c does not bring weights back: most products are rounded. So a tensor is copied, and the
copy put back, unless c is a power of two and no bit is lost on the way there and back; then it is scaled
in place.

Tensors may share memory (tied weights, slices of one flat buffer). What is scaled are therefore stretches
of memory, each element once, whatever number of parameters show it.
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
from normgrowth.limit.parameters.fixed import matching
from normgrowth.limit.parameters.memory import (
    Named,
    extent,
    local_weights,
    overlapping,
    refuse_packed_weights,
)

Include = str | Callable[[str], bool]
Weights = nn.Module | Tensor | Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]
Given = TypeVar("Given", bound=Weights)

PIECE = 1 << 18  # values that are looked at together, where a whole tensor would mean another copy


def scaled_weights(
    model_or_parameters: Given, c: float = 1000, include: Include | None = None, fixed: Sequence[str] = ()
) -> AbstractContextManager[Given]:
    """Within the block the parameters are c times themselves; after it they are what they were, to the bit.

        with scaled_weights(model, 1000):
            states = model(ids)

    Takes a module, a tensor, a dict, an iterable of tensors (their names are "0", "1", ...) or of
    (name, tensor). `include` is a regular expression searched for in the names, or a function of the name;
    a tied parameter is chosen by any of its names. `fixed` has names or patterns (`*.A_log`) of parameters to leave as
    they are, as `saturated` has it. Buffers are left alone, and so are gradients.

    A tensor is copied only if it must be (see above): never for c = 1024 and ordinary weights.

    The object can be used again, and nested. A module's parameters are looked up at each entry. What is
    written to them within the block is not kept. Autograd notices the change: backward through a graph
    recorded on the other side of the border is an error, not a wrong gradient. Of a DTensor each process
    scales its own part.

    Raises InputError, with nothing changed, if a finite weight would overflow its dtype, and for
    parameters that cannot be scaled (integers, that is packed or quantised ones, float8, complex, sparse,
    meta): a network of which some weights stay behind would be neither f(θ) nor f(cθ). If they are not
    weights, leave them out with `include`.
    """
    return _Scaled(model_or_parameters, _factor(c), _chooser(include), fixed)


class _Scaled(AbstractContextManager[Given]):
    def __init__(
        self, given: Given, c: float, chosen: Callable[[str], bool] | None, fixed: Sequence[str] = ()
    ):
        self.given, self.c, self.chosen, self.fixed = given, c, chosen, fixed
        self.named = None if isinstance(given, nn.Module) else _named(given)
        _without(_named(given) if self.named is None else self.named, fixed)  # refuses unknown names
        self.entries: list[list[_Change]] = []

    def __enter__(self) -> Given:
        named = _without(_named(self.given) if self.named is None else self.named, self.fixed)
        named = _choose(named, self.chosen)
        changes: list[_Change] = []
        try:
            with torch.inference_mode(False), torch.no_grad():
                changes += [_Change(part, self.c, _invertible(part, self.c)) for part in _stretches(named)]
                for change in changes:
                    change.make()
            torch.clear_autocast_cache()  # it has casts of the weights as they were
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
        except BaseException:  # an interruption: undoing can be taken up again
            _undo(changes)
            raise
        finally:
            torch.clear_autocast_cache()
            self.entries.pop()


# What is given ---------------------------------------------------------------------------------------


def _factor(c: float) -> float:
    if not isinstance(c, Real) or isinstance(c, bool):
        raise InputError(f"c must be a real number, not {c!r}")
    try:
        factor = float(c)
    except OverflowError:
        factor = float("inf")
    if factor == 0 or not isfinite(factor):
        raise InputError(f"c must be finite and not zero, not {c!r}")
    return factor


def _chooser(include: Include | None) -> Callable[[str], bool] | None:
    if not isinstance(include, str):
        if include is None or callable(include):
            return include
        raise InputError(f"include must be a regular expression or a function of the name, not {include!r}")
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
        raise InputError(f"scaled_weights takes a module or parameters, not {type(given).__name__}")
    named: Named = []
    for position, entry in enumerate(given.items() if isinstance(given, Mapping) else given):
        name, tensor = entry if isinstance(entry, tuple) and len(entry) == 2 else (str(position), entry)
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise InputError(f"scaled_weights takes a module or parameters; entry {position} is {entry!r}")
        named.append((name, tensor))
    if not named:
        raise InputError("no parameters were given (an iterator that was used up before?)")
    return named


def _choose(named: Named, chosen: Callable[[str], bool] | None) -> Named:
    kept = [(name, tensor) for name, tensor in named if chosen is None or chosen(name)]
    if named and not kept:
        some = ", ".join(name for name, _ in named[:3])
        raise InputError(f"select chose none of the {len(named)} parameters ({some}, ...)")
    return kept


def _without(named: Named, fixed: Sequence[str]) -> Named:
    """All but the parameters that are held fixed, under whatever name."""
    if not fixed:
        return named
    names = matching([plain_name(name) for name, _ in named], fixed)
    left = {id(tensor) for name, tensor in named if plain_name(name) in names}
    return [(name, tensor) for name, tensor in named if id(tensor) not in left]


# Where it lies in memory -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stretch:
    """Some memory, seen as one row of values, and which of them are parameters (None: all of them)."""

    name: str  # of the first parameter there
    row: Tensor
    covered: Tensor | None
    shown_by: list[Tensor]

    def values(self) -> Tensor:
        return self.row if self.covered is None else self.row[self.covered]


def _stretches(named: Named) -> list[_Stretch]:
    """Parameters that overlap in memory make one stretch."""
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


# Scaling it ------------------------------------------------------------------------------------------


def _times(values: Tensor, c: float) -> Tensor:
    if _within_reach(values.dtype, c):
        return values * c
    return (values.double() * c).to(values.dtype)


def _within_reach(dtype: torch.dtype, c: float) -> bool:
    """Whether c and 1/c are ordinary numbers where values of this dtype are multiplied (halves: float32)."""
    tiny = torch.finfo(torch.promote_types(dtype, torch.float32)).tiny
    return tiny <= abs(c) <= 1 / tiny


def _invertible(stretch: _Stretch, c: float) -> bool:
    """Whether values · c / c gives the same bits; an error if finite values overflow."""
    values = stretch.values()
    dtype = values.dtype
    tiny = values.new_tensor(torch.finfo(dtype).tiny)
    in_place = (
        abs(frexp(c)[0]) == 0.5
        and stretch.covered is None
        and _within_reach(dtype, c)
        and bool(tiny / 2)  # no: small numbers are flushed to zero here (torch.set_flush_denormal)
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
    raise InputError(f"{name} overflows: {c:g} times {largest:g} is beyond {limit}; take a smaller c")


@dataclass
class _Change:
    """A stretch, scaled and scaled back. It may be interrupted anywhere: a copy can be put back twice, and
    without one the row's own version counter, which each operation moves, tells what was carried out.
    (Outside inference mode, that is: within it no versions are counted.)"""

    stretch: _Stretch
    c: float
    in_place: bool
    saved: Tensor | None = None
    version: int | None = None  # before anything was done

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
