"""The actions on its run that the process of a browser's tab has begun and not yet brought to their end.

The process reports them by single bytes through a pipe of its own, which is never full and which
nothing that is drawn can hold up; the server reads them before it ends the process by force.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

_BEGUN: Final = b"+"
_ENDED: Final = b"-"
_CHUNK: Final = 4096


def telling(pipe: int) -> Callable[[], AbstractContextManager[None]]:
    """Return what a `RunControl` enters to act: a byte goes into the pipe when it begins, another when it ends."""
    # What a restart starts must not hold the pipe.
    os.set_inheritable(pipe, False)

    def write(byte: bytes) -> None:
        # Where the server is gone, nobody ends this process.
        with contextlib.suppress(OSError):
            os.write(pipe, byte)

    @contextlib.contextmanager
    def acting() -> Iterator[None]:
        write(_BEGUN)
        try:
            yield
        finally:
            write(_ENDED)

    return acting


class Unfinished:
    """The server's side of the pipe."""

    def __init__(self) -> None:
        self._read, self.pipe = os.pipe()
        """The end that the process writes to."""
        os.set_blocking(self._read, False)
        self._count = 0

    def handed_over(self) -> None:
        """Close this process's copy of what the process writes to."""
        os.close(self.pipe)

    def any(self) -> bool:
        """Say whether something has begun and not ended."""
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self._read, _CHUNK):
                self._count += said.count(_BEGUN) - said.count(_ENDED)
        return self._count > 0

    def close(self) -> None:
        """Look no more."""
        os.close(self._read)
