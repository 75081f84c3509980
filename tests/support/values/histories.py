"""The history that an observer keeps, and an onlooker that asks it, both in the process of the test."""

from __future__ import annotations

from ddptop.agent.observer.history.kept import Kept
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.wire import Beat, Step
from ddptop.tui.model.history.asked import EDGE_S, Asked
from ddptop.tui.model.history.history import History


class RecordedHistory(History):
    """A history whose questions are answered at once, from what the test lets the ranks tell."""

    def __init__(self, world: int) -> None:
        """Know of a run that has not done a step."""
        self._now = 0.0
        self.kept = Kept(world)
        """What the observer has."""
        super().__init__(world, Asked(world, self.kept, lambda: self._now))
        self.catch_up()

    def take(self, rank: int, step: Step) -> None:
        """Let a rank complete a step; views see its numbers after `catch_up`."""
        self.steps.take(rank, step)
        if self.kept.brief:
            digest = Digest(rank)
            digest.add(step)
            summary = digest.close()
            assert summary is not None
            self.kept.summary(summary)
        else:
            self.kept.steps(rank, (step,), 0)

    def take_memory(self, rank: int, at_ns: int, memory_bytes: int) -> None:
        """Let a rank tell of its memory."""
        self.kept.beat(Beat(rank, at_ns, "running", "", 0, None, 0, memory_bytes=memory_bytes))

    def catch_up(self) -> None:
        """Let so much time go by that the newest numbers are asked for, and take in the answers."""
        self._now += EDGE_S
        self.asked.ask_source()
