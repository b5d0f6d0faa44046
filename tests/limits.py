"""Bounds on what one case of a fuzz test may take."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

SECONDS, BYTES = 20, 1 << 30


class OverTime(BaseException):
    """No Exception, so that no handler of what is tested takes it for its own."""


@contextmanager
def bounded(seconds: int = SECONDS, size: int = BYTES) -> Iterator[None]:
    """Raise OverTime or MemoryError in the block when it takes more processor time, or memory than it began with.

    Processor time, so that a busy machine changes nothing; a block that waits is ended after five times as long.
    Only in the main thread, since it uses signals. Memory is the private writable memory of the process.
    """

    def over(*_: object) -> None:
        raise OverTime(f"more than {seconds} s")

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    before = {number: signal.signal(number, over) for number in (signal.SIGALRM, signal.SIGPROF)}
    resource.setrlimit(resource.RLIMIT_DATA, (used + size, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(5 * seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        for number, handler in before.items():
            signal.signal(number, handler)


def cases(usual: int, search: int) -> settings:
    """How many examples a fuzz test draws: in `make test`, and with the profile that `make test-all` loads."""
    searching = settings.default is not None and settings.default.max_examples >= 1000
    return settings(
        max_examples=search if searching else usual, deadline=None, suppress_health_check=list(HealthCheck)
    )
