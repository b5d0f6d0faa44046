"""Lint: a series that lies. Copies, strangers, tensors that stand still, files that are not whole.

series.py     opens the series, looks at each checkpoint once, and asks the others
looks.py      what is kept of a checkpoint once it is closed
values.py     a sample of values, and what they look like
evidence.py   a finding, and all looks side by side
tensors.py    names, shapes, NaN, tensors that stand still, buffers
route.py      the way through the space of weights: is it one, in this order?
copies.py     checkpoints and tensors that hold the weights of another step
moves.py      order, other runs, re-initialisations
alongside.py  the same beside a trace, on the sums that it has measured
"""

from normgrowth.weights.lint.evidence import KINDS, Finding
from normgrowth.weights.lint.series import Report, lint

__all__ = ["KINDS", "Finding", "Report", "lint"]
