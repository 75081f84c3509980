"""The causes of memory that grows: the rank that a verdict names takes two censuses of its objects, once for each.

Where all ranks grow, one of them is asked; of a healthy run none ever is.  Over few steps first, as that costs least;
over many where those show nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.judge.growth import Cause, cause_of
from ddptop.agent.observer.judge.intervals import Accusation, accusation_of
from ddptop.agent.observer.judge.kinds.memory_growth import KIND
from ddptop.agent.observer.service.forwarding import Forwarding

STEPS: Final = (10, 100)
"""Steps between the two censuses, at each attempt."""
PATIENCE_S: Final = 600.0
"""Seconds after which a rank that has not taken both is not asked any more."""
_REQUESTER: Final = b"\0growth %d"


@dataclass
class _Question:
    verdict: wire.Verdict
    attempt: int
    give_up: float
    found: wire.MemoryUse | None = None
    is_refused: bool = False


class Growths:
    """Asks for the censuses, one verdict after the other; for use from one thread."""

    def __init__(self, forwarding: Forwarding, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask nobody yet."""
        self._forwarding = forwarding
        self._clock = clock
        self._question: _Question | None = None
        self._answered: dict[int, Cause | None] = {}
        """By number of the verdict, its cause; None: none was found."""

    def turn(self, verdicts: Sequence[wire.Verdict]) -> Mapping[Accusation, Cause]:
        """Ask where that is due, once a second; return what is known of the verdicts of this moment."""
        present = {verdict.number: verdict for verdict in verdicts if verdict.kind == KIND}
        self._answered = {number: cause for number, cause in self._answered.items() if number in present}
        if (question := self._question) is not None:
            self._question = self._after(question, present)
        if self._question is None:
            self._question = next((found for each in present.values() if (found := self._begun(each))), None)
        if (question := self._question) is not None:
            number = question.verdict.number
            command = wire.Memory(0, f"growth {number} {question.attempt}", 0, 0, STEPS[question.attempt])
            rank = question.verdict.rank or 0
            self._forwarding.forward(_REQUESTER % number, rank, command, self._take)
        return {accusation_of(present[number]): cause for number, cause in self._answered.items() if cause is not None}

    def _after(self, question: _Question, present: Mapping[int, wire.Verdict]) -> _Question | None:
        """Return the question that goes on, or the next attempt; None where there is nothing more to ask."""
        number = question.verdict.number
        if number not in present:
            return None
        if question.is_refused or self._clock() > question.give_up:
            self._answered[number] = None
            return None
        if question.found is None:
            return question
        cause = cause_of(question.found)
        if cause is None and question.attempt + 1 < len(STEPS):
            return _Question(question.verdict, question.attempt + 1, self._clock() + PATIENCE_S)
        self._answered[number] = cause
        return None

    def _begun(self, verdict: wire.Verdict) -> _Question | None:
        if verdict.number in self._answered:
            return None
        if verdict.cause:
            # An observer before this one has found it.
            self._answered[verdict.number] = Cause(verdict.cause, verdict.line)
            return None
        return _Question(verdict, 0, self._clock() + PATIENCE_S)

    def _take(self, requester: bytes, rank: int, reply: wire.Reply) -> None:
        question = self._question
        if question is None or requester != _REQUESTER % question.verdict.number:
            return
        question.found = reply.memory
        # One that does not answer has ended, or is asked again.
        question.is_refused = reply.memory is None and not reply.pending and not reply.refusal
