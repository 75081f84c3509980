"""The end of the script, and the things for which the interpreter waits after it: threads that are no daemons, queues,
child processes; and the exit function in which it stands, after them.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType, TracebackType
from typing import Final

from ddptop import agent
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.frames import current
from ddptop.agent.rank.inspection.stacks import own_sources, raised_at
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.run.script.stacks import OWN_THREADS, function_name
from ddptop.agent.text import clean_line

_MOST: Final = 3
"""Of these that are named."""
_FEEDER: Final = "QueueFeederThread"
"""The thread of a `multiprocessing.Queue` that writes into its pipe: it is waited for at exit, though a daemon."""

_POOL: Final = "concurrent.futures.thread"
_AGENT: Final = os.path.dirname(os.path.abspath(agent.__file__))
_RUNNER: Final = os.path.join(_AGENT, "__main__.py")
_WRAPPERS: Final = ("wrapper", "inner")
"""Functions of libraries around the one that was called."""


class ScriptEnd:
    """How the script has ended, and the thing for which its process waits since; no error leaves it."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.left_at = ""
        """The line of the `sys.exit` or the exception that ended the script; empty where none did."""
        self._left_by = ""
        self.awaits = ""
        """The thing for which the process waits at its exit."""
        self._exit_function = ""
        """The exit function in which it was seen last."""

    def note_left(self, error: str | None, traceback: str | None, left: TracebackType | None) -> None:
        """Take note of the exception, or of the `sys.exit`, whose trace is `left`."""
        with self._faults.noted("looking for the line that ended its script"):
            self.left_at = raised_at(left, own_sources()) if left is not None else ""
        name = (error or "SystemExit").partition(":")[0].rpartition(".")[2]
        self._left_by = "sys.exit" if traceback is None else clean_line(name, 60)

    def wait(self) -> None:
        """Find the thing for which the process will wait."""
        with self._faults.noted("looking for what its process waits for at exit"):
            self.awaits = awaited(own_sources())

    def look(self) -> bool:
        """Look for the exit function in which the process stands; say whether it waits for that, after a second."""
        before, self._exit_function = self._exit_function, ""
        with self._faults.noted("looking for what its process waits for at exit"):
            self._exit_function = exit_function(own_sources())
        if self._exit_function in ("", self.awaits) or self._exit_function != before:
            return False
        self.awaits = before
        return True

    @property
    def activity(self) -> str:
        """The present activity of its process, in words."""
        if self.awaits and self.awaits == self._exit_function:
            return f"its process stands in {self.awaits}"
        return f"its script has ended by {self._left_by} ({self.left_at})" if self.left_at else "its script has ended"


def awaited(sources: Sources) -> str:
    """Return what the process will wait for before it ends, `thread uploader (train.py:9)`; empty: for nothing.

    Most of it ends a moment later, because it has only been asked to.
    """
    found, queues = [], 0
    frames = current()
    for thread in threading.enumerate():
        name = str(thread.name)
        if thread is threading.main_thread() or thread is threading.current_thread() or name.startswith(OWN_THREADS):
            continue
        if name == _FEEDER:
            queues += 1
        elif not thread.daemon:
            where = _where(frames.get(thread.ident or 0), sources)
            # A thread of a pool that has nothing to do ends as soon as the interpreter asks it to.
            if where or getattr(getattr(thread, "_target", None), "__module__", "") != _POOL:
                found.append(f"thread {name} ({where})" if where else f"thread {name}")
    # They hold what the functions hold.
    frames.clear()
    if queues:
        found.append("a queue that nobody reads" if queues == 1 else f"{queues} queues that nobody reads")
    children = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
    found += [
        f"process {child.name} (pid {child.pid})" for child in tuple(children) if not child.daemon and child.is_alive()
    ]
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more


def exit_function(sources: Sources) -> str:
    """Return the exit function in which the main thread stands; empty where it is in none.

    `the barrier of its exit function leave_together (train.py:8)`: what it calls, and the line of the script's that
    does.  After the script no other function runs in that thread.
    """
    frames = current()
    frame = frames.get(threading.main_thread().ident or 0)
    frames.clear()
    calls = where = outermost = ""
    # Where the runner itself calls them, what has started it is below.
    while frame is not None and frame.f_code.co_filename != _RUNNER:
        code, file = frame.f_code, frame.f_code.co_filename
        if not sources.is_library(file):
            where = where or f" ({sources.name(file)}:{frame.f_lineno})"
            outermost = function_name(str(getattr(code, "co_qualname", code.co_name)))
        elif not file.startswith(_AGENT) and code.co_name not in _WRAPPERS:
            calls, outermost = (calls, outermost) if where else (code.co_name, code.co_name)
        frame = frame.f_back
    if not outermost or outermost == "_shutdown":
        # The interpreter waits for threads, of which the end of the script has told.
        return ""
    of = f"the {calls} of " if calls and where else ""
    return f"{of}its exit function {outermost}{where}"


def _where(frame: FrameType | None, sources: Sources) -> str:
    while frame is not None and sources.is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{sources.name(frame.f_code.co_filename)}:{frame.f_lineno}"
