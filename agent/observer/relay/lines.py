"""The lines of code behind verdicts: the accused rank and an ordinary one are asked to look at their training threads.

Both look for some seconds, once for each verdict, and once more where the cost was not seen; of a slow backward pass,
which torch executes, at its modules, too.  Of a healthy run no rank is ever asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.judge.intervals import Accusation, accusation_of
from ddptop.agent.observer.judge.lines import Line, line_of
from ddptop.agent.observer.service.forwarding import Forwarding

KINDS: Final = ("slow_rank", "input_bound")
"""Kinds of verdicts that have a line of code for their reason."""
PATIENCE_S: Final = 75.0
"""Seconds after which ranks that have not looked are not asked any more: those of a paused run make no steps."""
AGAIN_S: Final = 60.0
"""Seconds after which a verdict that stands, and whose cost the looks did not show, is asked for once more."""
_BACKWARD: Final = "backward"
"""The phase that torch executes, so that its modules are looked for."""
_REQUESTER: Final = b"\0lines %d"
"""Stands for the question about a verdict among those who ask; names of onlookers do not look like it."""
_ASKED: Final = 40
"""Bits of a token above which stands how often was asked before; below them is the number of the verdict."""


@dataclass
class _Question:
    verdict: wire.Verdict
    ranks: tuple[int, ...]
    """The culprit, and the rank it is compared with, where there is one."""
    give_up: float
    token: int
    found: dict[int, tuple[wire.Looks, ...]] = field(default_factory=dict)


@dataclass
class _Answer:
    line: Line | None = None
    """None: the looks have not shown the cost of the verdict."""
    asked: int = 0
    """Questions that have ended."""
    due: float | None = None
    """When the next question is; None: there is none."""


class Lines:
    """Asks for the looks, one verdict after the other; for use from one thread."""

    def __init__(self, forwarding: Forwarding, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask nobody yet."""
        self._forwarding = forwarding
        self._clock = clock
        self._question: _Question | None = None
        self._answers: dict[int, _Answer] = {}
        """By number of the verdict."""

    def turn(self, verdicts: Sequence[wire.Verdict], ordinary: Sequence[int]) -> Mapping[Accusation, Line]:
        """Ask where that is due, once a second; return what is known of the verdicts of this moment.

        Args:
            verdicts: of this moment.
            ordinary: ranks that are neither slow nor fast.
        """
        present = {verdict.number: verdict for verdict in verdicts}
        self._answers = {number: answer for number, answer in self._answers.items() if number in present}
        question = self._question
        if question is not None and question.verdict.number not in present:
            question = self._question = None
        if question is not None and (len(question.found) == len(question.ranks) or self._clock() > question.give_up):
            question.verdict = present[question.verdict.number]
            self._end(question)
            question = self._question = None
        if question is None:
            question = self._question = self._next(verdicts, ordinary)
        if question is not None:
            command = wire.Look(0, question.token, modules=question.verdict.phase == _BACKWARD)
            for rank in sorted({*question.ranks} - question.found.keys()):
                self._forwarding.forward(_REQUESTER % question.token, rank, command, self._take)
        found = {number: answer.line for number, answer in self._answers.items()}
        return {accusation_of(present[number]): line for number, line in found.items() if line is not None}

    def _end(self, question: _Question) -> None:
        """Take what a question has shown, and choose the next one about its verdict."""
        answer = self._answers.setdefault(question.verdict.number, _Answer())
        answer.asked, answer.due = answer.asked + 1, None
        answer.line = _compared(question) if len(question.found) == len(question.ranks) else None
        if answer.line is None and answer.asked == 1:
            answer.due = self._clock() + AGAIN_S

    def _next(self, verdicts: Sequence[wire.Verdict], ordinary: Sequence[int]) -> _Question | None:
        for verdict in verdicts:
            answer = self._answers.get(verdict.number, _Answer(due=self._clock()))
            if verdict.kind not in KINDS or answer.due is None or self._clock() < answer.due:
                continue
            if verdict.line and not answer.asked:
                # An observer before this one has found it.
                self._answers[verdict.number] = _Answer(Line(verdict.line, verdict.line_share or 0.0))
                continue
            peer = next((rank for rank in ordinary if rank != verdict.rank), None)
            if peer is not None:
                ranks = (peer,) if verdict.rank is None else (verdict.rank, peer)
                token = verdict.number | answer.asked << _ASKED
                return _Question(verdict, ranks, self._clock() + PATIENCE_S, token)
        return None

    def _take(self, requester: bytes, rank: int, reply: wire.Reply) -> None:
        question = self._question
        if question is not None and requester == _REQUESTER % question.token and reply.looks:
            question.found[rank] = reply.looks


def _compared(question: _Question) -> Line | None:
    culprit, *others = (question.found[rank] for rank in question.ranks)
    verdict = question.verdict
    return line_of(culprit, others[0] if others else (), verdict.phase, verdict.cost_ms or 0.0)
