"""Being told to stop, in a moment when nothing is half done."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class heard_between_steps:
    """Ctrl-C and a scheduler's SIGTERM are heard between two steps; a second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.heard = False
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
        if self.heard:
            raise KeyboardInterrupt
        self.heard = True
