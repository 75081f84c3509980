"""The one door between the dashboard and a run.

The app sees a run through a `Source` and through nothing else, so that a live run, a
recording and a fake in a test look the same to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

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

    def watch(self, ranks: frozenset[int]) -> None:
        """Say which ranks' steps are looked at: of a large group the others tell of theirs in means alone."""

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
