"""A tensor that grows with c, as a sum of powers of c with tensors as coefficients.

    f(cθ) = c^3 A + c^1 B + ...        terms of degree 3 and 1, coefficients A and B

Coefficients are exactly zero where an element has no part of that degree, so elements of one tensor may differ
in degree. The leading term of every element is exact. Lower terms may be left out; `rest` is the highest degree
that was omitted. It shows whether a decision by lower orders is final or might change with more orders.

Below all powers there may be an exponentially small part: sigmoid(c) = 1 - exp(-c) + ... It determines the ranking
of values that are equal in the limit, and the ratio and the logarithm of values that vanish.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import torch
from torch import Tensor

ZERO = Fraction(0)
STEP = Fraction(1, 1 << 20)  # smaller than any difference of degrees
MASK = -1e29  # a constant at or below this is a mask and treated as minus infinity
HALF_MASK = 0.95 * torch.finfo(torch.float16).min  # the same for float16: -5e4 is an ordinary number


# Term and Exponential are immutable by convention: creating frozen dataclasses takes longer than arithmetic on a small
# tensor.
@dataclass(slots=True)
class Term:
    degree: Fraction
    value: Tensor
    sources: int  # the parameters it depends on, one bit each


@dataclass(frozen=True)
class Exponential:
    """weight · exp(-decay): smaller than any power of c, because the decay grows."""

    weight: Tensor  # 0 for elements without such a part
    decay: "Series"
    origin: object = None  # elements of parts of the same origin that have equal decays are the same element


class Unfinished(Protocol):
    """Deferred lower orders, which are computed only on demand (for attention scores)."""

    def finished(self) -> "Series":
        """The series with all of its orders."""
        ...

    def part(self, place: tuple[slice, slice]) -> "Series":
        """All orders of a part of the first two of four dimensions (batch, heads)."""
        ...

    def viewed(self, shape: torch.Size) -> "Unfinished | None":
        """The deferred orders of a contiguous view of this shape; None if they have to be computed first."""
        ...

    def times(self, factor: float) -> "Unfinished | None":
        """The deferred orders of the scores times a number; None if they have to be computed first."""
        ...

    def plus(self, scores: "Series", other: "Series") -> "Series | None":
        """The sum of unfinished scores and another series; None if they have to be finished first."""
        ...


@dataclass(slots=True)
class Series:
    terms: tuple[Term, ...]  # in descending degree, at least one
    rest: Fraction | None = None  # the highest omitted degree; None: nothing was omitted
    zero: bool = False  # exactly 0, so without a degree
    doubt: bool = False  # depends on a tie of attention scores that an omitted order might break
    exponential: Exponential | None = None
    lost: bool = False  # there may be an exponentially small part that was not computed
    exact_zeros: bool = False  # elements that are 0 are exactly 0 even if `lost`, for example after relu
    diverges: Exception | None = None  # the error for infinite elements, raised if a result depends on them
    scales: dict[Fraction, Tensor] | None = (
        None  # for scores: |q||k| of each matrix by degree, which bounds their rounding
    )
    unfinished: Unfinished | None = None  # deferred orders that `terms` lack; None: none
    known_zeros: bool = False  # for elements that are 0, no power of c was omitted
    tied: Tensor | None = (
        None  # with `doubt`, if known: the values if keys of such a tie share their weight equally
    )
    lost_beside: bool = False  # with `lost`: the parts of elements without a power of c were computed

    @property
    def top(self) -> Term:
        return self.terms[0]

    @property
    def shape(self) -> torch.Size:
        return self.top.value.shape

    @property
    def sources(self) -> int:
        return _union(self.terms)

    @property
    def is_constant(self) -> bool:
        """Whether it does not depend on c."""
        return self.rest is None and len(self.terms) == 1 and self.top.degree == 0

    @property
    def is_level(self) -> bool:
        """Whether it has degree 0 and no lower terms."""
        return len(self.terms) == 1 and self.top.degree == 0

    @property
    def is_given(self) -> bool:
        """Whether it is a constant that depends on no parameter, so that every element is exact."""
        return self.is_constant and not self.top.sources and not self.lost and self.exponential is None

    def changed(self, **fields: Any) -> "Series":
        """A copy with some fields replaced; `dataclasses.replace` takes three times as long."""
        found = Series(
            self.terms,
            self.rest,
            self.zero,
            self.doubt,
            self.exponential,
            self.lost,
            self.exact_zeros,
            self.diverges,
            self.scales,
            self.unfinished,
            self.known_zeros,
            self.tied,
            self.lost_beside,
        )
        for name, value in fields.items():
            setattr(found, name, value)
        return found

    def map(self, f: Callable[[Tensor], Tensor]) -> "Series":
        """Apply a linear function."""
        terms = tuple([Term(term.degree, f(term.value), term.sources) for term in self.terms])
        lost = self.lost or self.exponential is not None
        found = Series(terms, self.rest, self.zero, self.doubt, None, lost, False, self.diverges, self.scales)
        if self.tied is not None:
            found.tied = f(self.tied)
        return found

    def move(self, f: Callable[[Tensor], Tensor]) -> "Series":
        """Apply a function that only moves, copies or drops elements."""
        found = self.map(f)
        found.exact_zeros, found.known_zeros = (
            self.exact_zeros,
            self.known_zeros,
        )  # safe: `found` is not shared yet
        if self.exponential is None:
            return found
        part = self.exponential
        moved = Exponential(f(part.weight), part.decay.move(f), part.origin)
        return found.changed(exponential=moved, lost=self.lost, lost_beside=self.lost_beside)

    def at(self, degree: Fraction) -> Tensor | None:
        return next((term.value for term in self.terms if term.degree == degree), None)

    def only(self, keep: Tensor) -> "Series":
        """The series with zeros where `keep` is False."""
        return self.map(lambda value: torch.where(keep, value, torch.zeros((), dtype=value.dtype)))

    def vanishes(self) -> Tensor:
        """Elements without a term: 0, or smaller than any power of c."""
        found = self.top.value == 0
        for term in self.terms[1:]:
            found = found & (term.value == 0)
        return found

    def sign(self, infinite: bool = False) -> Tensor:
        """The sign of each element for large c, which is the sign of its leading term. infinite: keep infinities."""
        sign = torch.sign(self.top.value)
        if infinite:
            sign = torch.where(torch.isfinite(self.top.value), sign, self.top.value)
        for term in self.terms[1:]:
            undecided = sign == 0
            if not undecided.any():
                break
            sign = torch.where(undecided, torch.sign(term.value), sign)
        if self.exponential is not None:
            sign = torch.where(sign == 0, torch.sign(self.exponential.weight), sign)
        return sign


def broadcast_shape(a: torch.Size, b: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes` for two shapes, but faster: the original takes longer than a sum of small tensors."""
    if len(a) < len(b):
        a, b = b, a
    return a if a[len(a) - len(b) :] == b else torch.broadcast_shapes(a, b)


