"""Files of tests that measure the machine: no other one of this checkout is under way meanwhile, in whichever process.

Files and not tests, because between the tests of a file the training that they share goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

MARK = "alone"
_NOW = Path(__file__)
"""Locked while the tests of a file run: by each of many processes, or by one alone."""
_NEXT = _NOW.parent
"""Locked by who comes next, so that one who waits for all others is not overtaken for ever."""


class Turns:
    """The turns of one process, which runs one test after another."""

    def __init__(self) -> None:
        self._now = contextlib.ExitStack()
        self._file: Path | None = None
        """The file whose turn it is."""

    def begin(self, file: Path, *, alone: bool) -> None:
        """Wait for the files that are to be over before a test of this one, and keep later ones from beginning."""
        if self._file == file:
            return
        with _locked(_NEXT, fcntl.LOCK_EX):
            self._now.enter_context(_locked(_NOW, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        self._file = file

    def end(self) -> None:
        """Let others begin."""
        self._file = None
        self._now.close()


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        # Not by closing it alone: a process that was forked meanwhile has the same lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
