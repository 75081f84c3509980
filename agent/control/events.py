"""What is said of a run by its observer, from any thread on its way to the relay's, which records and publishes it."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Iterator

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp

_log = logging.getLogger("ddptop.observer")


class Events:
    """The events that are not published yet."""

    def __init__(self, wake: WakeUp) -> None:
        """Know none; each one sets `wake`."""
        self._wake = wake
        self._waiting: queue.SimpleQueue[wire.Event] = queue.SimpleQueue()

    def say(self, text: str, level: str = "info", rank: int | None = None) -> None:
        """Publish and record an event of this moment; may be called from any thread."""
        self.add(wire.Event(time.time_ns(), text, rank, level))

    def add(self, event: wire.Event) -> None:
        """Publish and record an event; may be called from any thread."""
        _log.log(logging.INFO if event.level == "info" else logging.WARNING, "%s", event.text)
        self._waiting.put(event)
        self._wake.set()

    def take(self) -> Iterator[wire.Event]:
        """Yield the events, oldest first, each once."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._waiting.get_nowait()
