"""Runs PyTorch on leading-order tensors.

mode.py            LimitMode: intercepts each operation of a forward pass
operations.py      the table of rules, and Operation, the first argument of each rule
schemas.py         which arguments an operation writes to or shares, whether it saturates
marked_storage.py  degree marks on storages: conversion between tensors and series
partial_writes.py  writing a series into a part of a storage
score_origins.py   which softmaxes are attention, for `attention_only`
half_precision.py  bfloat16 and float16 tensors, which are computed in float32
"""

from normgrowth.limit.dispatch.marked_storage import HALVES, MARK
from normgrowth.limit.dispatch.mode import LimitMode
from normgrowth.limit.dispatch.operations import RULES, Operation, rule

__all__ = ["HALVES", "MARK", "RULES", "LimitMode", "Operation", "rule"]
