"""Warnings about a limit: finite masks that growing scores outgrow, values that are converted out of torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

import torch
import torch.utils.dlpack
from torch import Tensor
from torch.overrides import TorchFunctionMode

FINITE_MASK = -1e3  # a tensor of small values and constants at or below this is considered a mask
TO_DLPACK = torch.to_dlpack
APART = 8  # the masking values are at least this many times as large as the others, such as a position bias


@dataclass(frozen=True)
class PassFinding:
    """One warning about a limit. operation, value: the operation and value concerned, if any."""

    kind: Literal["finite_mask", "left_torch", "constant_output", "out_of_range"]
    module: str
    degree: Fraction
    operation: str = ""
    value: float | None = None

    @property
    def message(self) -> str:
        return self._message(f"module {self.module}" if self.module else "the model")

    def _message(self, where: str) -> str:
        if self.kind == "finite_mask":
            return (
                f"{where}: the mask {self.value:g} is finite, so scores of degree {self.degree} outgrow it and "
                "masked positions are visible in the limit. Mask with -inf or torch.finfo(dtype).min"
            )
        if self.kind == "left_torch":
            return (
                f"{where}: Tensor.{self.operation} converts a value of degree {self.degree} out of torch; results "
                "computed from it are treated as constants"
            )
        if self.kind == "out_of_range":
            return (
                f"{where}: the largest leading coefficient, {self.value:g}, is outside the range of {self.operation}: "
                "compute the limit in float32, or scale the weights"
            )
        return (
            f"{where} ({self.operation}) gets an input of degree {self.degree}, has parameters, but returns a "
            "constant: it may use a kernel outside torch"
        )


def messages(findings: Iterable[PassFinding]) -> list[str]:
    """One sentence per finding; findings that differ only in their module share one."""
    alike: dict[PassFinding, list[str]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, module=""), []).append(finding.module)
    return [
        finding._message(f"{len(modules)} modules, the first {modules[0]}")
        if len(modules) > 1
        else replace(finding, module=modules[0]).message
        for finding, modules in alike.items()
    ]


def finite_mask(value: Tensor) -> float | None:
    """The largest masking value of an additive mask of small and large negative numbers; None for other tensors."""
    if not value.is_floating_point() or value.numel() == 0:
        return None
    least = float(value.amin())
    for bound in (FINITE_MASK, 10 * FINITE_MASK):  # the second for position biases at or below the first
        if not least <= bound:
            return None
        large = value <= bound
        found = float(value.masked_fill(~large, -torch.inf).amax())
        if APART * float(value.masked_fill(large, 0.0).abs().amax()) <= -found:
            return found
    return None


class LeavingTorch(TorchFunctionMode):
    """Calls `left` with a tensor and the method that converts its values out of torch.

    torch does not report `to_dlpack`, so that it is replaced while the mode is active.
    """

    METHODS: ClassVar = {
        getattr(Tensor, name): name for name in ("numpy", "tolist", "__array__", "__dlpack__", "data_ptr")
    }

    def __init__(self, left: Callable[[Tensor, str], None]) -> None:
        super().__init__()
        self.left = left

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.METHODS:
            self.left(args[0], self.METHODS[func])
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        def to_dlpack(data: Tensor) -> Any:
            self.left(data, "to_dlpack")
            return TO_DLPACK(data)

        self._replace_to_dlpack(to_dlpack)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._replace_to_dlpack(TO_DLPACK)
        super().__exit__(*error)

    @staticmethod
    def _replace_to_dlpack(function: Any) -> None:
        modules: tuple[Any, ...] = (torch, torch.utils.dlpack)
        for module in modules:
            module.to_dlpack = function
