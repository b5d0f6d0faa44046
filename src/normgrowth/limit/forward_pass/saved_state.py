"""Saves and restores state that a forward pass may change: a second pass must not see a cache filled by the first."""

from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.limit.dispatch import MARK

STANDARD = frozenset(vars(nn.Module()))  # attributes of every module
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
LEAVES = (str, bytes, int, float, complex, type, FunctionType, MethodType, ModuleType, nn.Module, torch.dtype)


class SavedState:
    """The contents of arguments (lists, dictionaries, objects such as caches) and of a model's buffers and attributes.

    Of an attribute that is neither a tensor nor a container, only the reference is saved. Hooks that the pass
    registers are removed, because transformers would register its own again and return each attention twice.
    """

    def __init__(self, arguments: Any, modules: Iterable[nn.Module]) -> None:
        self.containers: list[tuple[Any, Any]] = []
        self.tensors: list[tuple[Tensor, int, Tensor, Any]] = []
        self.attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self.hooks: list[tuple[dict[int, Any], frozenset[int]]] = []
        seen: set[int] = set()
        waiting = [arguments]
        for module in modules:
            own = {name: value for name, value in vars(module).items() if name not in STANDARD}
            self.attributes.append((module, own))
            self.hooks += [(hooks, frozenset(hooks)) for hooks in (vars(module)[name] for name in HOOKS)]
            waiting += [value for value in own.values() if isinstance(value, Tensor | list | dict)]
            if module._buffers:
                waiting.append(module._buffers)
        while waiting:
            value = waiting.pop()
            if value is None or isinstance(value, LEAVES) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Tensor):
                self._save(value)
            elif isinstance(value, tuple | set | frozenset):
                waiting += value
            elif isinstance(value, list):
                self.containers.append((value, list(value)))
                waiting += value
            elif isinstance(value, dict):
                self.containers.append((value, dict(value)))
                waiting += value.values()
            if not isinstance(value, Tensor) and hasattr(value, "__dict__"):
                self.containers.append((vars(value), dict(vars(value))))
                waiting += vars(value).values()

    def _save(self, tensor: Tensor) -> None:
        if tensor.is_meta or tensor.layout != torch.strided or tensor.is_inference():
            return
        mark = getattr(tensor.untyped_storage(), MARK, None)
        self.tensors.append((tensor, tensor._version, tensor.detach().clone(), mark))

    def restore(self) -> None:
        for container, content in self.containers:
            if isinstance(container, list):
                container[:] = content
            else:
                container.clear()
                container.update(content)
        for module, own in self.attributes:
            there = vars(module)
            for name in [name for name in there if name not in STANDARD and name not in own]:
                del there[name]
            there.update(own)
        for hooks, before in self.hooks:
            for key in hooks.keys() - before:
                del hooks[key]
        for tensor, version, content, mark in self.tensors:
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(content)
            storage = tensor.untyped_storage()
            if mark is not None:
                setattr(storage, MARK, mark)
            elif hasattr(storage, MARK):
                delattr(storage, MARK)
