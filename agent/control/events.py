"""The events of a run: the words of one that somebody has asked for, and the way to the thread that records all."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Iterator
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.text import clean_line

_LONGEST: Final = 400
"""Characters of an event's text that onlookers read; see `wire.Event`."""
_PAST: Final = {"freeze": "frozen", "resume": "resumed", "stop": "stopped"}
"""By action, the word that an outcome may begin with, which then says which action it is of."""

_log = logging.getLogger("ddptop.observer")


def sentence(action: str, outcome: str, who: str, *, refused: bool = False) -> str:
    """Return the text of an action's event: outcome first and actor last, because lists cut lines at their end.

    `checkpoint refused: no checkpoint function registered · ada (dashboard, pts/0)`. Of a long outcome the end goes.
    """
    said = action if not refused else f"{action} refused"
    text = f"{said}: {outcome}" if refused or outcome.partition(" ")[0].rstrip(":") != _PAST.get(action) else outcome
    actor = f" · {who}"
    return f"{clean_line(text, max(1, _LONGEST - len(actor)))}{actor}"


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
