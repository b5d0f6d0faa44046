"""Properties from the schema of an operation: which arguments it writes to or shares, and whether it saturates."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

DRAWS = {"bernoulli", "bernoulli_", "native_dropout"}
# These share the storage of their argument, but their schema does not declare it.
ALIASES = {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift_fresh", "lift"}
# Functions that approach their limit faster than any power of c.
SATURATING = {"sigmoid", "tanh", "erf", "exp", "expm1", "exp2", "_softmax", "_safe_softmax", "glu"}
SATURATING |= {"gelu", "silu", "mish", "softplus", "log_sigmoid_forward", "elu", "celu", "_log_softmax"}
SATURATING |= {"erfc", "logsumexp", "special_logsumexp", "logaddexp", "logaddexp2"}
SATURATING |= {"logcumsumexp", "soft_margin_loss"}
SOFTMAXES = {
    "_softmax",
    "_safe_softmax",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}
# Operations that accept values that are infinite in the limit: they pass them on, skip them, bound them or divide by
# them.
BOUNDING = {"add", "log", "log1p", "clone", "_to_copy", "where", "masked_fill"}
BOUNDING |= {"clamp", "clamp_max", "minimum", "reciprocal", "div"}
# Products that count what an undecided tie of attention weights changes, so that their results are not in doubt.
WEIGHING = {"mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm"}
# Operations whose results do not depend on finite values of their argument.
SHAPE_ONLY = {
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "zero",
    "fill",
    "full",
}
SHAPE_ONLY |= {"new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"}
SHAPE_ONLY |= {"isnan", "isinf", "isfinite", "isposinf", "isneginf"}


@dataclass(frozen=True, slots=True)
class OpSchema:
    """Properties of an operation from its schema, read once."""

    name: str
    functional: str  # name of the out-of-place operation
    writes: tuple[str, ...]  # the arguments that it changes
    views: bool  # its result shares the storage of its argument
    only_views: bool  # a pure view: the mark of the storage holds for the result
    draws: bool
    saturates: bool
    softmax: bool


@cache
def schema_of(func: Any) -> OpSchema:
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    writes = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    shares = not writes and any(r.alias_info is not None for r in schema.returns)
    views = shares or name in ALIASES or torch.Tag.inplace_view in func.tags
    return OpSchema(
        name,
        name.removesuffix("_"),
        writes,
        views,
        views and not writes and func is not torch.ops.aten.view.dtype,
        name in DRAWS,
        name.removesuffix("_") in SATURATING or name in SOFTMAXES,
        name in SOFTMAXES,
    )


@cache
def decomposition(func: Any) -> Callable[..., Any] | None:
    """The function that computes an operation by simpler ones, if torch has one."""
    if (
        func._can_decompose()
    ):  # a composite operation, which arrives here only if all arguments are inference tensors
        return func.decompose
    if schema_of(func).writes:
        return None
    from torch._decomp import decomposition_table

    return decomposition_table.get(func)
