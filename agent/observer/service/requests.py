"""Commands to the observer itself, from the thread that receives them to the one that carries them out, and back.

What the recorder answers takes the same way back.

This module knows no socket.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp

MOST: Final = 1_000
"""Commands that may wait for the main thread."""
TOO_LATE: Final = "not done: the run is over, or its observer leaves it; look, and ask again where it is still there"
_TOO_MANY: Final = "not done: too many others wait; ask again"


class Requests:
    """Two queues: the commands that have arrived, and the answers of other threads than the relay's."""

    def __init__(self) -> None:
        """Prepare the queues."""
        self.arrived = WakeUp()
        """Set at each command."""
        self.answered = WakeUp()
        """Set at each answer."""
        self._commands: queue.SimpleQueue[tuple[bytes, wire.Command]] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[bytes, wire.HistoryAnswer]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._refusal: str | None = None

    def put(self, sender: bytes, command: wire.Command) -> None:
        """Hand a command over; it is refused at once where nobody carries it out any more, or too many wait."""
        with self._lock:
            refusal = self._refusal or (_TOO_MANY if self._commands.qsize() >= MOST else None)
            if refusal is None:
                self._commands.put((sender, command))
        if refusal is None:
            self.arrived.set()
        else:
            self.reply(sender, wire.Reply(command.id, False, refusal))

    def received(self) -> Iterator[tuple[bytes, wire.Command]]:
        """Yield the commands that have arrived, each with its sender."""
        self.arrived.clear()
        with contextlib.suppress(queue.Empty):
            for _ in range(MOST):
                yield self._commands.get_nowait()

    def reply(self, sender: bytes, reply: wire.HistoryAnswer) -> None:
        """Answer a command, or a part of a question about the history; may be called from any thread."""
        self._replies.put((sender, reply))
        self.answered.set()

    def replies(self) -> Iterator[tuple[bytes, wire.HistoryAnswer]]:
        """Yield the replies that are ready, each with the sender of the command."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._replies.get_nowait()

    def refuse(self) -> None:
        """Refuse all further commands: nobody will carry them out."""
        with self._lock:
            self._refusal = TOO_LATE

    def close(self) -> None:
        """Close the wake-ups of both threads."""
        self.arrived.close()
        self.answered.close()
