"""A judge of single records, which are joined to whole steps before it, as the model of a run does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddptop.agent import wire
from ddptop.agent.observer.judge import judge
from ddptop.agent.observer.judge.join import StepJoin


class Judge(judge.Judge):
    """Takes in the records of one rank after the other."""

    def __init__(self, world: int, **more: Any) -> None:
        super().__init__(world, **more)
        self.join = StepJoin(world)
        self._newest: dict[int, int] = {}

    def steps(self, rank: int, records: Iterable[wire.Step], generation: int) -> None:
        """Take in records of a rank, in order."""
        if self._world > wire.EACH_RECORD:
            self.records(wire.Steps(rank, tuple(records), generation))
            return
        for record in records if generation == self.generation and 0 <= rank < self._world else ():
            if record.seq > self._newest.get(rank, -1):
                self._newest[rank] = record.seq
                if (together := self.join.take(rank, record)) is not None:
                    self.step(together)

    def take(self, message: wire.Telemetry) -> None:
        """Take in a message of a rank."""
        match message:
            case wire.Steps(rank, steps, generation):
                self.steps(rank, steps, generation)
            case wire.Summary():
                self.summary(message)
            case wire.Beat():
                self.beat(message)
            case wire.Checksums():
                self.checksums(message)
            case wire.Sampled():
                self.sampled(message)

    def ended(self) -> list[wire.Verdict]:
        """Return the verdicts that are over, each once."""
        return [verdict for verdict in self.changes() if verdict.until_at_ns is not None]

    def restart(self, generation: int) -> None:
        """Forget the ranks."""
        super().restart(generation)
        self.join, self._newest = StepJoin(self._world), {}
