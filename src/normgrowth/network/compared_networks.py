"""The networks that a network is compared with: its exact limit, c times its weights, and hard attention."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from torch import nn

from normgrowth.limit.limit_findings import PassFinding, messages
from normgrowth.limit.saturated import saturated
from normgrowth.network.hidden_states import names_of_network
from normgrowth.network.overflow import OverflowAsNan
from normgrowth.network.scaled_weights import scaled_weights


class Variant(NamedTuple):
    """A variant of a network. c: the factor of the weights of a scaled one."""

    name: Literal["soft", "saturated", "scaled", "hard_attention"]
    c: float | None = None


class ComparedNetworks:
    """Runs all variants of a network on the same inputs. fixed: names of parameters that do not grow."""

    def __init__(
        self,
        network: nn.Module,
        fixed: Sequence[str],
        *,
        exact: bool,
        c: Sequence[float],
        hard_attention: bool,
    ) -> None:
        self.network, self.fixed, self.scales = network, fixed, c
        self.limit = saturated(network, fixed=fixed) if exact else None
        self.hard = saturated(network, attention_only=True) if hard_attention else None
        self.doubtful = False
        self.findings: dict[PassFinding, None] = {}

    def outputs(self, inputs: Any) -> Iterator[tuple[Variant, Any]]:
        """The output of each variant."""
        if self.limit is not None:
            with names_of_network():
                found = self.limit(inputs)
            self.doubtful = self.doubtful or self.limit.doubtful > 0
            self.findings |= dict.fromkeys(self.limit.findings)
            yield Variant("saturated"), found
        for c in self.scales:
            with scaled_weights(self.network, c, fixed=self.fixed), OverflowAsNan():
                found = self.network(inputs)
            yield Variant("scaled", c), found
        if self.hard is not None:
            with names_of_network():
                found = self.hard(inputs)
            yield Variant("hard_attention"), found

    @property
    def notes(self) -> list[str]:
        """What the passes of the limit found."""
        tied = "the limit has ties that more orders might break; tied positions get equal weight"
        return [*messages(self.findings), *([tied] if self.doubtful else [])]
