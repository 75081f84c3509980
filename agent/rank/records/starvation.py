"""Time in which the training thread could have run but had no core: from the kernel, for free.

Without it a rank on a crowded core cannot be told from one that has more to do.  Linux
counts it for each thread; elsewhere it is not known.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from ddptop.agent.wire import Step


class Starvation:
    """Spreads what the kernel has counted since the last batch of records over the next one."""

    def __init__(self, counters: Path | None = None) -> None:
        own = Path(f"/proc/self/task/{threading.main_thread().native_id}/schedstat")
        self._counters = own if counters is None else counters
        self._last: int | None = None
        self._begun = False

    def stamp(self, steps: list[Step]) -> list[Step]:
        """Return the records with their share, by the time they took."""
        now = self._read()
        if not steps:
            # What was before the first step belongs to none.
            if not self._begun:
                self._last = now
            return steps
        self._begun = True
        before, self._last = self._last, now
        wall = sum(step.wall_ns for step in steps)
        if now is None or before is None or wall <= 0:
            return steps
        return [
            msgspec.structs.replace(step, starved_ns=min(step.wall_ns, (now - before) * step.wall_ns // wall))
            for step in steps
        ]

    def _read(self) -> int | None:
        try:
            # Three numbers: on a core, waiting for one, how often; the middle one, in ns.
            return int(self._counters.read_bytes().split()[1])
        except (OSError, IndexError, ValueError):
            return None
