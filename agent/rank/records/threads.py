"""The threads among which this rank divides its work, as its training thread has them, and its cores."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, Final

from ddptop.agent.rank.inspection.probing import facts
from ddptop.agent.text import spans
from ddptop.agent.wire import Threads

_PINS: Final = "_pin_memory_loop"
"""Function of the threads of torch's data loaders that pin memory: a part of their names."""


class Pools:
    """Reads the numbers of threads, about once a second."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.due = True
        self._read: tuple[int, int, set[int]] | None = None

    def look(self) -> None:
        """Read what each thread has of its own: called on the training thread, where `due`."""
        self.due = False
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            # The script may have bound its thread, and not ours.
            self._read = torch.get_num_threads(), torch.get_num_interop_threads(), os.sched_getaffinity(0)

    def threads(self, children: int) -> Threads | None:
        """Return the newest numbers, None before the first; `children`: processes of the rank's own."""
        self.due = True
        if self._read is None:
            return None
        within, between, allowed = self._read
        cores, on = float(len(allowed)), ", ".join(spans(allowed))
        # A control group that cannot be read sets no limit that is known.
        with contextlib.suppress(OSError, ValueError):
            quota = facts.quota(group := facts.folder("cpu"))
            if quota is not None and quota < cores:
                cores, on = quota, f"{on} {group}"
        # The property of a class of the script's is its code.
        pins = sum(_PINS in str(vars(thread).get("_name")) for thread in threading.enumerate())
        return Threads(within, between, cores, children, pins, on[-100:])
