"""The observer as parent of all its descendants that lose their own, whose exit status it then reads.

On Linux a process can ask for that (a "child subreaper"); elsewhere init becomes the parent of orphans, and
only marker and session show which run they belong to.
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
    """Become the parent of every descendant that loses its own; False where the system does not support it."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False


def reap(spared: int | None) -> None:
    """Read the exit status of adopted children that have ended, up to the first that is `spared` (torchrun's)."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == spared:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
