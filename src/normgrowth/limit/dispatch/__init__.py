"""Runs PyTorch on leading-order tensors.

mode.py            LimitMode: what happens to each operation of a forward pass
operations.py      the table of rules, and Operation, which each rule gets
schemas.py         what an operation writes to, what it shares, whether it saturates
storage.py         degree marks on storages: a series for a tensor, a tensor for a series
partial_writes.py  writing a series into a part of a storage
half_precision.py  bfloat16 and float16, which are computed in float32
"""

from normgrowth.limit.dispatch.mode import LimitMode
from normgrowth.limit.dispatch.operations import RULES, Operation, rule
from normgrowth.limit.dispatch.storage import HALVES, MARK

__all__ = ["HALVES", "MARK", "RULES", "LimitMode", "Operation", "rule"]
