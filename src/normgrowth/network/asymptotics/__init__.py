"""Leading-order tensors: the exact limit of a network whose parameters grow, and the degree of every part.

series.py       a tensor as a sum of powers of c; exponentials.py: what is smaller than any power
mode.py         runs PyTorch on them: views, operations in place, one rule for each operation
arithmetic.py   rules: sums and products; products.py: along a dimension
moves.py        rules: what moves values about, or chooses among them
powers.py       rules: powers and division
activations.py  rules: functions of single elements
logarithms.py   rules: exp, log and their kin
comparisons.py  rules: comparing, bounding, ordering; pooling.py: the largest of each window
norms.py        rules: layer norm and its kin
lengths.py      rules: norms of vectors, distances
triangular.py   rules: triangular systems of equations
attention.py    rules: softmax and fused attention; head_groups.py: some heads at a time
losses.py       rules: losses
context.py      what a pass leaves behind: sums of unlike degree, ties
limit.py        saturated(model), degrees(model)
"""

from normgrowth.errors import NoLimit, UnsupportedOperation
from normgrowth.network.asymptotics import (
    activations,
    arithmetic,
    attention,
    comparisons,
    lengths,
    logarithms,
    losses,
    moves,
    norms,
    pooling,
    powers,
    products,
    triangular,
)
from normgrowth.network.asymptotics.mode import RULES, Operation, rule
from normgrowth.network.asymptotics.series import Series, Term, by_element

RULE_FILES = (  # loaded so that they register
    *(activations, arithmetic, attention, comparisons, lengths, logarithms),
    *(losses, moves, norms, pooling, powers, products, triangular),
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
