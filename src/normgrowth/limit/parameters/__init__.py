"""Which parameters of a model grow, how they lie in memory, and which can be scaled at all.

growing.py   the parameters that grow, each in a storage of its own
layout.py    parameters in groups that share memory, kept from call to call
fixed.py     those that a caller holds fixed, by name or pattern
memory.py    which parameters can be multiplied by c, which overlap
"""

from normgrowth.limit.parameters.fixed import matching, note
from normgrowth.limit.parameters.growing import (
    check_fixed,
    first_names,
    fixed_within,
    growing_parameters,
    own_storages,
)
from normgrowth.limit.parameters.layout import ParameterLayout
from normgrowth.limit.parameters.memory import local_weights, overlapping, refuse_packed_weights

__all__ = [
    "ParameterLayout",
    "check_fixed",
    "first_names",
    "fixed_within",
    "growing_parameters",
    "local_weights",
    "matching",
    "note",
    "overlapping",
    "own_storages",
    "refuse_packed_weights",
]
