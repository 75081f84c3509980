"""A wake-up between threads for one that waits in `zmq.Poller.poll`, which no lock or event can end."""

from __future__ import annotations

import contextlib
import socket


class WakeUp:
    """Readable once it was set, until it is cleared; any thread may set it."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._read.fileno()

    def set(self) -> None:
        """Wake the thread that waits."""
        # A full buffer wakes it as well, and after `close` nobody waits.
        with contextlib.suppress(OSError):
            self._write.send(b"\0")

    def clear(self) -> None:
        """Take back all that was set so far."""
        with contextlib.suppress(BlockingIOError):
            while self._read.recv(4096):
                pass

    def close(self) -> None:
        """Close both ends."""
        self._read.close()
        self._write.close()
