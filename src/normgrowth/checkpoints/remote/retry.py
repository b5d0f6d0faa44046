"""Repeated requests: which errors are transient, how long to wait, and the error after the last attempt."""

import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TypeVar

from normgrowth import engine
from normgrowth.errors import InputError

T = TypeVar("T")

TIMEOUT = 30.0  # seconds without a byte
SLOWEST = 8 << 10  # bytes per second; slower transfers fail after TIMEOUT
PAUSES = (0.5, 2.0, 8.0)  # seconds before each retry of a transient failure
LONGEST_WAIT = 300.0  # seconds; longer waits that a server requests are cut
TRANSIENT = (408, 429, 500, 502, 503, 504)


class Failure(Exception):
    """A failed attempt. reason: safe to show, without credentials. retryable: whether another attempt may succeed."""

    def __init__(self, reason: str, *, retryable: bool = False, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.retryable, self.wait = reason, retryable, wait


def check_speed(begun: float, count: int) -> None:
    """Raise Failure if the transfer is slower than SLOWEST, so that it does not take hours."""
    if time.monotonic() - begun > TIMEOUT + count / SLOWEST:
        raise Failure("the transfer is too slow", retryable=True)


def retry(attempt: Callable[[], T], where: str) -> T:
    """The result of `attempt`, repeated after transient failures. Raises InputError after the last one."""
    for pause in (*PAUSES, None):
        try:
            return attempt()
        except Failure as failure:
            if pause is None or not failure.retryable:
                raise InputError(f"{where}: {failure.reason}") from None
            wait = max(pause, failure.wait)
        engine.pause(wait)
    raise AssertionError("unreachable: the last attempt returns or raises")


def wait_asked_for(headers: Mapping[str, str]) -> float:
    """The seconds to wait according to the response headers; 0 if they give none."""
    headers = {name.lower(): value for name, value in headers.items()}
    quota = re.search(r"r=0;t=(\d+)", headers.get("ratelimit", ""))
    wish = quota.group(1) if quota else headers.get("retry-after", "")
    try:
        seconds = float(wish) if wish.isdecimal() else parsedate_to_datetime(wish).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT)
