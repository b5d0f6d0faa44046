"""Lint: integrity checks of a series. Copies, other runs, stale tensors, swapped steps, damaged files.

series.py     opens a series, has it read and judged
reading.py    one pass over it
mixture.py    other series and data files in the same place
judge.py      the order of judgments
looks.py      what is kept of a checkpoint once it is closed
renames.py    which new name continues which old one
values.py     a sample of values, and what they look like
evidence.py   a finding, and all looks side by side
tensors.py    names, shapes, dtypes, NaN
unchanged.py  tensors that did not change: frozen, stale, never trained, buffers
route.py      the way through the space of weights: is it one, in this order?
copies.py     checkpoints and tensors that hold the weights of another step
moves.py      order, other runs, re-initialisations
alongside.py  the same beside a trace, on the sums that it has measured
"""

from normgrowth.weights.lint.evidence import KINDS, Finding
from normgrowth.weights.lint.series import Report, lint

__all__ = ["KINDS", "Finding", "Report", "lint"]
