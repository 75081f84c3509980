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
        self._read: tuple[int, int, float] | None = None

    def look(self) -> None:
        """Read what each thread has of its own: called on the training thread, where `due`."""
        self.due = False
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            # The script may have bound its thread, and not ours.
            cores = float(len(os.sched_getaffinity(0)))
            self._read = torch.get_num_threads(), torch.get_num_interop_threads(), cores

    def threads(self, children: int) -> Threads | None:
        """Return the newest numbers, None before the first; `children`: processes of the rank's own."""
        self.due = True
        if self._read is None:
            return None
        within, between, cores = self._read
        # A control group that cannot be read sets no limit that is known.
        with contextlib.suppress(OSError, ValueError):
            cores = min(cores, facts.quota(facts.folder("cpu")) or cores)
        # The property of a class of the script's is its code.
        pins = sum(_PINS in str(vars(thread).get("_name")) for thread in threading.enumerate())
        return Threads(within, between, cores, children, pins)
