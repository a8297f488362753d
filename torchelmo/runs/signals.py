"""Ctrl-C and SIGTERM ask a run to stop after its step; a second Ctrl-C stops it at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Set `asked` to end a run after the step it is in."""

    def __init__(self) -> None:
        self.asked = False
        self.signal: int | None = None  # that asked

    @contextlib.contextmanager
    def on_signals(self) -> Iterator["Stop"]:
        if threading.current_thread() is not threading.main_thread():  # only the main thread may listen
            yield self
            return
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked, self.signal = True, number
