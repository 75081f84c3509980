"""The frames in which the threads of this process stand."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def current() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its identifier; to be cleared soon: it holds what functions hold.

    Until 3.11.8 Python makes these frames under a lock that threads take when they begin and end.  A garbage collection
    that begins there may let such a thread run, and then the whole process stands still for ever
    (https://github.com/python/cpython/issues/106883).  So none begins there, as in later versions.
    """
    # Where the script has disabled it, it stays disabled.
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()
