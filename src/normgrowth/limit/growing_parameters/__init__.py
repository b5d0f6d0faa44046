"""Which parameters of a model grow, how they share memory, and which can be scaled.

growing.py   the parameters that grow, each with its own storage
layout.py    groups of parameters that share memory, cached between calls
fixed.py     parameters that the caller keeps fixed, by name or pattern
memory.py    which parameters can be multiplied by c, which overlap
"""

from normgrowth.limit.growing_parameters.fixed import matching, note_on_fixed
from normgrowth.limit.growing_parameters.growing import (
    check_fixed,
    first_names,
    fixed_within,
    growing_parameters,
    own_storages,
)
from normgrowth.limit.growing_parameters.layout import ParameterLayout
from normgrowth.limit.growing_parameters.memory import local_weights, overlapping, refuse_packed_weights

__all__ = [
    "ParameterLayout",
    "check_fixed",
    "first_names",
    "fixed_within",
    "growing_parameters",
    "local_weights",
    "matching",
    "note_on_fixed",
    "overlapping",
    "own_storages",
    "refuse_packed_weights",
]
