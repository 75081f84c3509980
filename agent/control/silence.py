"""When the observer of a run was heard, and since when it is not: without it nothing is known of the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

OBSERVED_S: Final = 2.0
"""The observer tells of the run once a second; after this time without a word nothing is known of the ranks."""

SILENT_S: Final = 30.0
"""Seconds without a word after which an observer that lives is given up."""
_LISTENS_S: Final = 1.0
"""Seconds between two looks of somebody who listens, at most."""


class LastHeard:
    """The times at which one observer was heard, and the next one in its place."""

    def __init__(self, patience_s: float) -> None:
        """Nobody was heard yet; an observer is missed after `patience_s` at the latest."""
        self._patience_s = min(OBSERVED_S, patience_s)
        self.at: float | None = None
        """When it was heard last."""
        self._due: float | None = None
        """Since when one that was never heard should have answered; None where it may still be starting."""

    def expect(self, since: float) -> None:
        """Take note that the observer, never heard, should have answered since a moment; the earliest one counts."""
        self._due = since if self._due is None else min(since, self._due)

    def hear(self, now: float) -> float:
        """Take note that the observer is heard, and return the seconds for which it had been missed."""
        missed = 0.0 if self.at is None else self.missed_s(now) or 0.0
        self.at = now
        return missed

    def missed_s(self, now: float) -> float | None:
        """Return the seconds since the observer was heard last, None where it is heard or need not answer yet."""
        since = self._due if self.at is None else self.at
        age = 0.0 if since is None else now - since
        return age if age > self._patience_s else None


class Silence:
    """The seconds for which somebody who listens has heard nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to listen."""
        self._clock = clock
        self._at = clock()
        self._seconds = 0.0

    def listen(self, *, heard: bool) -> float:
        """Take note whether anything was heard since the last call, and return the seconds for which nothing was."""
        now = self._clock()
        # A process that stood still itself has not listened.
        self._seconds = 0.0 if heard else self._seconds + min(now - self._at, _LISTENS_S)
        self._at = now
        return self._seconds
