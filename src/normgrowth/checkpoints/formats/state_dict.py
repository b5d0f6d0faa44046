"""The model's tensors in whatever a training script saved, by looking.

Below a wrapping that we know (``state_dict``, ``model``), else all that is there. Parts of a model kept next to each
other (encoder, decoder) stay together under dotted names. What is no part of it (optimizer, scheduler, random state)
is left where it is. A whole pickled module is read by its recorded state.

What is looked at is untrusted: it may contain itself, or refer to one dictionary a million times. So the depth is
bounded, and the number of entries looked at by what the pickle has.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from normgrowth.checkpoints.formats.numpy_arrays import is_array, is_matrix
from normgrowth.checkpoints.formats.pickled.pickle_values import Entries, MalformedPickle, RecordedCall
from normgrowth.checkpoints.formats.torch_tensors import dimensions, tensor_call

# Where training code keeps the weights, in the order in which we look.
WRAPPINGS = ("state_dict", "model_state_dict", "model", "module", "model_state", "net", "network", "params")
NOT_WEIGHTS = ("optim", "sched", "rng", "scaler", "loops", "callbacks", "args", "config", "hyper_parameters")
DEPTH = 64
MOST_ITEMS = 16  # of a tuple or list that are looked into: what was saved next to the model, not data
LONGEST_NAME = 1000  # characters of a tensor's full name
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")


class StateDict:
    """Looks for tensors in the content of a file whose pickle has so many bytes; for numpy arrays if `arrays`."""

    def __init__(self, content: Any, pickle_bytes: int, *, arrays: bool = False) -> None:
        self.content = content
        self._is_tensor = is_array if arrays else _is_tensor
        self._is_weight = is_matrix if arrays else dimensions
        self._left = pickle_bytes + 10_000  # keys and values that may still be looked at
        self._searched: set[int] = set()

    def top(self) -> dict[str, Any]:
        """The entries of the outermost dictionary."""
        return self._children(self.content) or {}

    def tensors(self) -> dict[str, RecordedCall]:
        """Name -> recorded tensor; empty if there is nothing that looks like a model's."""
        return self._search(self.content, 0)

    def _search(self, content: Any, depth: int) -> dict[str, RecordedCall]:
        if depth > DEPTH:
            raise MalformedPickle(f"nests dictionaries more than {DEPTH} deep")
        if depth == 0 and type(content) in (tuple, list):
            return self._search_items(content)
        if id(content) in self._searched or (inside := self._children(content)) is None:
            return {}
        self._searched.add(id(content))
        if _is_module(content):
            return self._flatten(inside)
        for key in WRAPPINGS:
            if key in inside and _is_branch(inside[key]) and (found := self._search(inside[key], depth + 1)):
                return found
        tensors = {name: value for name, value in inside.items() if self._is_tensor(value)}
        inner = {
            name: value
            for name, value in inside.items()
            if _is_branch(value) and not name.lower().startswith(NOT_WEIGHTS)
        }
        if len(inner) == 1 and not any(map(self._is_weight, tensors.values())):
            (only,) = inner.values()  # one more wrapping, of a name that we do not know
            return self._search(only, depth + 1)
        found = self._flatten(tensors | inner)
        return found if any(map(self._is_weight, found.values())) else {}  # else a counter, not a model

    def _search_items(self, items: Sequence[Any]) -> dict[str, RecordedCall]:
        """Of the first one that holds a model, as in (model, optimizer, step)."""
        self._look_at(len(items))
        for item in items[:MOST_ITEMS]:
            inside = self._children(item) or {}
            if "param_groups" not in inside and (found := self._search(item, 1)):
                return found
        return {}

    def _flatten(self, top: dict[str, Any]) -> dict[str, RecordedCall]:
        """Tensors by dotted name."""
        found: dict[str, RecordedCall] = {}
        levels: list[tuple[str, Iterator[tuple[str, Any]]]] = [("", iter(top.items()))]
        while levels:
            prefix, items = levels[-1]
            for key, value in items:
                name = prefix + key
                if self._is_tensor(value):
                    if len(name) > LONGEST_NAME or not name.isprintable():
                        raise MalformedPickle(f"has a tensor whose name is no name: {name[:100]!a}")
                    found[name] = value
                elif (inside := self._children(value)) is not None:
                    if len(levels) > DEPTH or len(name) > LONGEST_NAME:
                        raise MalformedPickle(
                            f"nests dictionaries more than {DEPTH} deep, or with longer names than any model"
                        )
                    levels.append((f"{name}.", iter(inside.items())))
                    break
            else:
                levels.pop()
        return found

    def _children(self, value: Any) -> dict[str, Any] | None:
        """What a dictionary, a kind of dictionary or a module contains, by name; None for anything else."""
        if not _is_module(value):
            entries = _entries(value)
            return None if entries is None else self._named(entries)
        parts = self._named(value.state)
        hidden = self._texts(parts.get("_non_persistent_buffers_set"))
        inside: dict[str, Any] = {}
        for part in _MODULE_PARTS:
            named = self._named(_entries(parts.get(part)) or [])
            inside |= {name: v for name, v in named.items() if part != "_buffers" or name not in hidden}
        return inside

    def _named(self, entries: list[Any]) -> dict[str, Any]:
        """Entries by name; numbers count as names, other keys are none."""
        self._look_at(len(entries))
        pairs = zip(entries[::2], entries[1::2], strict=True) if type(entries) is Entries else _pairs(entries)
        return {
            key if type(key) is str else str(key): value
            for key, value in pairs
            if type(key) is str or (type(key) is int and abs(key) < 1 << 63)
        }

    def _texts(self, value: Any) -> set[str]:
        """The texts in a recorded set."""
        items = (
            value.args[0]
            if type(value) is RecordedCall and value.args and type(value.args[0]) is list
            else []
        )
        self._look_at(len(items))
        return {item for item in items if type(item) is str}

    def _look_at(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise MalformedPickle("refers to the same dictionaries again and again")


def _is_tensor(value: Any) -> bool:
    return tensor_call(value) is not None


def _is_module(value: Any) -> bool:
    """Whether it is a recorded torch.nn.Module: an object with these attributes."""
    if type(value) is not RecordedCall or type(value.state) is not Entries:
        return False
    attributes = {
        key for key in value.state[:64:2] if type(key) is str
    }  # set by Module.__init__, before any other
    return attributes.issuperset(_MODULE_PARTS)


def _entries(value: Any) -> list[Any] | None:
    """What was written into a dictionary, as `Entries` or as a list of pairs."""
    if type(value) is Entries:
        return value
    if type(value) is not RecordedCall:
        return None
    if value.entries is not None:
        return value.entries
    if value.name.startswith("__torch__.") and type(value.state) is Entries:  # a module of TorchScript
        return value.state
    if value.name == "collections.OrderedDict" and type(value.args[0]) is list:  # as Python 2 wrote it
        return value.args[0]
    return None


def _is_branch(value: Any) -> bool:
    return _entries(value) is not None or _is_module(value)


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return [(pair[0], pair[1]) for pair in items if type(pair) in (list, tuple) and len(pair) == 2]
