"""All rules, loaded so that they register."""

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

RULE_FILES = (
    *(activations, arithmetic, comparisons, data_movement, lengths, logarithms, losses),
    *(fused, softmax, normalization, pooling, powers, products, scatter_reductions, triangular),
)
