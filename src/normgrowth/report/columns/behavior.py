"""Predictions: a row for each network, from the soft to the saturated one."""

from collections.abc import Callable, Sequence
from math import isfinite, nan

from normgrowth.network.behavior.result import Estimate, NetworkBehavior
from normgrowth.report.numbers import percent
from normgrowth.report.sentences.behavior import title, with_interval
from normgrowth.report.table_columns import Column, numbers, words


def columns(networks: Sequence[NetworkBehavior]) -> list[Column]:
    def of(
        heading: str, quantity: str, write: Callable[[Estimate | None], str] = with_interval, rank: int = 0
    ) -> Column:
        found = [getattr(one, quantity) for one in networks]
        values = [nan if one is None else one.value for one in found]
        return Column(heading, [write(one) for one in found], values, rank)

    agreement, accuracy = (
        [getattr(one, name).random for one in networks] for name in ("agreement", "accuracy")
    )
    return [
        words("network", [title(one) for one in networks]),
        of("same top\ntoken as soft", "agreement"),
        of("accuracy", "accuracy"),
        of("loss\n(nats)", "loss", _nats, 1),
        *([of("legal", "legal_share")] if any(one.legal_share for one in networks) else []),
        numbers("same top token\n(random weights)", agreement, percent, 2),
        numbers("accuracy\n(random weights)", accuracy, percent, 3),
    ]


def _nats(estimate: Estimate | None) -> str:
    if estimate is None or not isfinite(estimate.value):
        return "-"
    ends = f" [{estimate.low:.4g}, {estimate.high:.4g}]" if isfinite(estimate.low) else ""
    return f"{estimate.value:.4g}{ends}"
