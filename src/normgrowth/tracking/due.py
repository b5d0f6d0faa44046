"""Which steps are measured: `every` as a function of the step."""

from collections.abc import Callable
from numbers import Integral

from normgrowth.errors import InputError

Every = int | str | Callable[[int], bool]


def due(every: Every) -> Callable[[int], bool]:
    if callable(every):
        return every
    if every == "powers":
        return lambda step: step & (step - 1) == 0
    if isinstance(every, Integral) and (n := int(every)) >= 1:
        return lambda step: step % n == 0
    raise InputError(f'every must be 1 or more, "powers" or a function of the step, got {every!r}')
