"""Writes a series into a part of a storage; the rest of the storage keeps its degrees."""

from fractions import Fraction

import torch
from torch import Tensor

from normgrowth.limit.dispatch.marked_storage import HALVES, DegreeMark, flat, same_place, wide
from normgrowth.limit.power_series import ZERO, Series, nonzero


def write_part(tensor: Tensor, value: Series, old: DegreeMark | None, run: object) -> DegreeMark:
    """Write a series to the place of a tensor; returns the new mark of the whole storage."""
    whole = flat(tensor.untyped_storage(), tensor, tensor.dtype)
    if old is None:
        old = DegreeMark(run, ZERO, 0, [], None, not nonzero(whole))
    old.finish()
    leading = whole if old.exact is None else flat(old.exact, tensor, torch.float32)
    kept = {} if old.zero else {old.degree: (leading.to(wide(tensor.dtype), copy=True), old.sources)}
    kept |= {d: (flat(s, tensor, wide(tensor.dtype)).clone(), src) for d, s, src in old.lower}
    new = {} if value.zero else {t.degree: t for t in value.terms}
    degrees = sorted({*kept, *new}, reverse=True) or [ZERO]
    written: list[tuple[Fraction, Tensor, int]] = []
    for degree in degrees:
        coefficients, sources = kept.get(
            degree, (torch.zeros(whole.shape, dtype=wide(whole.dtype), device=whole.device), 0)
        )
        part = same_place(tensor, coefficients.untyped_storage())
        if degree in new:
            part.copy_(new[degree].value)
            sources |= new[degree].sources
        else:
            part.zero_()
        written.append((degree, coefficients, sources))
    whole.copy_(written[0][1])  # last, because a term of the value may be a view of it
    rests = [rest for rest in (old.rest, value.rest) if rest is not None]
    return DegreeMark(
        run,
        degrees[0],
        written[0][2],
        [(degree, coefficients.untyped_storage(), sources) for degree, coefficients, sources in written[1:]],
        max(rests, default=None),
        not (kept or new),
        old.doubt or value.doubt,
        written[0][1].untyped_storage() if tensor.dtype in HALVES else None,
        lost=any(x.lost or x.exponential is not None for x in (old, value)),
        diverges=old.diverges or value.diverges,
    )
