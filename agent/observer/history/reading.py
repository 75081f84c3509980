"""The history of a run, read from its file on a thread of its own: no lock and no slow disk holds up its user.

While another process holds the file, it is tried again. What was read and not taken yet is bounded.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.run.files.database import Locked

if TYPE_CHECKING:
    from ddptop.agent.observer.history.kept import Kept

_LOCKED_S: Final = 0.2
"""Seconds between two attempts to read a file that another process holds."""
_AHEAD: Final = 1_000
"""Messages that are read before they are taken."""
_FULL_S: Final = 0.5
"""Seconds after which a thread that waits for room looks whether it is still wanted."""


class Reading(Iterator[wire.Steps | None]):
    """The thread, and what it has read: the history as it was saved, and the steps recorded after that, one by one.

    Of the recorded steps, None says that the next message is not there yet. For use from one other thread.
    """

    def __init__(self, database: Path, world: int) -> None:
        """Begin to read."""
        self._database = database
        self._world = world
        self._kept: Kept | None = None
        self._messages: queue.Queue[wire.Steps] = queue.Queue(_AHEAD)
        self._error: Exception | None = None
        self._has_more = threading.Event()
        """Set by all that is new."""
        self._done = threading.Event()
        """Set once all was read, or an error has ended it; one that was told to stop is never done."""
        self._stop = threading.Event()
        # A daemon: a disk that hangs forever must not prevent the observer from ending.
        threading.Thread(target=self._work, name="history", daemon=True).start()

    def opened(self) -> Kept | None:
        """Return the history as it was saved; None while it is not known. Raises what the thread has met with."""
        if self._kept is None and self._error is not None:
            raise self._error
        return self._kept

    def __next__(self) -> wire.Steps | None:
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            self._has_more.clear()
        # Before the look at the queue: after it, one more message may come.
        done = self._done.is_set()
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            if not done:
                return None
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def wait(self, seconds: float) -> None:
        """Wait until there is something new, at most so long."""
        if not self._done.is_set():
            self._has_more.wait(seconds)

    def stop(self) -> None:
        """Have the thread end soon."""
        self._stop.set()

    def _work(self) -> None:
        try:
            self._read()
        except Exception as error:  # a wall: the user of the history is told
            self._error = error
        if not self._stop.is_set():
            self._done.set()
        self._has_more.set()

    def _read(self) -> None:
        from ddptop.agent.observer.history.kept import Kept
        from ddptop.agent.observer.history.saved import restore

        kept = Kept(self._world)
        while True:
            try:
                recorded = restore(kept, self._database)
                break
            except Locked:
                if self._stop.wait(_LOCKED_S):
                    return
        self._kept = kept
        self._has_more.set()
        for message in recorded or ():
            if message is None:
                self._stop.wait(_LOCKED_S)
            else:
                self._put(message)
            if self._stop.is_set():
                return

    def _put(self, message: wire.Steps) -> None:
        while not self._stop.is_set():
            try:
                self._messages.put(message, timeout=_FULL_S)
            except queue.Full:
                continue
            self._has_more.set()
            return
