"""Degree marks on storages: conversion between tensors and series.

A tensor in the limit is an ordinary tensor with the coefficients of its highest degree. A mark on its storage has the
degree and the lower terms, so that all views share them, and in-place operations change them for every view. A lower
term is a storage of the same layout.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from normgrowth.limit.power_series import Exponential, Series, Term, Unfinished

MARK = "_normgrowth"  # storage attribute with the DegreeMark
HALVES = (torch.bfloat16, torch.float16)
Hung = list[tuple[Fraction, torch.UntypedStorage, int]]  # terms: degree, coefficients, sources


@dataclass(slots=True)
class DegreeMark:
    """The degree and the lower terms of the values in a storage; `run` identifies the Limit that made it."""

    run: object
    degree: Fraction
    sources: int
    lower: Hung
    rest: Fraction | None
    zero: bool = False
    doubt: bool = False
    exact: torch.UntypedStorage | None = None  # float32 leading coefficients of a 16-bit tensor
    exponential: "HungExponential | None" = None
    lost: bool = False
    exact_zeros: bool = False
    diverges: Exception | None = None
    scales: dict[Fraction, Tensor] | None = None
    unfinished: Unfinished | None = None  # only on a storage that one contiguous tensor fills
    known_zeros: bool = False
    tied: torch.UntypedStorage | None = None
    lost_beside: bool = False

    def finish(self) -> None:
        """Compute the deferred lower orders."""
        if self.unfinished is None:
            return
        found = self.unfinished.finished()
        like = torch.empty(found.shape, dtype=found.top.value.dtype, device=found.top.value.device)
        self.lower, self.rest, self.scales = _hung(found.terms[1:], like), found.rest, found.scales
        self.unfinished = None


@dataclass(slots=True)
class HungExponential:
    """An `Exponential` in storages with the layout of the tensor."""

    weight: torch.UntypedStorage
    decay: Hung
    rest: Fraction | None
    zero: bool
    origin: object


def series_of(tensor: Tensor, mark: DegreeMark, unfinished: bool = False) -> Series:
    """The series of a tensor with a mark on its storage. unfinished: lower orders may remain deferred."""
    waiting = None
    if mark.unfinished is not None:
        if unfinished and tensor.is_contiguous() and owns_its_storage(tensor):
            waiting = mark.unfinished.viewed(tensor.shape)
        if waiting is None:
            mark.finish()
    top = tensor if mark.exact is None else same_place(tensor, mark.exact)
    if top.dtype in HALVES:  # a parameter: its 16-bit values are exact
        top = top.float()
    terms = (Term(mark.degree, top, mark.sources),)
    if mark.lower:
        terms += _terms(mark.lower, tensor)
    return Series(
        terms,
        mark.rest,
        mark.zero,
        mark.doubt,
        None if mark.exponential is None else _exponential(mark.exponential, tensor),
        mark.lost,
        mark.exact_zeros,
        mark.diverges,
        mark.scales,
        waiting,
        mark.known_zeros,
        None if mark.tied is None else same_place(tensor, mark.tied),
        mark.lost_beside,
    )


def inner_storages(mark: DegreeMark) -> list[int]:
    """The storages of a mark: those of lower terms, and of float32 coefficients."""
    found = [storage._cdata for _, storage, _ in mark.lower]
    return found if mark.exact is None else [*found, mark.exact._cdata]


def mark_of(
    series: Series,
    tensor: Tensor,
    exact: torch.UntypedStorage | None,
    run: object,
    taken: Collection[int] | None = None,
) -> DegreeMark:
    """The mark for a tensor that fills its storage and has the leading coefficients of a series.

    taken: storages of the operation's arguments; a lower term in none of them is used without a copy. None: copy all.
    """
    top, lower, part = series.terms[0], series.terms[1:], series.exponential
    return DegreeMark(
        run,
        top.degree,
        top.sources,
        _hung(lower, tensor, taken) if lower else [],
        series.rest,
        series.zero,
        series.doubt,
        exact,
        None if part is None else _hung_exponential(part, tensor),
        series.lost,
        series.exact_zeros,
        series.diverges,
        series.scales,
        series.unfinished,
        series.known_zeros,
        None if series.tied is None else storage_like(series.tied, tensor),
        series.lost_beside,
    )


def _terms(hung: Hung, like: Tensor) -> tuple[Term, ...]:
    return tuple(Term(degree, same_place(like, storage), sources) for degree, storage, sources in hung)


def _exponential(part: HungExponential, like: Tensor) -> Exponential:
    decay = Series(_terms(part.decay, like), part.rest, part.zero)
    return Exponential(same_place(like, part.weight), decay, part.origin)


def _hung(terms: Iterable[Term], like: Tensor, taken: Collection[int] | None = None) -> Hung:
    return [
        (
            term.degree,
            term.value.untyped_storage()
            if taken is not None and _may_hang(term.value, like, taken)
            else storage_like(term.value, like),
            term.sources,
        )
        for term in terms
    ]


def _may_hang(value: Tensor, like: Tensor, taken: Collection[int]) -> bool:
    """Whether a lower term can be used without a copy: same layout, and not a tensor that the network may write to."""
    return (
        value.dtype == wide(like.dtype)
        and value.stride() == like.stride()
        and value.shape == like.shape
        and not value.is_conj()
        and not value.is_neg()
        and owns_its_storage(value)
        and (pointer := value.untyped_storage()._cdata) not in taken
        and pointer != like.untyped_storage()._cdata
    )


def _hung_exponential(part: Exponential, like: Tensor) -> HungExponential:
    decay = part.decay
    weight, terms = storage_like(part.weight, like), _hung(decay.terms, like)
    return HungExponential(weight, terms, decay.rest, decay.zero, part.origin)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the coefficients of a tensor."""
    return torch.float32 if dtype in HALVES else dtype


def torch_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None if it has no storage (sparse, meta) and therefore no degree."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def flat(storage: torch.UntypedStorage, like: Tensor, dtype: torch.dtype) -> Tensor:
    """All values of a storage as a flat tensor."""
    return torch.empty(0, dtype=dtype, device=like.device).set_(storage)


def same_place(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """A view of another storage with the offset, shape and strides of the tensor."""
    empty = torch.empty(0, dtype=wide(tensor.dtype), device=tensor.device)
    found = empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return found.conj() if tensor.is_conj() else found


def storage_like(value: Tensor, like: Tensor) -> torch.UntypedStorage:
    """A new storage for a lower term, with the layout of the leading term."""
    storage = torch.empty_strided(like.size(), like.stride(), dtype=wide(like.dtype), device=like.device)
    storage.copy_(value)
    return storage.untyped_storage()


def owns_its_storage(tensor: Tensor) -> bool:
    """Whether the tensor covers its whole storage, each value once."""
    return fills(tensor, tensor.untyped_storage())


def fills(tensor: Tensor, storage: torch.UntypedStorage) -> bool:
    """Whether the tensor covers the whole of this storage, which is its own."""
    if tensor.storage_offset() or tensor.nbytes != storage.nbytes():
        return False
    return tensor.is_contiguous() or not any(
        n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
