"""The passes behind `heads`: over each batch the network itself, its limit, and the network with c times its weights.

At most one layer's attention of one batch is in memory. The limit, which runs after the network itself, is compared
with it layer by layer. For this, each attention module of the network runs again on its recorded inputs.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.engine import Progress, Steps
from normgrowth.errors import InputError
from normgrowth.limit.limit_findings import messages
from normgrowth.limit.module_names import place
from normgrowth.limit.saturated import MORE_ORDERS, saturated
from normgrowth.network.attention_capture import Call, seen, seen_weights
from normgrowth.network.heads.call_sites import Where
from normgrowth.network.heads.statistics import (
    NotFinite,
    Tally,
    add_limit,
    add_scaled,
    add_soft,
    add_window,
    attended,
    attended_at,
    check_finite,
)
from normgrowth.network.hidden_states import Float64Pass, evaluating, out_of_memory_hint, running
from normgrowth.network.inputs.batches import Batch
from normgrowth.network.overflow import OverflowAsNan
from normgrowth.network.scaled_weights import scaled_weights

Tallies = dict[Where, Tally]
Again = Callable[[], Call]


class Passes:
    """The passes of a network over batches, and the sums that they collect."""

    def __init__(
        self,
        part: nn.Module,
        scales: tuple[float, ...],
        exact: bool,
        tolerance: float,
        notes: list[str],
        fixed: Sequence[str] = (),
    ):
        self.part, self.scales, self.exact, self.tolerance, self.notes = part, scales, exact, tolerance, notes
        self.fixed = fixed  # names or patterns of parameters that do not grow
        self.tallies: Tallies = {}
        self.scaled: dict[float, Tallies] = {}  # by c: the network with c times its weights
        self.tokens = self.sentences = 0
        self.undecided = 0  # ties that the last order does not break
        self.doubtful = 0  # other values that may depend on orders that were not computed
        self.orders = 1  # orders of the limit; if a batch needs more, later batches start with that number

    def over(self, batches: list[Batch], filled: list[Batch], progress: Progress | None, label: str) -> None:
        """Run all passes from the start. filled: batches of the published form."""
        self.tallies, self.scaled = {}, {}
        self.tokens = self.sentences = self.undecided = self.doubtful = 0
        ways = self.exact + len(self.scales)
        tell = Steps(progress, len(batches) * (1 + ways) + len(filled) * ways, label)
        with evaluating(self.part):
            for batch in batches:
                with out_of_memory_hint(self.part, batch.size):
                    self._count(batch)
                    with running(self.part, batch.size):
                        calls = self._soft(batch)
                    tell()
                    if self.exact:
                        self._limit(batch, calls)
                        tell()
            for batch in filled if self.exact else []:
                with out_of_memory_hint(self.part, batch.size):
                    self._limit_window(batch)
                tell()
        for c in self.scales:
            try:
                with (
                    wide_copy(self.part, c, self.fixed) as scaled,
                    evaluating(scaled),
                    OverflowAsNan(),
                ):
                    for batch, is_window in [(b, False) for b in batches] + [(b, True) for b in filled]:
                        with out_of_memory_hint(self.part, batch.size):
                            self._scaled(scaled, batch, c, is_window)
                        tell()
            except NotFinite:
                self.notes.append(f"c = {c:g} is left out: scores overflow")
                self.scaled.pop(c, None)

    def _count(self, batch: Batch) -> None:
        if batch.real is not None:
            self.tokens += int(batch.real.sum())
            self.sentences += len(batch.real)

    def _soft(self, batch: Batch) -> dict[Where, Again]:
        tallies: Tallies = {}
        calls: dict[Where, Again] = {}

        def saw(call: Call) -> None:
            if self._wanted(call, batch):
                add_soft(call, batch.real, self.tolerance, tallies.setdefault(call.where, Tally()))
                if self.exact:
                    calls[call.where] = call.again

        before = len(self.notes)
        with seen(self.part, saw):
            run_without_cache(self.part, self.part, batch.inputs)
        if not tallies:
            name, left_out = type(self.part).__name__, self.notes[before:]
            raise InputError(
                f"{name}: {left_out[0]}, and it has no other attention"
                if left_out
                else f"{name}: no softmax over (rows, heads, queries, keys) was captured: it has no such attention, or "
                "a kernel hides it (load transformers models with attn_implementation sdpa or eager)"
            )
        self._merge(tallies)
        return calls

    def _limit(self, batch: Batch, calls: dict[Where, Again]) -> None:
        tallies: Tallies = {}
        soft: list[Call] = []  # the current call only

        def saw(where: Where, start: int, weights: Tensor) -> None:
            if where in calls:
                if not soft or soft[0].where != where or start == 0:
                    soft[:] = [calls[where]()]
                add_limit(weights, start, soft[0], batch.real, tallies.setdefault(where, Tally()))

        self.in_the_limit(batch, saw, tallies.clear)
        self._merge(tallies)

    def _limit_window(self, batch: Batch) -> None:
        tallies: Tallies = {}

        def saw(where: Where, _start: int, weights: Tensor) -> None:
            if where not in self.tallies:  # left out
                return

            def count(start: int, stop: int) -> Tensor:
                return attended(weights[:, :, start:stop]).sum(-1)

            add_window(count, tuple(weights.shape), tallies.setdefault(where, Tally()))

        self.in_the_limit(batch, saw, tallies.clear)
        self._merge(tallies)

    def _scaled(self, scaled: nn.Module, batch: Batch, c: float, is_window: bool) -> None:
        tallies: Tallies = {}

        def saw(call: Call) -> None:
            if call.where not in self.tallies:
                return

            def count(start: int, stop: int) -> Tensor:
                scores = call.scores(start, stop)
                check_finite(call, scores)
                return attended_at(scores, unit).sum(-1)

            tally = tallies.setdefault(call.where, Tally())
            unit = torch.finfo(next(scaled.parameters()).dtype).eps
            if is_window:
                add_window(count, call.shape, tally)
            else:
                add_scaled(call, batch.real, unit, tally)

        with seen(scaled, saw):
            run_without_cache(scaled, scaled, batch.inputs)
        self._merge(tallies, self.scaled.setdefault(c, {}))

    def _wanted(self, call: Call, batch: Batch) -> bool:
        """Whether this is self-attention over all tokens, not cross-attention or attention in chunks."""
        rows, _, queries, keys = call.shape
        if queries == keys - call.sinks and (
            batch.real is None or (rows, queries) == tuple(batch.real.shape)
        ):
            return True
        self.notes.append(f"{call.where.module}: left out, scores {call.shape} are not tokens × tokens")
        return False

    def _merge(self, tallies: Tallies, into: Tallies | None = None) -> None:
        into = self.tallies if into is None else into
        for where, tally in tallies.items():
            into.setdefault(where, Tally()).merge(tally)

    def in_the_limit(
        self, batch: Batch, saw: Callable[[Where, int, Tensor], None], began: Callable[[], None]
    ) -> None:
        """Run the limit, with more orders if one order leaves ties, even ties without effect on the output."""
        limit = saturated(self.part, fixed=self.fixed)
        for orders in range(self.orders, MORE_ORDERS + 1, MORE_ORDERS - 1):
            limit, self.orders = saturated(self.part, orders=orders, fixed=self.fixed), orders
            try:
                with seen_weights(self.part, saw, began):
                    run_without_cache(limit, self.part, batch.inputs)
            except InputError as error:
                raise InputError(f"{error}; exact=False measures everything but the exact limit") from error
            if not (limit.undecided or limit.doubtful):
                break
        self.undecided += limit.undecided
        self.doubtful += limit.doubtful
        self.notes += messages(limit.findings)


def layer_numbers(found: Iterable[Where]) -> dict[Where, int]:
    """Layer numbers: the number of the block, or the order in the pass if block numbers are not unique."""
    places = list(found)
    blocks = [number for where in places if (number := place(where.module).block) is not None]
    return dict(zip(places, blocks if len(set(blocks)) == len(places) else range(len(places)), strict=True))


def head_name(stack: str, layer: int, head: int) -> str:
    return f"{stack}.{layer}.head.{head}"


def run_without_cache(network: Callable[..., Any], module: nn.Module, inputs: Any) -> None:
    """Run a module or its limit, without a KV cache: a module that runs again would fill it twice."""
    more = {"use_cache": False} if "use_cache" in inspect.signature(module.forward).parameters else {}
    if isinstance(inputs, Mapping):
        network(**{**inputs, **more})
    elif isinstance(inputs, tuple):
        network(*inputs, **more)
    else:
        network(inputs, **more)


@contextmanager
def wide_copy(module: nn.Module, c: float, fixed: Sequence[str] = ()) -> Iterator[nn.Module]:
    """A copy of the module with c times its weights, in float64 if the device supports it."""
    scaled = copy.deepcopy(module)
    wide = all(parameter.device.type != "mps" for parameter in scaled.parameters())
    if wide:
        scaled = scaled.to(torch.float64)
    with scaled_weights(scaled, c, fixed=fixed), Float64Pass() if wide else nullcontext():
        yield scaled
