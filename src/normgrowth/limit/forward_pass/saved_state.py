"""Saves and restores state that a forward pass may change: a second pass must not see a cache filled by the first."""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.limit.dispatch import MARK

STANDARD = frozenset(vars(nn.Module()))  # attributes of every module
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    type,
    FunctionType,
    MethodType,
    ModuleType,
    torch.dtype,
    torch.device,
    Enum,
)


class SavedState:
    """The contents of arguments and of a model's buffers and attributes: lists, dictionaries, objects such as caches.

    Hooks that the pass registers are removed, because transformers would register its own again and return each
    attention twice. Parameters are not saved.
    """

    def __init__(self, arguments: Any, modules: Iterable[nn.Module]) -> None:
        self.containers: list[tuple[Any, Any]] = []
        self.slots: list[tuple[Any, dict[str, Any]]] = []
        self.tensors: list[tuple[Tensor, int | None, Tensor, Any]] = []
        self.arrays: list[tuple[Any, Any]] = []  # of numpy
        self.attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self.hooks: list[tuple[dict[int, Any], frozenset[int]]] = []
        seen: set[int] = set()
        waiting = [*modules, arguments]
        while waiting:
            value = waiting.pop()
            if value is None or isinstance(value, LEAVES) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, nn.Module):
                waiting += self._save_module(value)
            elif isinstance(value, Tensor):
                self._save_tensor(value)
            else:
                waiting += self._save_object(value)

    def _save_module(self, module: nn.Module) -> list[Any]:
        own = {name: value for name, value in vars(module).items() if name not in STANDARD}
        self.attributes.append((module, own))
        self.hooks += [(hooks, frozenset(hooks)) for hooks in (vars(module)[name] for name in HOOKS)]
        buffers = [module._buffers] if module._buffers else []
        return [*buffers, *module._modules.values(), *own.values()]

    def _save_object(self, value: Any) -> list[Any]:
        """Save what an object refers to, and return it."""
        found: list[Any] = []
        if isinstance(value, tuple | frozenset):
            found += value
        elif isinstance(value, list | deque | set):
            self.containers.append((value, list(value)))
            found += value
        elif isinstance(value, dict):
            self.containers.append((value, dict(value)))
            found += value.values()
        elif type(value).__module__ == "numpy" and hasattr(value, "flags"):
            if value.flags.writeable:
                self.arrays.append((value, value.copy()))
            return []
        if hasattr(value, "__dict__"):
            self.containers.append((vars(value), dict(vars(value))))
            found += vars(value).values()
        if slots := _slots(value):
            self.slots.append((value, slots))
            found += slots.values()
        return found

    def _save_tensor(self, tensor: Tensor) -> None:
        if isinstance(tensor, nn.Parameter) or tensor.is_meta or tensor.layout != torch.strided:
            return
        mark = getattr(tensor.untyped_storage(), MARK, None)
        version = None if tensor.is_inference() else tensor._version
        self.tensors.append((tensor, version, tensor.detach().clone(), mark))

    def restore(self) -> None:
        for container, content in self.containers:
            container.clear()
            if isinstance(container, list | deque):
                container.extend(content)
            else:
                container.update(content)
        for value, slots in self.slots:
            for name in _slots(value).keys() - slots.keys():
                delattr(value, name)
            for name, content in slots.items():
                if getattr(value, name, None) is not content:
                    setattr(value, name, content)
        for array, content in self.arrays:
            array[...] = content
        for module, own in self.attributes:
            there = vars(module)
            for name in [name for name in there if name not in STANDARD and name not in own]:
                del there[name]
            there.update(own)
        for hooks, before in self.hooks:
            for key in hooks.keys() - before:
                del hooks[key]
        for tensor, version, content, mark in self.tensors:
            if version is None or tensor._version != version:
                with torch.inference_mode(version is None), torch.no_grad():
                    tensor.copy_(content)
            storage = tensor.untyped_storage()
            if mark is not None:
                setattr(storage, MARK, mark)
            elif hasattr(storage, MARK):
                delattr(storage, MARK)


def _slots(value: Any) -> dict[str, Any]:
    names: set[str] = set()
    for kind in type(value).__mro__:
        own = vars(kind).get("__slots__", ())
        names.update([own] if isinstance(own, str) else own)
    return {name: getattr(value, name) for name in names if name[:2] != "__" and hasattr(value, name)}
