"""Find the tensors of the model in the object that a training script saved.

They are below a known key (``state_dict``, ``model``); without such a key, all tensors are taken. Parts of a model that
are saved next to each other (encoder, decoder) are joined under dotted names. Other entries (optimizer, scheduler,
random state) are ignored. A pickled module is read through its recorded state.

The object is untrusted: it may contain itself, or refer to one dictionary a million times. So the depth is bounded, and
the number of visited entries is bounded by the size of the pickle.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from normgrowth.checkpoints.checkpoint import LONGEST_NAME
from normgrowth.checkpoints.formats.numpy_arrays import is_array, is_matrix
from normgrowth.checkpoints.formats.pickled.pickle_values import Entries, RecordedCall
from normgrowth.checkpoints.formats.torch_tensors import dimensions, tensor_call
from normgrowth.checkpoints.malformed import Malformed

# Keys under which training code saves the weights, in the order in which they are tried.
WRAPPINGS = ("state_dict", "model_state_dict", "model", "module", "model_state", "net", "network", "params")
NOT_WEIGHTS = ("optim", "sched", "rng", "scaler", "loops", "callbacks", "args", "config", "hyper_parameters")
DEPTH = 64
MOST_ITEMS = 16  # searched items of a tuple or list, such as (model, optimizer, step)
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_GRAPH_MODULES = (
    "torch.fx.graph_module.reduce_graph_module",
    "torch.fx.graph_module.reduce_package_graph_module",
)


class StateDict:
    """Finds tensors, or numpy arrays if `arrays`, in the content of a pickle. pickle_bytes: the size of the pickle."""

    def __init__(self, content: Any, pickle_bytes: int, *, arrays: bool = False) -> None:
        self.content = content
        self._is_tensor = is_array if arrays else _is_tensor
        self._is_weight = is_matrix if arrays else dimensions
        self._left = pickle_bytes + 10_000  # keys and values that may still be visited
        self._searched: set[int] = set()

    def top(self) -> dict[str, Any]:
        """The entries of the outermost dictionary."""
        return self._children(self.content) or {}

    def tensors(self) -> dict[str, RecordedCall]:
        """Name -> recorded tensor; empty if there are no tensors of a model."""
        return self._search(self.content, 0)

    def _search(self, content: Any, depth: int) -> dict[str, RecordedCall]:
        if depth > DEPTH:
            raise Malformed(f"nests dictionaries more than {DEPTH} deep")
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
            (only,) = inner.values()  # one more level, with an unknown key
            return self._search(only, depth + 1)
        found = self._flatten(tensors | inner)
        return found if any(map(self._is_weight, found.values())) else {}  # counters are not a model

    def _search_items(self, items: Sequence[Any]) -> dict[str, RecordedCall]:
        """The tensors of the first item that has a model, as in (model, optimizer, step)."""
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
                        raise Malformed(f"has a tensor with an invalid name: {name[:100]!a}")
                    found[name] = value
                elif (inside := self._children(value)) is not None:
                    if len(levels) > DEPTH or len(name) > LONGEST_NAME:
                        raise Malformed(
                            f"nests dictionaries more than {DEPTH} deep, or has names that are too long"
                        )
                    levels.append((f"{name}.", iter(inside.items())))
                    break
            else:
                levels.pop()
        return found

    def _children(self, value: Any) -> dict[str, Any] | None:
        """The entries of a dictionary, a dictionary subclass or a module, by name; None for anything else."""
        if not _is_module(value):
            entries = _entries(value)
            return None if entries is None else self._named(entries)
        parts = self._named(_attributes(value) or [])
        hidden = self._texts(parts.get("_non_persistent_buffers_set"))
        inside: dict[str, Any] = {}
        for part in _MODULE_PARTS:
            named = self._named(_entries(parts.get(part)) or [])
            inside |= {name: v for name, v in named.items() if part != "_buffers" or name not in hidden}
        return inside

    def _named(self, entries: list[Any]) -> dict[str, Any]:
        """Entries by name. Integer keys are converted to text; other keys are ignored."""
        self._look_at(len(entries))
        pairs = zip(entries[::2], entries[1::2], strict=True) if type(entries) is Entries else _pairs(entries)
        return {
            key if type(key) is str else str(key): value
            for key, value in pairs
            if type(key) is str or (type(key) is int and abs(key) < 1 << 63)
        }

    def _texts(self, value: Any) -> set[str]:
        """The strings in a recorded set."""
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
            raise Malformed("refers to the same dictionaries too many times")


def _is_tensor(value: Any) -> bool:
    return tensor_call(value) is not None


def _is_module(value: Any) -> bool:
    """Whether the value is a recorded torch.nn.Module, that is, an object with its attributes."""
    if (attributes := _attributes(value)) is None:
        return False
    names = {key for key in attributes[:64:2] if type(key) is str}  # Module.__init__ sets these first
    return names.issuperset(_MODULE_PARTS)


def _attributes(value: Any) -> Entries | None:
    """The attributes of a recorded object. A graph module of torch.fx passes them as an argument."""
    if type(value) is not RecordedCall:
        return None
    dictionaries = value.args if value.name in _GRAPH_MODULES else (value.state,)
    return next((one for one in dictionaries if type(one) is Entries), None)


def _entries(value: Any) -> list[Any] | None:
    """The entries of a recorded dictionary, as `Entries` or as a list of pairs; None for anything else."""
    if type(value) is Entries:
        return value
    if type(value) is not RecordedCall:
        return None
    if value.entries is not None:
        return value.entries
    if value.name.startswith("__torch__.") and type(value.state) is Entries:  # a TorchScript module
        return value.state
    first = value.args[0] if value.args else None
    if value.name == "collections.OrderedDict" and type(first) is list:  # as Python 2 wrote it
        return first
    return None


def _is_branch(value: Any) -> bool:
    return _entries(value) is not None or _is_module(value)


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return [(pair[0], pair[1]) for pair in items if type(pair) in (list, tuple) and len(pair) == 2]
