"""Rules for operations that reduce a dimension: norms, pooling, scatter reductions, losses."""
