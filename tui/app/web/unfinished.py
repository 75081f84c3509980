"""What the process of a browser's tab has begun to do with its run and not yet brought to its end.

The process tells it by single bytes through a pipe of its own, which is never full and which
nothing that is drawn can hold up; the server reads them before it ends the process by force.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Final, cast

from ddptop.tui.link.source import Source

_ACTIONS: Final = frozenset({"freeze", "resume", "kill", "signal", "restart"})
"""Methods of `Source` that would leave the run half way if they were broken off. The others are decided by the ranks
together, which hold nothing for a controller that is gone, and may take as long as the training does."""
_BEGUN: Final = b"+"
_ENDED: Final = b"-"
_CHUNK: Final = 4096


def telling(source: Source, pipe: int) -> Source:
    """Return the same run, with a byte into the pipe when an action of it begins and another when it ends."""
    # What a restart starts must not hold the pipe.
    os.set_inheritable(pipe, False)
    return cast(Source, _Telling(source, pipe))


class _Telling:
    """A source that tells when it acts."""

    def __init__(self, source: Source, pipe: int) -> None:
        self._source = source
        self._pipe = pipe

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        return self._announced(found) if name in _ACTIONS else found

    def _announced(self, action: Callable[..., str]) -> Callable[..., str]:
        def act(*arguments: object, **named: object) -> str:
            self._write(_BEGUN)
            try:
                return action(*arguments, **named)
            finally:
                self._write(_ENDED)

        return act

    def _write(self, byte: bytes) -> None:
        # Where the server is gone, nobody ends this process.
        with contextlib.suppress(OSError):
            os.write(self._pipe, byte)


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
