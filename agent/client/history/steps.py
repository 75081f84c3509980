"""The newest steps of the ranks in sight as these have recorded them, compared with each other.

Those around the one that is shown are asked for, so that a key finds the next one there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.client.history.asked import ALL_RANKS, FAR, Asked, Sight
from ddptop.agent.record.history.question import Question

EDGE_S: Final = 0.25
"""Seconds between two questions about the steps that have come since."""
AROUND: Final = 10
"""Steps before and behind the one that is shown."""


class Whole(Sight):
    """Whole steps of some ranks."""

    kind = "whole"

    def __init__(self, asked: Asked, ranks: tuple[int, ...], around: int) -> None:
        """Read nothing yet, and hold so many steps before and behind the one that is read."""
        self._asked = asked
        self._ranks = ranks
        self._around = around
        self._kept = wire.KeptSteps(0, complete=False)
        self._held: dict[int, dict[int, wire.AlignedStep]] = {}
        """By number and rank; empty for a step of which nothing was answered."""
        self._shown: int | None = None
        """The step that is read; None: the newest."""

    def numbers(self) -> Sequence[int]:
        """Return the steps that all the ranks have made, rising; where there is none, those of any of them."""
        self.read_at = self._asked.clock()
        self._asked.ask_source()
        return self._kept.numbers

    def step(self, number: int) -> Mapping[int, wire.AlignedStep]:
        """Return one step by rank; empty as long as it is not there."""
        self._shown = number
        if number not in self._held:
            self._asked.ask_source()
        return self._held.get(number, {})

    def of(self, rank: int) -> list[wire.AlignedStep]:
        """Return all that is held of a rank, oldest first."""
        return [steps[rank] for _, steps in sorted(self._held.items()) if rank in steps]

    @property
    def is_whole(self) -> bool:
        """False while a first answer, or the step that is shown, is awaited."""
        is_there = self._shown is None or self._shown in self._held or self._shown not in self._kept.numbers
        return self._kept.complete and is_there

    def question(self, now: float) -> Question | None:
        """Return the question for the steps around the one that is shown, or for those that have come since."""
        numbers = self._kept.numbers
        at = len(numbers) - 1 if self._shown is None else bisect_left(numbers, self._shown)
        missing = [each for each in numbers[max(0, at - self._around) :][: 2 * self._around] if each not in self._held]
        if missing:
            # That one first, and those before it.
            missing = [each for each in missing if each <= (self._shown or FAR)] or missing
            return wire.WholeSteps(0, self._ranks, missing[0], missing[-1], min(len(missing), wire.MOST_WHOLE))
        if (self._asked.has_ended and self._kept.complete) or now - self.asked_at < EDGE_S:
            return None
        newest = numbers[-1] if numbers else 0
        if len(self._held.get(newest, ())) in (0, len(self._ranks)):
            newest += 1
        follows = at + self._around >= len(numbers) - 1
        return wire.WholeSteps(0, self._ranks, newest, FAR if follows else 0, min(self._around + 1, wire.MOST_WHOLE))

    def take(self, query: Question, answer: list[wire.HistoryAnswer]) -> None:
        """Take in the steps of an answer."""
        before, kept = self._kept, answer[0]
        if not isinstance(query, wire.WholeSteps) or not isinstance(kept, wire.KeptSteps):
            self._kept = msgspec.structs.replace(before, complete=True)
            return
        self._kept = kept
        is_other = (kept.generation, kept.compared) != (before.generation, before.compared)
        if is_other or max(kept.numbers, default=0) < max(before.numbers, default=0):
            self._held.clear()
        found: dict[int, dict[int, wire.AlignedStep]] = {}
        for each in (step for part in answer if isinstance(part, wire.AlignedSteps) for step in part.steps):
            found.setdefault(each.step.step, {})[each.rank] = each
        self._held |= found
        # Of an answer that is too large the oldest steps are left out, and are asked for again.
        oldest = max(query.first, min(found, default=0))
        empty: dict[int, dict[int, wire.AlignedStep]] = {
            number: {} for number in kept.numbers if oldest <= number <= query.last
        }
        numbers = frozenset(kept.numbers)
        self._held = {number: steps for number, steps in (empty | self._held).items() if number in numbers}

    def forget(self) -> None:
        """Ask again."""
        self._kept = wire.KeptSteps(0, complete=False)
        self._held.clear()


class WholeSteps:
    """The newest whole steps, for the views."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def numbers(self, ranks: Collection[int]) -> Sequence[int]:
        """Return the steps that all of some ranks have made, rising; where there is none, those of any of them.

        Of a small group that is all ranks.
        """
        return self._together(ranks).numbers()

    def step(self, ranks: Collection[int], number: int) -> Mapping[int, wire.AlignedStep]:
        """Return one step of these ranks, or of all, by rank and compared; empty as long as it is not there."""
        return self._together(ranks).step(number)

    def of(self, rank: int) -> list[wire.AlignedStep]:
        """Return the newest steps of a rank, oldest first."""
        whole = self._of((rank,), wire.MOST_WHOLE)
        whole.numbers()
        return whole.of(rank)

    @property
    def complete(self) -> bool:
        """False while a first answer about what is in sight is awaited."""
        return self._asked.is_answered(Whole.kind)

    def _together(self, ranks: Collection[int]) -> Whole:
        return self._of(range(self._asked.world) if self._asked.world <= ALL_RANKS else ranks, AROUND)

    def _of(self, ranks: Collection[int], around: int) -> Whole:
        whose = tuple(sorted(ranks))
        return self._asked.look(("whole", around, whose), lambda: Whole(self._asked, whose, around))
