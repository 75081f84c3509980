"""Ranks that train without ever communicating: as many trainings of their own as there are ranks.

Told only on evidence: every rank says that it has called no collective, and none may have communicated unseen.
"""

from __future__ import annotations

from typing import Final

from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.wire import Beat, Verdict

LEAST_STEPS: Final = 20
LEAST_NS: Final = 5_000_000_000
"""Every rank has trained for so many steps and so long before it is told."""
LEAST_STEPS_OF_A_GROUP: Final = 200
LEAST_NS_OF_A_GROUP: Final = 15_000_000_000
"""The same of ranks that have a process group: some trainings average their parameters only now and then."""


class Communication(Finder):
    """The ranks of a group that have communicated, and those that have not."""

    kinds = ("no_communication",)

    def __init__(self, world: int) -> None:
        super().__init__()
        self._world = world
        self._begun_ns: dict[int, int] = {}
        """By rank, the time of the first heartbeat with a step."""
        self._silent: set[int] = set()
        """Ranks that have told last that they have not communicated."""
        self._trained: set[int] = set()
        """Of these, the ones that have trained for long enough."""
        self._has_group = False
        self._communicates = False

    def take(self, beat: Beat) -> None:
        if self._communicates:
            return
        if beat.communicated:
            self._communicates, self.ceased_at_ns = True, beat.at_ns
            return
        if beat.communicated is None:
            self._silent.discard(beat.rank)
            self._trained.discard(beat.rank)
            return
        self._silent.add(beat.rank)
        if beat.backend is not None and not self._has_group:
            self._has_group = True
            self._trained.clear()
        if beat.step < 1:
            return
        begun = self._begun_ns.setdefault(beat.rank, beat.at_ns)
        steps, span = (LEAST_STEPS_OF_A_GROUP, LEAST_NS_OF_A_GROUP) if self._has_group else (LEAST_STEPS, LEAST_NS)
        if beat.step >= steps and beat.at_ns - begun >= span:
            self._trained.add(beat.rank)

    @property
    def is_absent(self) -> bool:
        """True where all ranks say that they have not communicated so far: none can hold another one back."""
        return self._world > 1 and not self._communicates and len(self._silent) == self._world

    def finding(self, now_ns: int) -> Verdict | None:
        """Return the finding, once every rank has trained for long enough; None for a group of one."""
        if not self.is_absent or len(self._trained) < self._world:
            return None
        advice = (
            "is the model wrapped in DistributedDataParallel?"
            if self._has_group
            else "wrap the model in DistributedDataParallel, or check the script that started them"
        )
        return Verdict(
            0,
            "no_communication",
            f"these ranks do not communicate: {self._world:,} trainings of their own? · {advice}",
            min(self._begun_ns.values()),
            urgent=True,
        )
