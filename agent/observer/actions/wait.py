"""The wait of an action for ranks: what it waits for, and whether it ends before they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from ddptop.agent.wire.refusals import Cancelled, Hung

SOON_S: Final = 0.2
"""Seconds of waiting for ranks after which it is told; most pauses take less."""

GOES_ON: Final = "cancelled; the run goes on"
"""The refusal of an action behind which all ranks make steps again."""


class Wait:
    """The waits of one action, in its thread; the main thread reads what it waits for, cancels it, and says a hang."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.line = ""
        """The ranks that it waits for, in one line; empty where it waits for none, or for a moment only."""
        self.hang = ""
        """How the run hangs; empty where it does not."""
        self.is_working = False
        """True while the ranks do what they are held for: it does not wait for them to come to a step."""
        self.is_cancelled = False
        self.is_decided = False
        """True once the scripts save, or end: an action that has come so far cannot be cancelled."""
        self.clock = clock
        self.sleep = sleep
        self._began = self._grew = clock()
        self._progress = -1

    def rounds(self, after: str = "") -> Iterator[None]:
        """Take turns that come ever less often, at last ten times a second, until the caller has what it waits for.

        Args:
            after: what the ranks do after they are not waited for any longer; empty: the run goes on.

        Raises:
            Cancelled: the action was cancelled.
            Hung: the run hangs, so that its ranks come to no step.
        """
        self._began, self._progress, nap = self.clock(), -1, 0.002
        while True:
            yield
            self.check(after)
            if self.waited_s > SOON_S and self.hang:
                raise Hung(f"{self.hang}; {after}" if after else self.hang)
            self.sleep(nap)
            nap = min(2 * nap, 0.1)

    def check(self, after: str = "") -> None:
        """Raise `Cancelled` where the action was cancelled; `after` as above."""
        if self.is_cancelled:
            raise Cancelled(f"cancelled; {after}" if after else GOES_ON)

    @property
    def waited_s(self) -> float:
        """Seconds since the first of these turns."""
        return self.clock() - self._began

    def stuck_s(self, progress: int) -> float:
        """Return the seconds for which a number that grows with the steps of the ranks has not grown."""
        if progress > self._progress:
            self._progress, self._grew = progress, self.clock()
        return self.clock() - self._grew

    def tell(self, line: str) -> None:
        """Say what it waits for, where that takes longer than a moment."""
        if self.waited_s > SOON_S:
            self.line = line

    def decide(self) -> None:
        """Let nobody cancel the action from now on; it waits for no ranks."""
        self.is_decided, self.line = True, ""
