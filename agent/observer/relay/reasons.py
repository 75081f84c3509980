"""The reasons for verdicts: ranks are asked, and processes looked at, once somebody is accused.

Each verdict is asked about once, and once more where no reason was found.  Of a healthy run no rank is ever asked.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from ddptop.agent import wire
from ddptop.agent.observer.inspection.rivals import Rivals
from ddptop.agent.observer.judge.growth import Cause, cause_of
from ddptop.agent.observer.judge.intervals import Accusation, Reason, accusation_of
from ddptop.agent.observer.judge.kinds.memory_growth import KIND as GROWTH
from ddptop.agent.observer.judge.lines import Line, line_of
from ddptop.agent.observer.service.forwarding import Forwarding
from ddptop.agent.run.rundir import Member

STEPS: Final = (10, 100)
"""Steps between the two censuses of a rank: few at first, as these cost least, and many where they show nothing."""
_MOST_MS: Final = 1_000
"""Milliseconds for which such a rank is held: nobody has asked for it."""
_BACKWARD: Final = "backward"
"""The phase that torch executes, so that its modules are looked for."""
_REQUESTER: Final = b"\0reasons"
"""Stands for the observer among those who ask ranks; names of onlookers do not look like it."""
_ASKED: Final = 40
"""Bits of a token above which stands how often was asked before; below them is the number of the verdict."""


class Reasons:
    """All that is looked for; for use from one thread."""

    def __init__(self, forwarding: Forwarding) -> None:
        """Ask nobody yet."""
        self._rivals = Rivals()
        self._lines = Lines(forwarding)
        self._growths = Growths(forwarding)

    def meet(self, member: Member) -> None:
        """Take note of a rank of this host."""
        self._rivals.meet(member)

    def turn(self, verdicts: Sequence[wire.Verdict], ordinary: Sequence[int]) -> Mapping[Accusation, Reason]:
        """Look where that is due, once a second; return the known reasons for the verdicts of this moment.

        Args:
            verdicts: of this moment.
            ordinary: ranks that are neither slow nor fast.
        """
        return {
            **self._rivals.turn(verdicts),
            **self._lines.turn(verdicts, ordinary),
            **self._growths.turn(verdicts, ordinary),
        }


@dataclass
class _Question:
    number: int
    """Of the verdict."""
    ranks: Sequence[int]
    command: wire.Command
    give_up: float
    replies: dict[int, wire.Reply] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        return len(self.replies) == len(self.ranks)

    def take(self, _: bytes, rank: int, reply: wire.Reply) -> None:
        """Take the reply of a rank; one that cannot answer yet, or is not heard, is asked again."""
        if reply.done or not (reply.pending or reply.refusal):
            self.replies[rank] = reply


@dataclass
class _Answer:
    reason: Reason | None
    due: float
    """When the next question is."""
    asked: int = 0
    """Questions that have ended."""


class Questions(ABC):
    """Questions to ranks about verdicts of some kinds, one verdict after the other."""

    kinds: ClassVar[Collection[str]]
    """Of verdicts that have such a reason."""
    patience_s: ClassVar[float]
    """Seconds after which ranks that have not answered are given up: those of a paused run make no steps."""
    again_s: ClassVar[float]
    """Seconds after which a verdict that still stands is asked about once more where no reason was found."""

    def __init__(self, forwarding: Forwarding, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask nobody yet."""
        self._forwarding = forwarding
        self._clock = clock
        self._question: _Question | None = None
        self._answers: dict[int, _Answer] = {}
        """By number of the verdict."""

    def concerns(self, verdict: wire.Verdict) -> bool:
        """Say whether a verdict has such a reason."""
        return verdict.kind in self.kinds

    @abstractmethod
    def known(self, verdict: wire.Verdict) -> Reason | None:
        """Return the reason that an observer before this one has found."""

    @abstractmethod
    def question(
        self, verdict: wire.Verdict, asked: int, ordinary: Sequence[int]
    ) -> tuple[Sequence[int], wire.Command] | None:
        """Return ranks and the command to them, None where none can be asked; `asked` so often before."""

    @abstractmethod
    def reason(self, verdict: wire.Verdict, replies: Sequence[wire.Reply]) -> Reason | None:
        """Return the reason by the replies of these ranks, in their order; None where they do not show it."""

    def turn(self, verdicts: Iterable[wire.Verdict], ordinary: Sequence[int]) -> Mapping[Accusation, Reason]:
        """Ask where that is due, once a second; return the known reasons for the verdicts of this moment."""
        present = {verdict.number: verdict for verdict in verdicts if self.concerns(verdict)}
        self._answers = {number: self._answers.get(number) or self._begun(each) for number, each in present.items()}
        if (question := self._question) is not None:
            verdict = present.get(question.number)
            is_over = question.is_answered or self._clock() > question.give_up
            if verdict is not None and is_over:
                self._end(question, verdict)
            if verdict is None or is_over:
                self._question = None
        question = self._question = self._question or self._next(present.values(), ordinary)
        if question is not None:
            for rank in sorted({*question.ranks} - question.replies.keys()):
                self._forwarding.forward(_REQUESTER, rank, question.command, question.take)
        found = {number: answer.reason for number, answer in self._answers.items()}
        return {accusation_of(present[number]): reason for number, reason in found.items() if reason is not None}

    def _begun(self, verdict: wire.Verdict) -> _Answer:
        known = self.known(verdict)
        return _Answer(known, self._clock() if known is None else math.inf)

    def _end(self, question: _Question, verdict: wire.Verdict) -> None:
        answer = self._answers[verdict.number]
        answer.asked, answer.due = answer.asked + 1, math.inf
        if question.is_answered:
            answer.reason = self.reason(verdict, [question.replies[rank] for rank in question.ranks])
        if answer.reason is None and answer.asked == 1:
            answer.due = self._clock() + self.again_s

    def _next(self, verdicts: Iterable[wire.Verdict], ordinary: Sequence[int]) -> _Question | None:
        for verdict in verdicts:
            answer = self._answers[verdict.number]
            if answer.due <= self._clock() and (found := self.question(verdict, answer.asked, ordinary)) is not None:
                return _Question(verdict.number, *found, self._clock() + self.patience_s)
        return None


