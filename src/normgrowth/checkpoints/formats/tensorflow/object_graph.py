"""Names of the variables of a checkpoint that TensorFlow 2 saved as a graph of objects.

A variable is stored under the shortest path to it. In Keras, that path often leads through the optimizer, which has a
list of the weights, so a weight is named `optimizer/_trainable_variables/0`. The checkpoint also has the graph: if the
graph has a path that avoids the optimizer, that path becomes the name of the variable.
"""

from collections.abc import Mapping
from typing import NamedTuple

from normgrowth.checkpoints.formats.tensorflow.wire_format import fields

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_LONGEST_NAME = 1024  # characters; a path through a chain of objects can be as long as the file


class _Node(NamedTuple):
    children: list[tuple[int, str]]  # their numbers and names
    keys: list[str]  # of the variables among its attributes


class _Step(NamedTuple):
    """The last edge of the path to a node. length: of the whole path, in characters."""

    parent: int
    called: str
    length: int


def names_outside_optimizer(graph: bytes, stored: Mapping[str, str]) -> dict[str, str]:
    """Names for variables that are stored under the optimizer: key -> the shortest path that avoids the optimizer.

    stored: key -> stored name.
    """
    nodes = [_node(field.message()) for field in fields(graph) if field.number == 1]
    taken = set(stored.values())
    names: dict[str, str] = {}
    steps: dict[int, _Step] = {0: _Step(0, "", -1)} if nodes else {}
    queue = list(steps)
    for number in queue:  # grows in the loop: breadth-first search, as in TensorFlow
        for key in nodes[number].keys:
            if key not in stored or key in names or not any(map(_is_optimizer, key.split("/"))):
                continue
            path = _path(number, steps)
            if path and path not in taken:
                names[key] = path
                taken.add(path)
        for child, called in nodes[number].children:
            length = steps[number].length + 1 + len(called)
            known = child in steps or not 0 <= child < len(nodes)
            if not known and length <= _LONGEST_NAME and not _is_optimizer(called):
                steps[child] = _Step(number, called, length)
                queue.append(child)
    return names


def _path(number: int, steps: Mapping[int, _Step]) -> str:
    parts: list[str] = []
    while number:
        parts.append(steps[number].called)
        number = steps[number].parent
    return "/".join(reversed(parts))


def _node(message: bytes) -> _Node:
    node = _Node([], [])
    for field in fields(message):
        if field.number not in (1, 2):
            continue
        own = {one.number: one for one in fields(field.message())}
        if field.number == 1:
            called = own[2].text() if 2 in own else ""
            node.children.append((own[1].integer() if 1 in own else 0, called))
        elif 3 in own and (key := own[3].text()).endswith(VALUE):
            node.keys.append(key)
    return node


def _is_optimizer(part: str) -> bool:
    return part.lstrip("_").startswith("optimizer")
