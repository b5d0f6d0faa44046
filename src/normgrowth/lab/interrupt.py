"""Delay Ctrl-C and SIGTERM until a step is complete."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

SAME = 1.0  # seconds: torchrun forwards a Ctrl-C that its workers have already received


class heard_between_steps:
    """Delays Ctrl-C and SIGTERM until the end of a step; a second, later Ctrl-C interrupts at once."""

    def __init__(self, same: float = SAME) -> None:
        self.heard = False
        self._same, self._since = same, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Callable[[], bool]:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear)
        return lambda: self.heard

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        now = time.monotonic()
        if not self.heard:
            self.heard, self._since = True, now
        elif number == signal.SIGINT and now - self._since > self._same:
            raise KeyboardInterrupt
