"""That somebody lives in a run directory: a lock on it, and files that never look old.

The supervisor and the agent of each rank are present from their beginning to their end.  No ddptop removes
the directory meanwhile, also where its record is gone; cleaners of the temporary directory either
respect the lock (systemd-tmpfiles) or go by the age of the files (tmpwatch), which are touched now and
then.  Nothing in here raises: a training goes on without.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from ddptop.agent.run.files import marks
from ddptop.agent.run.files.private import Hold
from ddptop.agent.run.rundir import MOST_ENTRIES, RunDir

EVERY_S: Final = 3600.0
"""Between two touches; no cleaner is known to take what is younger than a day."""
_AGAIN_S: Final = 5.0
"""Between two attempts at a lock that a cleaner held at that moment."""


class Presence:
    """One process in a run directory; `rank` for the agent of a rank, which cares for what is its own."""

    def __init__(self, directory: RunDir, rank: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._rank = rank
        self._clock = clock
        self._hold: Hold | None = None
        self._hold_due = self._touch_due = clock()

    def begin(self) -> None:
        """Hold the directory from now on."""
        self._touch_due = self._clock() + EVERY_S
        self._take()

    def turn(self) -> None:
        """Do what is due; to be called every few seconds, at least."""
        now = self._clock()
        if self._hold is None and now >= self._hold_due:
            self._take()
        if now >= self._touch_due:
            self._touch_due = now + EVERY_S
            self._touch()

    def end(self) -> None:
        """Let go of the directory, for good."""
        self._hold_due = self._touch_due = float("inf")
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def _take(self) -> None:
        self._hold_due = self._clock() + _AGAIN_S
        with contextlib.suppress(OSError):
            self._hold = Hold.take(self._directory.path)

    def _touch(self) -> None:
        path = self._directory.path
        # In a folder of the user's something else may be called so.
        if marks.read(path.parent, marks.BASE) is not None:
            _renew(path.parent / marks.NAME)
        _renew_all(path)
        _renew_all(path / "decisions")
        if self._rank is None:
            _renew_all(path / "ranks")
            _renew_all(path / "logs")
            return
        # Each rank for itself: all of them for all would be a million touches.
        _renew(path / "ranks" / f"{self._rank}.json")
        _renew(self._directory.rank_log(self._rank))


def _renew_all(folder: Path) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, MOST_ENTRIES):
            _renew(entry.path)


def _renew(path: Path | str) -> None:
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)
