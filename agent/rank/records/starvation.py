"""Time in which the training thread was runnable but had no core, by a counter of the kernel.

Without it a rank on a crowded core looks like one that has more work.  Linux
counts it for each thread; elsewhere it is not known.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from ddptop.agent.wire import Step


class Starvation:
    """Divides the kernel's count since the last batch of records among the records of the next one."""

    def __init__(self, counters: Path | None = None) -> None:
        self._thread = threading.main_thread()
        self._counters = _of(self._thread) if counters is None else counters
        self._last: int | None = None
        self._begun = False

    def follow(self, ident: int | None) -> None:
        """Follow the training thread where it has become another one."""
        if ident != self._thread.ident:
            found = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
            if found is not None:
                self._thread, self._counters, self._last = found, _of(found), None

    def stamp(self, steps: list[Step]) -> list[Step]:
        """Return the records with their shares of the count, in proportion to their wall time.

        Steps that were only counted have a share as well, which is told by none.
        """
        now = self._read()
        if not steps:
            # Time before the first step belongs to none.
            if not self._begun:
                self._last = now
            return steps
        self._begun = True
        before, self._last = self._last, now
        wall = sum(step.wall_ns + step.counted_ns for step in steps)
        if now is None or before is None or wall <= 0:
            return steps
        return [
            msgspec.structs.replace(step, starved_ns=min(step.wall_ns, (now - before) * step.wall_ns // wall))
            for step in steps
        ]

    def _read(self) -> int | None:
        try:
            # The numbers are the ns on a core, the ns waiting for one, and the number of time slices.
            return int(self._counters.read_bytes().split()[1])
        except (OSError, IndexError, ValueError):
            return None


def _of(thread: threading.Thread) -> Path:
    return Path(f"/proc/self/task/{thread.native_id}/schedstat")
