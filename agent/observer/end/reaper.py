"""Whatever loses its parent below the supervisor falls to the supervisor, and is buried by it.

On Linux a process may ask for that (a "child subreaper"); elsewhere orphans fall to init, and
only marker and session tell whose they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
"""From linux/prctl.h; see prctl(2)."""


def adopt_orphans() -> bool:
    """Become the parent of every descendant that loses its own; False where the system has no such thing."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False


def bury(spared: int | None) -> None:
    """Take the exit status of every adopted child that has ended; that of `spared` is for its own parent's code."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == spared:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
