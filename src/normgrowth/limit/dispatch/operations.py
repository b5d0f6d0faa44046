"""The table of rules, one for each PyTorch operation, and the operation that is passed to a rule."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils import _pytree as pytree

from normgrowth.limit.dispatch.schemas import schema_of
from normgrowth.limit.pass_log import Context
from normgrowth.limit.power_series import Series

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}  # name of an ATen operation -> rule(operation, *arguments)
TAKE_UNFINISHED: set[str] = set()  # operations whose rules take unfinished series


def rule(*names: str, unfinished: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule for the limit of operations.

    A rule gets the Operation and then the arguments: Series for tensors that grow, plain tensors for the others. It
    returns a Series, a plain tensor (no element grows), or a tuple of these. unfinished: the rule accepts series with
    lower orders that are not yet computed.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        if unfinished:
            TAKE_UNFINISHED.update(names)
        return function

    return register


@dataclass(slots=True)
class Operation:
    """The operation that a rule is called for."""

    func: Any  # the out-of-place operation
    context: Context
    dtype: torch.dtype | None = None  # dtype of the network's result if it has 16 bits
    arguments: Any = ()  # the arguments of the rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    @property
    def name(self) -> str:
        return schema_of(self.func).name

    @property
    def orders(self) -> int:
        return self.context.orders

    def named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments after the first, by name."""
        names = [argument.name for argument in self.func._schema.arguments[1:]]
        return dict(zip(names, args, strict=False)) | kwargs

    @property
    def degrees(self) -> list[Fraction | None]:
        """The degrees of its arguments that grow; None: exactly zero."""
        found = [x for x in pytree.tree_leaves(self.arguments) if isinstance(x, Series)]
        return [None if x.zero else x.top.degree for x in found]

    def refuse(self, why: str) -> Exception:
        return self.context.refuse(self.func, why, self.degrees)

    def diverges(self, sources: int) -> Exception:
        """The error for a value that grows faster than any power of c. sources: the parameters that make it grow."""
        return self.context.diverges(self.func, self.degrees, sources)