def with_all_orders(x: Series) -> Series:
    """A series with all of its orders."""
    return x if x.unfinished is None else x.unfinished.finished().changed(lost=x.lost)


def constant_series(value: Tensor) -> Series:
    return Series((Term(ZERO, value, 0),), zero=not nonzero(value))


def nonzero(value: Tensor) -> bool:
    """Whether any element is not 0; checks the first few elements before all of them."""
    if value.numel() > 4096 and value.is_contiguous() and bool(value.view(-1)[:64].any()):
        return True
    return bool(value.count_nonzero())  # faster than any()


def all_nonzero(value: Tensor) -> bool:
    """Whether no element is 0."""
    return int(value.count_nonzero()) == value.numel()  # faster than all()


def mask_bound(dtype: torch.dtype) -> float:
    """The bound for masks: a constant at or below it is a mask (-inf, finfo.min, -1e30)."""
    return HALF_MASK if dtype == torch.float16 else MASK


def hides(value: Tensor) -> Tensor:
    return value <= mask_bound(value.dtype)


def masked(value: Tensor) -> Tensor | None:
    """The elements of a constant that are masks; None if there are none. float16's minimum is a mask in any dtype."""
    if not value.is_floating_point() or value.numel() == 0:
        return None
    bound = mask_bound(value.dtype)
    if (least := float(value.amin())) <= bound:
        return value <= bound
    return value == least if least == torch.finfo(torch.float16).min else None


def infinite(value: Tensor) -> Tensor | None:
    """A tensor of −∞ at masks, ∞ at constants as large as a mask, 0 elsewhere; None if it would be all 0."""
    hidden = masked(value)
    if hidden is None and not (value.is_floating_point() and value.numel()):
        return None
    bound = -mask_bound(value.dtype)
    if hidden is None and not float(value.amax()) >= bound:
        return None
    found = torch.zeros_like(value)
    found = found if hidden is None else found.masked_fill(hidden, -torch.inf)
    return found.masked_fill(value >= bound, torch.inf)


def infinities_first(x: Series) -> Series:
    """The series with infinite elements in its leading term, where they outweigh what grows."""
    for term in x.terms[1:]:
        here = infinite(term.value) if term.degree == 0 else torch.where(term.value.isinf(), term.value, 0.0)
        if here is None or not nonzero(here):
            continue
        gone = here != 0
        terms = [replace(t, value=t.value.masked_fill(gone, 0.0)) for t in x.terms]
        terms[0].value.add_(here)
        x = x.changed(terms=tuple(terms))
    return x


