"""bfloat16 and float16 tensors, which the limit computes in float32.

Each tensor also keeps its leading coefficients in float32, while the network's code sees rounded values. Otherwise
rounding would decide which score is the largest. Constants that the network rounds, such as a table of rotations, also
keep their float32 values.
"""

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from normgrowth.limit.dispatch.marked_storage import HALVES, same_place, storage_like, wide
from normgrowth.limit.dispatch.schemas import OpSchema
from normgrowth.limit.power_series import mask_bound, masked

EXACT = "_normgrowth_exact"  # storage attribute with the float32 values of a rounded constant
WIDE_MASK = torch.finfo(torch.float32).min


def remembered(tensor: Tensor, run: object) -> torch.UntypedStorage | None:
    """The float32 values that a 16-bit constant was rounded from in this run; None if unknown."""
    if tensor.dtype not in HALVES or tensor.layout != torch.strided:
        return None
    owner, exact = getattr(tensor.untyped_storage(), EXACT, (None, None))
    return exact if owner is run else None


def forget(tensor: Tensor) -> None:
    """Drop the float32 values of a constant that was written to."""
    if hasattr(storage := tensor.untyped_storage(), EXACT):
        delattr(storage, EXACT)


def remember(found: Tensor, exact: Tensor, run: object) -> Tensor:
    """The result of an operation on constants, with its float32 values attached; a 32-bit result is these values."""
    if found.dtype not in HALVES:
        return exact.to(found.dtype)
    setattr(found.untyped_storage(), EXACT, (run, storage_like(exact, found)))
    return found


def exact_constant(value: Any, run: object) -> Any:
    """A constant in float32 for an operation on constants. Masks stay finite, because 0 times infinity is NaN."""
    if isinstance(value, torch.dtype):
        return wide(value)
    if not isinstance(value, Tensor) or value.dtype not in HALVES:
        return value
    exact = remembered(value, run)
    return value.float() if exact is None else same_place(value, exact)


def exact_argument(value: Any, run: object, dtype: torch.dtype) -> Any:
    """A constant in float32 for a rule. Masks get the minimum of float32. dtype: the dtype that bounds a number."""
    if isinstance(value, torch.dtype):
        return wide(value)
    if isinstance(value, float):  # the mask value of float16 is an ordinary number in float32
        return WIDE_MASK if -math.inf < value <= mask_bound(dtype) else value
    if not isinstance(value, Tensor) or value.dtype not in HALVES:
        return value
    exact = remembered(value, run)
    widened = value.float() if exact is None else same_place(value, exact)
    if (hidden := masked(value)) is None:
        return widened
    finite = value.isfinite()
    return torch.where(finite, widened.masked_fill(hidden & finite, WIDE_MASK), value.float())


def result_dtype(
    schema: OpSchema, args: Any, kwargs: Any, tensors: list[Tensor], half: bool
) -> torch.dtype | None:
    """The dtype of the operation's result in the network; None if no argument has 16 bits."""
    if kwargs.get("dtype") is not None:
        return kwargs["dtype"]
    if not half:
        return None
    if schema.name in ("_softmax", "_log_softmax") and args[2]:
        return torch.float32
    floating = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    sized = [tensor for tensor in floating if tensor.dim()] or floating
    return reduce(torch.promote_types, (tensor.dtype for tensor in sized))
