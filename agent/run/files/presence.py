"""Protection of a run directory that a process uses: a lock on the folder, and files with a recent time.

The observer and the agent of each rank hold the lock from their start to their end.  No ddptop removes
the directory meanwhile, even where its record is gone; cleaners of the temporary directory either
respect the lock (systemd-tmpfiles) or go by the age of the files (tmpwatch), which are touched every hour.
No `OSError` leaves this module: the training goes on without the protection.
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
"""Seconds between two touches; cleaners are not known to remove files younger than a day."""
_AGAIN_S: Final = 5.0
"""Seconds between two attempts at a lock, which a cleaner may hold for a moment."""


class Presence:
    """The presence of one process in a run directory; the agent of a `rank` touches only files of that rank."""

    def __init__(self, directory: RunDir, rank: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._rank = rank
        self._clock = clock
        self._hold: Hold | None = None
        self._hold_due = self._touch_due = clock()

    def begin(self) -> None:
        """Hold the directory from now on."""
        self._touch_due = self._clock() + EVERY_S
        self._acquire()

    def tick(self) -> None:
        """Touch the files and repeat a failed lock where that is due; to be called every few seconds."""
        now = self._clock()
        if self._hold is None and now >= self._hold_due:
            self._acquire()
        if now >= self._touch_due:
            self._touch_due = now + EVERY_S
            self._touch()

    def end(self) -> None:
        """Release the directory; the presence cannot begin again."""
        self._hold_due = self._touch_due = float("inf")
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def _acquire(self) -> None:
        self._hold_due = self._clock() + _AGAIN_S
        with contextlib.suppress(OSError):
            self._hold = Hold.acquire(self._directory.path)

    def _touch(self) -> None:
        path = self._directory.path
        # In a folder that the user has chosen, another program's file may have this name.
        if marks.read(path.parent, marks.BASE) is not None:
            _renew(path.parent / marks.NAME)
        _renew_all(path)
        if self._rank is None:
            _renew_all(path / "ranks")
            _renew_all(path / "logs")
            return
        # A thousand ranks that touch the files of all would be a million touches.
        _renew(path / "ranks" / f"{self._rank}.json")
        _renew(self._directory.rank_log(self._rank))


def _renew_all(folder: Path) -> None:
    with contextlib.suppress(OSError), os.scandir(marks.owned_folder(folder)) as entries:
        for entry in islice(entries, MOST_ENTRIES):
            _renew(entry.path)


def _renew(path: Path | str) -> None:
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)