class Lines(Questions):
    """The lines of code: the accused rank and an ordinary one look at their training threads for some seconds.

    Of a slow backward pass, which torch executes, they look at its modules, too.
    """

    kinds = ("slow_rank", "input_bound")
    patience_s = 75.0
    again_s = 60.0

    def concerns(self, verdict: wire.Verdict) -> bool:
        """Leave out a verdict by looks from outside: it has its line, and its ranks have no agent to be asked."""
        return verdict.kind in self.kinds and verdict.cost_ms is not None

    def known(self, verdict: wire.Verdict) -> Line | None:
        """Return the line of the verdict."""
        return Line(verdict.line, verdict.line_share or 0.0) if verdict.line else None

    def question(
        self, verdict: wire.Verdict, asked: int, ordinary: Sequence[int]
    ) -> tuple[Sequence[int], wire.Command] | None:
        """Ask the accused rank and another one, that one alone where none is accused."""
        peer = next((rank for rank in ordinary if rank != verdict.rank), None)
        if peer is None:
            return None
        command = wire.Look(0, verdict.number | asked << _ASKED, modules=verdict.phase == _BACKWARD)
        return (peer,) if verdict.rank is None else (verdict.rank, peer), command

    def reason(self, verdict: wire.Verdict, replies: Sequence[wire.Reply]) -> Line | None:
        """Return the line, None where the looks have not shown the cost of the verdict."""
        culprit, *others = looks = [reply.looks for reply in replies]
        if not all(looks):
            return None
        return line_of(culprit, others[0] if others else (), verdict.phase, verdict.cost_ms or 0.0)


class Growths(Questions):
    """The causes of memory that grows: the rank takes two censuses of its objects; where all grow, one of them does."""

    kinds = (GROWTH,)
    patience_s = 600.0
    again_s = 0.0

    def known(self, verdict: wire.Verdict) -> Cause | None:
        """Return the cause of the verdict."""
        return Cause(verdict.cause, verdict.line) if verdict.cause else None

    def question(
        self, verdict: wire.Verdict, asked: int, ordinary: Sequence[int]
    ) -> tuple[Sequence[int], wire.Command]:
        """Ask for censuses that nobody keeps, from the next step on."""
        token = f"growth {verdict.number} {asked}"
        return (verdict.rank or 0,), wire.Memory(0, token, 0, 0, STEPS[asked], most_ms=_MOST_MS)

    def reason(self, verdict: wire.Verdict, replies: Sequence[wire.Reply]) -> Cause | None:
        """Return the cause, None where nothing grew or the rank could not look."""
        return next((cause_of(reply.memory) for reply in replies if reply.memory is not None), None)
