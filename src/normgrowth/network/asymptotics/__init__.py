"""Leading-order tensors: the exact limit of a network whose parameters grow, and the degree of every part.

series.py       a tensor as a sum of powers of c
mode.py         runs PyTorch on them: views, operations in place, one rule for each operation
arithmetic.py   rules: sums and products
moves.py        rules: what moves values about, or chooses among them
pointwise.py    rules: powers and activations
comparisons.py  rules: comparing, bounding, ordering
norms.py        rules: layer norm and its kin
attention.py    rules: softmax and fused attention
context.py      what a pass leaves behind: sums of unlike degree, ties
limit.py        saturated(model), degrees(model)
"""

from normgrowth.network.asymptotics import arithmetic, attention, comparisons, moves, norms, pointwise
from normgrowth.network.asymptotics.mode import RULES, Operation, rule
from normgrowth.network.asymptotics.series import Series, Term

RULE_FILES = (arithmetic, attention, comparisons, moves, norms, pointwise)  # loaded so that they register

__all__ = ["RULES", "RULE_FILES", "Operation", "Series", "Term", "rule"]
