"""The one door between the dashboard and a run.

The app sees a run through a `Source` and through nothing else, so that a live run, a
recording and a fake in a test look the same to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ddptop.agent.identity import Process
from ddptop.tui.frame import Frame

Aim = int | Process | None
"""What a kill or a signal is meant for: a rank by its number, one process by its identity, or the whole run."""


class Refused(Exception):
    """An action that was not done; the text is the reason, one line for the user."""


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process of the run, for the list that one is chosen from. Text in here is clean."""

    process: Process
    role: str
    """`torchrun`, `rank`, `data worker` or `helper`."""
    rank: int | None
    """The rank that it is or works for."""
    status: str
    age_s: float | None
    cpu_percent: float | None
    """Since it began; 100 is one core."""
    memory_bytes: int | None
    command: str


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

    def kill(self, grace_s: float, aim: Aim, progress: Callable[[str], None]) -> str:
        """End the run, or one rank or process of it. Blocks; returns one line saying what was ended.

        `progress` takes lines for the user and may be called from any thread.

        Raises:
            Refused: nothing was ended, or something is left, and why.
        """
        ...

    def signal(self, number: int, aim: Aim) -> str:
        """Send a signal. Blocks for a moment; returns one line saying who got it.

        Raises:
            Refused: nobody got it, and why.
        """
        ...

    def victims(self, aim: Aim) -> str:
        """Describe in one or two lines what `kill` would end. May take a moment."""
        ...

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run, torchrun first, then each rank with its helpers. Takes a moment."""
        ...

    def close(self) -> None:
        """Let go of sockets and files; the run goes on."""
