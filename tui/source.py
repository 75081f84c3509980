"""The one door between the dashboard and a run.

The app sees a run through a `Source` and through nothing else, so that a live run, a
recording and a fake in a test look the same to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from ddptop.tui.frame import Frame


class Refused(Exception):
    """An action that was not done; the text is the reason, one line for the user."""


class Source(Protocol):
    """A run as the dashboard sees it."""

    def poll(self) -> None:
        """Take in what has arrived; bounded, never blocks (a few ms). Called 20 times a second."""

    def frame(self, now: float) -> Frame:
        """Return an immutable picture; `now` is seconds since the epoch."""
        ...

    def pause(self) -> str:
        """Hold all ranks at one step. Blocks; returns one line saying what was done.

        Raises:
            Refused: they are not held, and why.
        """
        ...

    def resume(self) -> str:
        """Let all ranks go on. Blocks; returns one line saying what was done.

        Raises:
            Refused: they do not go on, and why.
        """
        ...

    def kill(self, grace_s: float, rank: int | None, progress: Callable[[str], None]) -> str:
        """End the run, or one rank of it. Blocks; returns one line saying what was ended.

        `progress` takes lines for the user and may be called from any thread.

        Raises:
            Refused: nothing was ended, or something is left, and why.
        """
        ...

    def victims(self, rank: int | None) -> str:
        """Describe in one or two lines what `kill` would end. May take a moment."""
        ...

    def close(self) -> None:
        """Let go of sockets and files; the run goes on."""


_READING: Final = frozenset({"poll", "frame", "close"})


def read_only(source: Source) -> Source:
    """Return the same run, to be looked at only: everything else is refused, also what is added to `Source` later."""
    return cast(Source, _ReadOnly(source))


class _ReadOnly:
    """A source that refuses."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name) if name in _READING else _refuse


def _refuse(*_: object, **__: object) -> str:
    raise Refused("this dashboard is read-only; `ddptop serve --control` makes one that is not")
