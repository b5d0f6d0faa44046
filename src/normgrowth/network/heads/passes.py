"""The passes behind `heads`: over each batch the network itself, its limit, and the network with c times its weights.

At the most one layer's attention of one batch is alive. The limit is compared with the network itself layer by layer,
and meets a layer long after that: so the attention module runs again then, on what it was given the first time.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.limit.findings import messages
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
    """The passes of a network over batches, and what they leave."""

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
        self.fixed = fixed  # names of parameters that do not grow, or patterns
        self.tallies: Tallies = {}
        self.scaled: dict[float, Tallies] = {}  # of the network with c times its weights
        self.tokens = self.sentences = 0
        self.undecided = 0  # ties that even the last order left open
        self.orders = 1  # of the limit; where one batch needs more, the next ones begin with them

    def over(self, batches: list[Batch], filled: list[Batch], told: Callable[[int, int], None]) -> None:
        """All passes, from the beginning; filled: those of the published form. told: passes done, of how many."""
        self.tallies, self.scaled = {}, {}
        self.tokens = self.sentences = self.undecided = 0
        ways = self.exact + len(self.scales)
        total, done = len(batches) * (1 + ways) + len(filled) * ways, 0

        def tell() -> None:
            nonlocal done
            done += 1
            told(done, total)

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
                self.notes.append(f"with the weights times {c:g} scores overflow: left out")
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
            run(self.part, self.part, batch.inputs)
        if not tallies:
            name, left_out = type(self.part).__name__, self.notes[before:]
            raise InputError(
                f"{name}: {left_out[0]}, and there is nothing else"
                if left_out
                else f"{name}: no softmax over (rows, heads, queries, keys) was seen: it has no such attention, or "
                "hides it in a kernel (load models of transformers with attn_implementation sdpa or eager)"
            )
        self._merge(tallies)
        return calls

    def _limit(self, batch: Batch, calls: dict[Where, Again]) -> None:
        tallies: Tallies = {}
        soft: list[Call] = []  # the one that is looked at

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
            run(scaled, scaled, batch.inputs)
        self._merge(tallies, self.scaled.setdefault(c, {}))

    def _wanted(self, call: Call, batch: Batch) -> bool:
        """Every token asks every token: not so where attention goes to something else, or by pieces."""
        rows, _, queries, keys = call.shape
        if queries == keys - call.sinks and (
            batch.real is None or (rows, queries) == tuple(batch.real.shape)
        ):
            return True
        self.notes.append(f"{call.where.module}: scores {call.shape} are not tokens over tokens: left out")
        return False

    def _merge(self, tallies: Tallies, into: Tallies | None = None) -> None:
        into = self.tallies if into is None else into
        for where, tally in tallies.items():
            into.setdefault(where, Tally()).merge(tally)

    def in_the_limit(
        self, batch: Batch, saw: Callable[[Where, int, Tensor], None], began: Callable[[], None]
    ) -> None:
        """With more orders where one leaves a tie open: also one among equal values, which the output cannot show."""
        limit = saturated(self.part, fixed=self.fixed)
        for orders in range(self.orders, MORE_ORDERS + 1, MORE_ORDERS - 1):
            limit, self.orders = saturated(self.part, orders=orders, fixed=self.fixed), orders
            try:
                with seen_weights(self.part, saw, began):
                    run(limit, self.part, batch.inputs)
            except InputError as error:
                raise InputError(f"{error}; all but the exact limit can be had (exact=False)") from error
            if not (limit.undecided or limit.doubtful):
                break
        self.undecided += limit.undecided
        self.notes += messages(limit.findings)


def numbers(found: Iterable[Where]) -> dict[Where, int]:
    """Layers by the number of their block; in the order of the pass, where names do not tell them apart."""
    places = list(found)
    blocks = [number for where in places if (number := place(where.module).block) is not None]
    return dict(zip(places, blocks if len(set(blocks)) == len(places) else range(len(places)), strict=True))


def head_name(stack: str, layer: int, head: int) -> str:
    return f"{stack}.{layer}.head.{head}"


def run(network: Callable[..., Any], module: nn.Module, inputs: Any) -> None:
    """A pass of a module, or of its limit; without a cache, since a module that runs again would fill it again."""
    more = {"use_cache": False} if "use_cache" in inspect.signature(module.forward).parameters else {}
    if isinstance(inputs, Mapping):
        network(**{**inputs, **more})
    elif isinstance(inputs, tuple):
        network(*inputs, **more)
    else:
        network(inputs, **more)


@contextmanager
def wide_copy(module: nn.Module, c: float, fixed: Sequence[str] = ()) -> Iterator[nn.Module]:
    """The module with c times its weights, in float64 where there is such; its own weights stay as they are."""
    scaled = copy.deepcopy(module)
    wide = all(parameter.device.type != "mps" for parameter in scaled.parameters())
    if wide:
        scaled = scaled.to(torch.float64)
    with scaled_weights(scaled, c, fixed=fixed), Float64Pass() if wide else nullcontext():
        yield scaled
