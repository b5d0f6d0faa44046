"""Leading-order tensors: the exact limit of a network whose parameters grow, and the degree of every part.

saturated.py      `saturated(model)`: the limit network; degrees.py: `degrees(model, inputs)`
dispatch.py       runs PyTorch on leading-order tensors: views, operations in place, one rule for each operation
rules/            what each operation becomes
series.py         a tensor as a sum of powers of c; exponentials.py: what is smaller than any power
parameters.py     which parameters grow; parameter_memory.py: where they lie; fixed_parameters.py: which do not grow
pass_log.py       what a pass leaves behind: sums of unequal degree, ties; findings.py: what a reader may not expect
explanations.py   degrees in words; module_names.py: blocks that are alike
"""

from normgrowth.errors import NoLimit, UnsupportedOperation
from normgrowth.limit.dispatch import RULES, Operation, rule
from normgrowth.limit.rules import (
    activations,
    arithmetic,
    comparisons,
    data_movement,
    lengths,
    logarithms,
    losses,
    normalization,
    pooling,
    powers,
    products,
    softmax,
    triangular,
)
from normgrowth.limit.series import Series, Term, by_element

RULE_FILES = (  # loaded so that they register
    *(activations, arithmetic, comparisons, data_movement, lengths, logarithms, losses),
    *(normalization, pooling, powers, products, softmax, triangular),
)

__all__ = [
    "RULES",
    "RULE_FILES",
    "NoLimit",
    "Operation",
    "Series",
    "Term",
    "UnsupportedOperation",
    "by_element",
    "rule",
]
