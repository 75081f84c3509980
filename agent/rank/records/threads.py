"""The threads among which this rank divides its work, as its training thread has them, and its cores."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, Final

from ddptop.agent.rank.inspection.probing import facts
from ddptop.agent.wire import Threads

_PINS: Final = "_pin_memory_loop"
"""Function of the threads of torch's data loaders that pin memory: a part of their names."""


class Pools:
    """Reads the numbers of threads, about once a second."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.due = True
        self._read: tuple[int, int] | None = None

    def look(self) -> None:
        """Read what OpenMP has for each thread of its own: called on the training thread, where `due`."""
        self.due = False
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            self._read = torch.get_num_threads(), torch.get_num_interop_threads()

    def threads(self, children: int) -> Threads | None:
        """Return the newest numbers, None before the first; `children`: processes of the rank's own."""
        self.due = True
        if self._read is None:
            return None
        cores = float(len(os.sched_getaffinity(0)))
        # A control group that cannot be read sets no limit that is known.
        with contextlib.suppress(OSError, ValueError):
            cores = min(cores, facts.quota(facts.folder("cpu")) or cores)
        pins = sum(_PINS in thread.name for thread in threading.enumerate())
        return Threads(*self._read, cores, children, pins)
