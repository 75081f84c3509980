"""The records of a few ranks of a large group, asked for because one of them may be slow. Pure and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddptop.agent.observer.judge.evidence.blocks import Evidence
from ddptop.agent.observer.judge.evidence.join import StepJoin
from ddptop.agent.wire import Step

MOST_SUSPECTS: Final = 8
LEAST_ORDINARY: Final = 3
"""Ranks that a suspect is compared with, at least."""


class Detail:
    """The records of suspects and of ordinary ranks."""

    def __init__(self) -> None:
        self.ranks: frozenset[int] = frozenset()
        """The ranks of which records would decide."""
        self._suspects: frozenset[int] = frozenset()
        self.places: dict[int, int] = {}
        """By rank, its column in the evidence."""
        self.evidence = Evidence(0)
        self._join = StepJoin(0)

    def ask(self, suspects: Sequence[int], usual: Sequence[int]) -> None:
        """Ask for these suspects, and for as many of these ordinary ranks; nothing changes while the suspects stay."""
        if frozenset(suspects) == self._suspects:
            return
        self._suspects = frozenset(suspects)
        ordinary = [rank for rank in usual if rank not in self._suspects][: max(LEAST_ORDINARY, len(suspects))]
        self.ranks = self._suspects | frozenset(ordinary) if suspects else frozenset()
        self.places = {rank: place for place, rank in enumerate(sorted(self.ranks))}
        self.evidence = Evidence(len(self.ranks))
        self._join = StepJoin(len(self.ranks))

    def take(self, rank: int, step: Step) -> None:
        """Take in a record; in order within each rank."""
        place = self.places.get(rank)
        together = None if place is None else self._join.take(place, step)
        if together is not None:
            self.evidence.take(together)
