"""How long it still takes: by the plan at first, and by what stages really took as soon as some have run."""

from collections.abc import Sequence

TRUST = 0.1  # in the plan: so much of what is ahead counts as if it had run as planned


def time_left(
    ran: Sequence[tuple[float, float]],
    ahead: Sequence[float],
    *,
    now: float = 0.0,
    spent: float = 0.0,
    done: float = 0.0,
    kept: float = 0.0,
) -> float:
    """Seconds.

    ran: planned and real seconds of the stages that were run; what is ahead is as much slower as they were, as far as
    they are long enough to tell. ahead: planned seconds of those to come. now: of the one that runs, which began
    `spent` seconds ago. done: the share of its parts that is done, of which `kept` was there when it began; its own
    parts tell more than any plan.
    """
    planned, real = (sum(column) for column in zip(*ran, strict=True)) if ran else (0.0, 0.0)
    prior = TRUST * (now + sum(ahead))
    pace = (real + prior) / (planned + prior) if planned + prior > 0 else 1.0
    own = spent * (1 - done) / (done - kept) if done > kept else max(pace * now - spent, 0.0)
    return own + pace * sum(ahead)
