"""Imports all files with rules, which registers the rules."""

from normgrowth.limit.rules import (
    arithmetic,
    comparisons,
    data_movement,
    matrix_products,
    normalization,
    products,
    triangular,
)
from normgrowth.limit.rules.attention import fused, softmax
from normgrowth.limit.rules.elementwise import activations, logarithms, powers
from normgrowth.limit.rules.reductions import lengths, losses, pooling, scatter_reductions

RULE_FILES = (
    *(activations, arithmetic, comparisons, data_movement, lengths, logarithms, losses, matrix_products),
    *(fused, softmax, normalization, pooling, powers, products, scatter_reductions, triangular),
)
