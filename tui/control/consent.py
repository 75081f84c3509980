"""What a kill or a signal is meant for, and whether it may still begin."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ddptop.agent.run.identity import Process

Aim = int | Process | None
"""What a kill or a signal is meant for: a rank by its number, one process by its identity, or the whole run."""


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process of the run, for the list that one is chosen from. Text in here is clean."""

    process: Process
    role: str
    """`torchrun`, `rank`, `data worker` or `helper`."""
    rank: int | None
    """The rank that it is or works for."""
    status: str
    age_s: float | None
    cpu_percent: float | None
    """Since it began; 100 is one core."""
    memory_bytes: int | None
    command: str


class Consent:
    """Whether a kill or a signal may still begin: until then it can be cancelled. For use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.cancelled = False
        self.begun = False

    def begin(self) -> bool:
        """Begin, unless it was cancelled; return whether it may."""
        with self._lock:
            self.begun = not self.cancelled
            return self.begun

    def overrule(self) -> bool:
        """Take note that another process has begun with it; return whether it had not been cancelled."""
        with self._lock:
            self.begun, cancelled, self.cancelled = True, self.cancelled, False
            return not cancelled

    def cancel(self) -> bool:
        """Cancel, unless it has begun; return whether that was possible."""
        with self._lock:
            self.cancelled = not self.begun
            return self.cancelled
