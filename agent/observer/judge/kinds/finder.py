"""What the judge asks of each of its finders: what is found at this moment, and when what was found before ceased."""

from __future__ import annotations

from typing import ClassVar

from ddptop.agent.observer.judge.blocks import Evidence
from ddptop.agent.wire import Beat, Verdict


class Finder:
    """Looks for the faults of some kinds, and holds one finding at a time, or none."""

    kinds: ClassVar[tuple[str, ...]]
    """Those of its verdicts, each in `wire.VERDICT_KINDS`."""

    def __init__(self) -> None:
        self.found: Verdict | None = None
        self.ceased_at_ns: int | None = None
        """When what was found before ceased."""

    def take(self, beat: Beat) -> None:
        """Take in a heartbeat of a rank of the group."""

    def follow(self, evidence: Evidence) -> None:
        """Look at the newest blocks of steps."""

    def finding(self, now_ns: int) -> Verdict | None:
        """Return what is found at this moment."""
        return self.found
