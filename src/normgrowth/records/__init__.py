"""Records: the tidy table that every measurement writes and every report reads.

Each row is one number. New analyses add quantities, not columns::

    run       string   which series or training run
    step      int64    training step; null in records over another axis
    level     string   "tensor", "layer", "layer_matrices" (layers without gains and biases), "role", "part" ("matrices"
                       and "vectors"), "head" or "model": the unit of the sums
    name      string   tensor, layer ("encoder.3"), role ("attention.query"), head ("encoder.3.head.5") or "model"
    layer     int32    block index, counted from 0; null outside blocks and for role and model
    role      string   role, at levels tensor and role; null otherwise
    quantity  string   "norm", "cosine", "step_size", ...: see `normgrowth.moments.moments`
    reference string   what the value is compared with: "previous", "first" or "lag10" checkpoint or step; else null
    value     float64  NaN where the quantity is undefined (the direction of a zero tensor)

Some results have further axes, each in its own column: tokens (float64, seen in training up to the step), scale
(float64, the factor of the weights), cell (int64, of a sweep), seed (int64, of random weights).

`normgrowth.stored_result` writes and reads the table.
"""

from normgrowth.records.matrix import Matrix
from normgrowth.records.record_blocks import Block, concatenated, storable
from normgrowth.records.record_table import Levels, Records, coded, quantities_by_level

__all__ = ["Block", "Levels", "Matrix", "Records", "coded", "concatenated", "quantities_by_level", "storable"]
