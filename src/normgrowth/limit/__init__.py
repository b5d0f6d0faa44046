"""Leading-order tensors: the exact limit of a network whose parameters grow, and the degree of every part.

saturated.py      `saturated(model)`: the limit network
result.py         `Degrees`, the result of `normgrowth.degrees`; degree_pass.py: its forward pass
dispatch/         runs PyTorch on leading-order tensors: views, in-place operations, one rule for each operation
rules/            the limit of each operation; rule_files.py loads all; rules/attention/: softmax and attention
power_series.py   a tensor as a sum of powers of c; exponentials.py: terms smaller than any power
growing_parameters/  which parameters grow, which are fixed, how they share memory
forward_pass/     temporary changes to a model during a pass: hooks, kernels, saved arguments
pass_log.py       the log of a pass: sums of unequal degree, ties; limit_findings.py: warnings for the user
explanations.py   degrees in words; module_names.py: one name for similar blocks
"""

from importlib import import_module

from normgrowth.errors import NoLimit, UnsupportedOperation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from normgrowth.limit.dispatch import RULES, Operation, rule
    from normgrowth.limit.power_series import Series, Term, by_element
    from normgrowth.limit.rule_files import RULE_FILES

# Loaded at first use, so that results of `degrees` can be read without torch.
_HOME = {
    "RULES": "normgrowth.limit.dispatch",
    "RULE_FILES": "normgrowth.limit.rule_files",
    "Operation": "normgrowth.limit.dispatch",
    "Series": "normgrowth.limit.power_series",
    "Term": "normgrowth.limit.power_series",
    "by_element": "normgrowth.limit.power_series",
    "rule": "normgrowth.limit.dispatch",
}

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


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module 'normgrowth.limit' has no attribute {name!r}")
    import_module("normgrowth.limit.rule_files")
    return getattr(import_module(_HOME[name]), name)
