"""Tests that measure the machine: no other test of this checkout runs meanwhile, in whichever process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

MARK = "alone"
_NOW = Path(__file__)
"""Locked while tests run: by each of many, or by one alone."""
_NEXT = _NOW.parent
"""Locked by who comes next, so that a test which waits for all others is not overtaken for ever."""


@contextlib.contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Wait for the tests that are to be over, and keep from beginning those that are to come later."""
    with contextlib.ExitStack() as now:
        with _locked(_NEXT, fcntl.LOCK_EX):
            now.enter_context(_locked(_NOW, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


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
