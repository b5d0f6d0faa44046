"""Forward passes in which an overflow gives NaN.

A norm divides by the root of a mean of squares. If the squares overflow, it divides by infinity and returns 0, which is
wrong but finite. The division by infinity is detected in every class and kernel.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
INVERSES = {aten.rsqrt.default, aten.reciprocal.default}
DIVISIONS = {aten.div.Tensor}
POWERS = {aten.pow.Tensor_Scalar}
# The last output of these operations is 1/√(variance + ε), one value per normalized group.
NORMS = {aten.native_layer_norm.default, aten.native_group_norm.default, aten._fused_rms_norm.default}


class OverflowAsNan(TorchDispatchMode):
    """Division by infinity gives NaN. `coarsest`: the largest unit of rounding among dtypes that values are cast to."""

    def __init__(self) -> None:
        super().__init__()
        self.coarsest = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in INVERSES or (func in POWERS and args[1] < 0):
            return _spoiled(found, args[0].isinf())
        if func in DIVISIONS and isinstance(args[1], Tensor) and args[1].is_floating_point():
            return _spoiled(found, args[1].isinf())
        if func in NORMS:
            out, *rest = found
            over = ~(rest[-1] > 0)  # 0 or NaN
            if func is aten.native_group_norm.default:
                over = over.repeat_interleave(args[0].shape[1] // over.shape[1], 1)
                over = over.view(*over.shape, *[1] * (out.dim() - 2))
            return (_spoiled(out, over), *rest)
        if func is aten._to_copy.default and found.is_floating_point() and args[0].is_floating_point():
            unit = torch.finfo(found.dtype).eps
            self.coarsest = max(self.coarsest, unit if unit > torch.finfo(args[0].dtype).eps else 0.0)
        return found

    def rounding(self, state: Tensor) -> float:
        """The unit of rounding of a state: that of float32 for a float64 model whose norms compute in float32."""
        return max(torch.finfo(state.dtype).eps, self.coarsest)


def _spoiled(value: Tensor, over: Tensor) -> Tensor:
    return value.masked_fill(over, torch.nan) if bool(over.any()) else value
