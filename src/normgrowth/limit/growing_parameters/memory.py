"""Memory of parameters, and which can be multiplied by c: checks for `saturated` and `scaled_weights`."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from normgrowth.errors import UnscalableParameter

Named = list[tuple[str, Tensor]]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
FLOAT8 = tuple(dtype for name, dtype in vars(torch).items() if name.startswith("float8_"))


def local_weights(name: str, tensor: Tensor) -> Tensor:
    """The local plain tensor of a parameter; raises UnscalableParameter if it cannot be scaled."""
    if nn.parameter.is_lazy(tensor):
        raise UnscalableParameter(name, "not initialized", "run the model once")
    to_local = getattr(tensor, "to_local", None)
    tensor = (tensor if to_local is None else to_local()).detach()
    if tensor.is_meta:
        raise UnscalableParameter(name, "on the meta device and has no values", "load the weights first")
    if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.dtype not in DTYPES:
        dtype, layout = (str(value).removeprefix("torch.") for value in (tensor.dtype, tensor.layout))
        kind = f"a {type(tensor).__name__} of {dtype}, {layout}, which cannot be scaled"
        raise UnscalableParameter(name, kind, "dequantize it, or leave it out")
    return tensor


def refuse_packed_weights(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise UnscalableParameter for weights that are not parameters (packed or quantized weights)."""
    for name, module in modules:
        packed = type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized"))
        for short, buffer in module._buffers.items():
            if buffer is None:
                continue
            quantized = buffer.is_quantized or buffer.dtype in FLOAT8
            integers = buffer.dtype == torch.int8 and buffer.dim() > 1
            if buffer.dtype == torch.uint8 and buffer.dim() > 1 and not buffer.is_meta:
                integers = bool((buffer > 1).any())  # not a mask of 0 and 1
            packed = packed or quantized or integers or short == "qweight"
        if packed:
            kind = f"a {type(module).__name__}, whose quantized weights are not parameters"
            raise UnscalableParameter(name or "the model", kind, "load the model without quantization")


def overlapping(views: Named) -> list[Named]:
    """Group tensors that overlap in memory; tensors with equal addresses keep their order."""
    views = sorted(
        (view for view in views if view[1].numel()),
        key=lambda view: (str(view[1].device), view[1].data_ptr()),
    )
    groups: list[Named] = []
    device, end = None, 0
    for name, tensor in views:
        if tensor.device != device or tensor.data_ptr() >= end:
            device, end = tensor.device, 0
            groups.append([])
        groups[-1].append((name, tensor))
        end = max(end, tensor.data_ptr() + extent(tensor) * tensor.element_size())
    return groups


def extent(tensor: Tensor) -> int:
    """The number of storage elements from the first to the last value, including gaps from strides."""
    if tensor.is_contiguous() and tensor.numel():
        return tensor.numel()
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
