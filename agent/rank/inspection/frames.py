"""The frames in which the threads of this process stand, and the exceptions that they handle."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

from ddptop.agent.rank.faults import describe
from ddptop.agent.rank.hooks.around import replace
from ddptop.agent.run.script.stacks import OWN_THREADS
from ddptop.agent.text import clean_line

_Found = TypeVar("_Found")
_READS_LOCALS: Final = frozenset({"locals", "vars", "eval", "exec", "dir"})
_IS_OPTIMIZED: Final = 0x1
"""Flag of the code of functions: their variables are not in a dictionary."""
_OF_FRAME_ALONE: Final = 3
"""References to the copy of a frame's variables that are there anyway: the frame's, the caller's, and the call's."""


def current() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its identifier; to be cleared soon: it holds what functions hold.

    Until 3.11.8 Python makes these frames under a lock that threads take when they begin and end.  A garbage collection
    that begins there may let such a thread run, and then the whole process stands still for ever
    (https://github.com/python/cpython/issues/106883).  So none begins there, as in later versions.
    """
    return _uncollected(sys._current_frames)


def exceptions() -> dict[int, tuple[BaseException, TracebackType | None]]:
    """Return the exception that each thread handles, if it does, by its identifier; likewise to be cleared soon."""
    found = {}
    # typeshed has it as it is since 3.12.
    for ident, each in _uncollected(sys._current_exceptions).items():
        error = each[1] if isinstance(each, tuple) else each
        if isinstance(error, BaseException):
            found[ident] = error, error.__traceback__
    return found


def variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a function by name, without changing what `locals()` has given to it.

    Nothing stays in its frame of what they hold.  Empty where this cannot be, and outside functions, whose variables
    are in a dictionary anyway.
    """
    code = frame.f_code
    if not code.co_flags & _IS_OPTIMIZED:
        return {}
    is_traced = sys.gettrace() is not None or frame.f_trace is not None
    if sys.version_info < (3, 13) and (is_traced or not _READS_LOCALS.isdisjoint(code.co_names)):
        return {}
    found: Any = frame.f_locals
    copied = dict(found)
    if sys.version_info < (3, 13) and sys.getrefcount(found) <= _OF_FRAME_ALONE:
        # A copy that the frame keeps, and with it all that the function holds at this moment.
        found.clear()
    return copied


def _uncollected(read: Callable[[], _Found]) -> _Found:
    # Where the script has disabled it, it stays disabled.
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return read()
    gc.disable()
    try:
        return read()
    finally:
        gc.enable()


_LONGEST: Final = 120
"""Characters of the exception."""


class DeadThreads:
    """Looks at the exceptions that end threads, before Python or the script's own hook prints them."""

    def __init__(self) -> None:
        """See none yet."""
        self.last = ""
        """`thread prefetch died: KeyError('x')`."""

    def watch(self) -> None:
        """Look from now on, as long as the script does not put another hook in the place."""
        before = threading.excepthook

        def look(died: Any) -> None:
            with contextlib.suppress(Exception):
                name = str(getattr(died.thread, "name", ""))
                if died.exc_type is not SystemExit and not name.startswith(OWN_THREADS):
                    self.last = clean_line(f"thread {name} died: {describe(died.exc_value)}", _LONGEST)
            before(died)

        replace(threading, "excepthook", look)