def decided(terms: list[Tensor]) -> bool:
    """Whether every element has a term that is not 0."""
    if all_nonzero(terms[0]):
        return True
    something = terms[0] != 0
    for value in terms[1:]:
        something = something | (value != 0)
    return bool(something.all())


def _union(terms: Iterable[Term]) -> int:
    sources = 0
    for term in terms:
        sources |= term.sources
    return sources


def highest(*degrees: Fraction | None) -> Fraction | None:
    found = None
    for degree in degrees:
        if degree is not None and (found is None or degree > found):
            found = degree
    return found


def from_parts(parts: dict[Fraction, tuple[Tensor, int]], rest: Fraction | None = None) -> Series:
    """The series of these parts in descending degree, without terms that are all 0 (a zero has no degree).

    A rest above the lowest term means only that this term may be incomplete.
    """
    return without_zeros([Term(degree, *parts[degree]) for degree in sorted(parts, reverse=True)], rest)


def without_zeros(terms: list[Term], rest: Fraction | None) -> Series:
    """The series of terms in descending degree, without terms that are all 0."""
    kept = tuple([term for term in terms if nonzero(term.value)])
    if kept:
        return Series(kept, rest)
    if rest is None:
        return Series((Term(ZERO, terms[0].value, 0),), None, zero=True)
    return Series((terms[-1],), rest)


def combine(f: Callable[..., Tensor], *series: Series, moves: bool = False) -> Series:
    """Apply a function that is jointly linear in its arguments (a sum, a concatenation), degree by degree.

    moves: each element of the result is an element of an argument (a concatenation, a choice).
    """
    scales = next((s.scales for s in series if s.scales is not None), None)
    found = _combined(f, *series)
    if found.doubt and any(s.tied is not None for s in series) and all(s.zero or s.is_level for s in series):
        found.tied = f(*(s.top.value if s.tied is None else s.tied for s in series))
    if scales is not None:
        found = found.changed(scales=scales)
    lost = any(s.lost for s in series)
    if moves and any(s.exact_zeros for s in series):
        found = found.changed(exact_zeros=all(s.exact_zeros or s.zero or s.is_given for s in series))
    if not any(s.exponential for s in series):
        return found.changed(lost=True) if lost else found
    if not moves:
        return found.changed(lost=True)
    parts = [s.exponential or Exponential(torch.zeros_like(s.top.value), _nothing(s)) for s in series]
    moved = Exponential(f(*(p.weight for p in parts)), _combined(f, *(p.decay for p in parts)))
    return found.changed(exponential=moved, lost=lost)


def _nothing(like: Series) -> Series:
    return Series((Term(ZERO, torch.zeros_like(like.top.value), 0),), zero=True)


def _combined(f: Callable[..., Tensor], *series: Series) -> Series:
    if (alike := _one_degree(series)) is not None:
        value, sources = f(*[term.value for term in alike]), _union(alike)
        found = without_zeros([Term(alike[0].degree, value, sources)], highest(*[s.rest for s in series]))
        return found.changed(doubt=True) if any(s.doubt for s in series) else found
    degrees = sorted({term.degree for s in series for term in s.terms if not s.zero}, reverse=True)
    if not degrees:
        return Series((Term(ZERO, f(*(s.top.value for s in series)), 0),), zero=True)
    parts = {}
    for degree in degrees:
        values, sources = [], 0
        for s in series:
            term = next((t for t in s.terms if t.degree == degree and not s.zero), None)
            values.append(torch.zeros_like(s.top.value) if term is None else term.value)
            sources |= 0 if term is None else term.sources
        parts[degree] = f(*values), sources
    found = from_parts(parts, highest(*(s.rest for s in series)))
    return found.changed(doubt=any(s.doubt for s in series))


def _one_degree(series: tuple[Series, ...]) -> list[Term] | None:
    """The terms of the series if each has one term and all have the same degree, else None."""
    degree = series[0].top.degree
    for s in series:
        if len(s.terms) != 1 or s.zero or s.terms[0].degree != degree:
            return None
    return [s.terms[0] for s in series]


def product(f: Callable[[Tensor, Tensor], Tensor], a: Series, b: Series, orders: int) -> Series:
    """Apply a bilinear function to pairs of terms in descending degree, until every element has a leading term.

    The exponentially small part of the result is not computed.
    """
    found = _product(f, a, b, orders)
    found.lost = (  # in place: `found` is new and not shared
        a.lost or b.lost or a.exponential is not None or b.exponential is not None
    ) and not found.exact_zeros
    return found


