"""Leading-order tensors: the exact limit of a network whose parameters grow, and the degree of every part.

saturated.py      `saturated(model)`: the limit network; degrees.py: `degrees(model, inputs)`
dispatch/         runs PyTorch on leading-order tensors: views, operations in place, one rule for each operation
rules/            what each operation becomes; rules/attention/: softmax and attention
series.py         a tensor as a sum of powers of c; exponentials.py: what is smaller than any power
parameters/       which parameters grow, which are held fixed, where they lie in memory
forward_pass/     what is done to a model while a pass runs: hooks, kernels, saved arguments
pass_log.py       what a pass leaves behind: sums of unequal degree, ties; findings.py: what a reader may not expect
explanations.py   degrees in words; module_names.py: blocks that are alike
hard_heads.py     a network with hard attention only, beside itself
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
    scatter_reductions,
    triangular,
)
from normgrowth.limit.rules.attention import fused, softmax
from normgrowth.limit.series import Series, Term, by_element

RULE_FILES = (  # loaded so that they register
    *(activations, arithmetic, comparisons, data_movement, lengths, logarithms, losses),
    *(fused, softmax, normalization, pooling, powers, products, scatter_reductions, triangular),
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
