"""The one door between the dashboard and a run.

The app sees a run through a `Source` and through nothing else, so that a live run, a
recording and a fake in a test look the same to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ddptop.agent.control import Refused, Unholdable
from ddptop.tui.frame import Frame

__all__ = ["Refused", "Source", "Unholdable"]


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
            Unholdable: there is no step at which they could be; `freeze` is what is left.
        """
        ...

    def freeze(self) -> str:
        """Stop all processes where they are, at the risk of their collective timeout. Blocks as `pause` does.

        Raises:
            Refused: they are not stopped, and why.
        """
        ...

    def step(self, steps: int) -> str:
        """From a pause, let all ranks do exactly so many more steps. Blocks; returns one line.

        Raises:
            Refused: they were not made, and why.
        """
        ...

    def checkpoint(self) -> str:
        """Have all ranks save a checkpoint at the same step. Blocks; returns one line saying where.

        Raises:
            Refused: there is none, and why.
        """
        ...

    def stop(self, *, checkpoint: bool) -> str:
        """End all scripts at the same step, after a checkpoint where there can be one. Blocks; returns one line.

        Raises:
            Refused: they do not end, and why.
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
