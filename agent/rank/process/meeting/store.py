"""A connection of our own to the store of a training, torch's `TCPStore`; the training's own is not touched.

torch writes a warning with a stack trace to stderr, which is the user's output, where a connection cannot be made or
has ended.  So a second connection, on which nothing is said, is made first and looked at before each call: the
kernel ends it together with the other.
"""

from __future__ import annotations

import datetime
import socket
from types import TracebackType
from typing import Any, Final

_CONNECTS_S: Final = 2.0
_ANSWERS_S: Final = 5.0
LONGEST: Final = 16 << 10
"""Bytes of a value that is read."""


class Gone(OSError):
    """The store has ended, or cannot be reached any more."""


class Store:
    """A client of a `TCPStore`; only the thread that has made it may use it.

    A call takes a round trip; it may block for longer where the machine of the store stands still.
    """

    def __init__(self, kind: Any, host: str, port: int) -> None:
        """Connect.

        Args:
            kind: `torch.distributed.TCPStore`, which must not be imported here: the script may be importing it.
            host: the machine of the store.
            port: its port.

        Raises:
            OSError: nothing listens there.
            RuntimeError: it is no such store.
        """
        self._witness = socket.create_connection((host, port), timeout=_CONNECTS_S)
        try:
            self._witness.setblocking(False)
            # Without waiting for workers it counts for none, and the ranks wait for as many as before.
            self._store = kind(
                host,
                port,
                is_master=False,
                timeout=datetime.timedelta(seconds=_ANSWERS_S),
                wait_for_workers=False,
            )
        except BaseException:
            self._witness.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._witness.close()
        self._store = None

    def check(self) -> None:
        """Raise `Gone` if the store has ended."""
        try:
            if not self._witness.recv(1, socket.MSG_PEEK):
                raise Gone("the store has ended")
        except BlockingIOError:
            return
        except Gone:
            raise
        except OSError as error:
            raise Gone(str(error)) from error

    def read(self, key: str) -> bytes | None:
        """Return the value of a key, None where it has none, or one that is too long; raises `Gone`."""
        self.check()
        # Without this question first, `get` would wait for the key.
        if not self._store.check([key]):
            return None
        value = self._store.get(key)
        return value if isinstance(value, bytes) and len(value) <= LONGEST else None

    def write(self, key: str, value: bytes) -> None:
        """Set a key; raises `Gone`."""
        self.check()
        self._store.set(key, value)