def _product(f: Callable[[Tensor, Tensor], Tensor], a: Series, b: Series, orders: int) -> Series:
    if a.zero or b.zero:
        exact = any(x.zero and not x.lost and x.exponential is None for x in (a, b))
        return Series((Term(ZERO, f(a.top.value, b.top.value), 0),), zero=True, exact_zeros=exact)
    top = a.top.degree + b.top.degree
    rest = highest(
        None if a.rest is None else a.rest + b.top.degree, None if b.rest is None else b.rest + a.top.degree
    )
    first = Term(top, f(a.top.value, b.top.value), a.top.sources | b.top.sources)
    if len(a.terms) == len(b.terms) == 1:
        return Series((first,), rest)
    if orders == 1 and all_nonzero(first.value):  # the first pair suffices
        next_a = a.terms[1].degree + b.top.degree if len(a.terms) > 1 else None
        next_b = b.terms[1].degree + a.top.degree if len(b.terms) > 1 else None
        return Series((first,), highest(rest, next_a, next_b))
    pairs: dict[Fraction, list[tuple[Term, Term]]] = {}
    for s in a.terms:
        for t in b.terms:
            pairs.setdefault(s.degree + t.degree, []).append((s, t))
    parts: dict[Fraction, tuple[Tensor, int]] = {}
    empty: dict[Fraction, tuple[Tensor, int]] = {}
    for degree in sorted(pairs, reverse=True):
        if len(parts) >= orders and decided([value for value, _ in parts.values()]):
            return from_parts(parts, highest(rest, degree))
        value = sources = None
        for s, t in pairs[degree]:
            found = first.value if s is a.top and t is b.top else f(s.value, t.value)
            if value is None:
                value = found
            elif value.shape == found.shape and value.dtype == found.dtype:
                value.add_(found)  # safe: `value` is not shared yet
            else:
                value = value + found
            sources = s.sources | t.sources | (sources or 0)
        assert value is not None
        empty = {degree: (value, sources or 0)}
        if nonzero(value):
            parts |= empty
    return from_parts(parts or empty, rest)


def incomplete(difference: Series, a: Series, b: Series) -> Tensor:
    """Elements whose leading terms cancel, and whose sign depends on a term at or below the highest omitted one."""
    like = difference.top.value
    open_, higher, found = (
        torch.ones_like(like, dtype=torch.bool),
        *[torch.zeros_like(like, dtype=torch.bool)] * 2,
    )
    if (rest := difference.rest) is None or difference.terms[-1].degree > rest:
        return found
    for degree in sorted({term.degree for x in (a, b) for term in x.terms}, reverse=True):
        if (value := difference.at(degree)) is not None:
            here = open_ & (value != 0)
            open_ = open_ & ~here
            if degree <= rest:
                found = found | (here & higher)
        for x in (a, b):
            if (value := x.at(degree)) is not None:
                higher = higher | (value != 0)
    return found


def rest_below(series: Series, degree: Fraction) -> Fraction | None:
    """The highest omitted degree of elements whose leading degree this is: their leading term is exact."""
    return None if series.rest is None else min(series.rest, degree - STEP)


def by_element(
    series: Series,
    f: Callable[[Fraction, Tensor], dict[Fraction, Tensor]],
    relative: bool = True,
    curved: bool = False,
) -> Series:
    """Apply a function to the leading term of each element.

    f takes a degree and coefficients and returns the parts of its result. Lower terms of the argument are left out. If
    `relative`, the result then lacks terms at the same distance below its leading term; otherwise lower terms do not
    change it. A `curved` function is replaced by its tangent at 0 if the argument vanishes, which leaves out the second
    order; if the argument grows, it is replaced by its asymptote, which lower orders do not change.
    """
    terms = series.terms
    leading: list[Tensor | None] = [None]  # everywhere
    if len(terms) > 1 and not all_nonzero(terms[0].value):
        leading, open_ = [], torch.ones_like(terms[0].value, dtype=torch.bool)
        for term in terms[:-1]:
            here = open_ & (term.value != 0)
            leading.append(here)
            open_ = open_ & ~here
            if not open_.any():
                break
        else:
            leading.append(open_)
    parts: dict[Fraction, tuple[Tensor, int]] = {}
    gap: list[Fraction] = []
    for term, here in zip(terms, leading, strict=False):
        if here is not None and not here.any():
            continue
        if curved and term.degree < 0:
            gap.append(2 * term.degree)
        for degree, value in f(term.degree, term.value).items():
            if here is not None:
                value = torch.where(here, value, torch.zeros((), dtype=value.dtype))
            if degree in parts:
                before, sources = parts[degree]
                parts[degree] = before + value, sources | term.sources
            else:
                parts[degree] = value, term.sources
            lower = highest(
                *(t.degree for t in terms if t.degree < term.degree), rest_below(series, term.degree)
            )
            if relative and lower is not None and not (curved and term.degree > 0):
                gap.append(degree + lower - term.degree)
    if not parts:  # the result has no terms
        return constant_series(torch.zeros_like(series.top.value))
    return from_parts(parts, max(gap, default=None))
