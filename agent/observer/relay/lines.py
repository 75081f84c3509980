"""The lines of code behind verdicts: the accused rank and an ordinary one are asked to look at their training threads.

Both look for some seconds, once for each verdict; of a healthy run no rank is ever asked.
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
_REQUESTER: Final = b"\0lines %d"
"""Stands for the question about a verdict among those who ask; names of onlookers do not look like it."""


@dataclass
class _Question:
    verdict: wire.Verdict
    ranks: tuple[int, ...]
    """The culprit, and the rank it is compared with, where there is one."""
    give_up: float
    found: dict[int, tuple[wire.Looks, ...]] = field(default_factory=dict)


class Lines:
    """Asks for the looks, one verdict after the other; for use from one thread."""

    def __init__(self, forwarding: Forwarding, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask nobody yet."""
        self._forwarding = forwarding
        self._clock = clock
        self._question: _Question | None = None
        self._answered: dict[int, Line | None] = {}
        """By number of the verdict, what was found; None: nothing that fits it."""

    def turn(self, verdicts: Sequence[wire.Verdict], ordinary: Sequence[int]) -> Mapping[Accusation, Line]:
        """Ask where that is due, once a second; return what is known of the verdicts of this moment.

        Args:
            verdicts: of this moment.
            ordinary: ranks that are neither slow nor fast.
        """
        present = {verdict.number: verdict for verdict in verdicts}
        self._answered = {number: line for number, line in self._answered.items() if number in present}
        question = self._question
        if question is not None and (question.verdict.number not in present or self._clock() > question.give_up):
            self._answered[question.verdict.number] = None
            question = self._question = None
        if question is not None and len(question.found) == len(question.ranks):
            question.verdict = present[question.verdict.number]
            self._answered[question.verdict.number] = _compared(question)
            question = self._question = None
        if question is None:
            question = self._question = self._next(verdicts, ordinary)
        if question is not None:
            command = wire.Look(0, question.verdict.number)
            for rank in sorted({*question.ranks} - question.found.keys()):
                self._forwarding.forward(_REQUESTER % question.verdict.number, rank, command, self._take)
        return {accusation_of(present[number]): line for number, line in self._answered.items() if line is not None}

    def _next(self, verdicts: Sequence[wire.Verdict], ordinary: Sequence[int]) -> _Question | None:
        for verdict in verdicts:
            if verdict.kind not in KINDS or verdict.number in self._answered:
                continue
            if verdict.line:
                # An observer before this one has found it.
                self._answered[verdict.number] = Line(verdict.line, verdict.line_share or 0.0)
                continue
            peer = next((rank for rank in ordinary if rank != verdict.rank), None)
            if peer is not None:
                ranks = (peer,) if verdict.rank is None else (verdict.rank, peer)
                return _Question(verdict, ranks, self._clock() + PATIENCE_S)
        return None

    def _take(self, requester: bytes, rank: int, reply: wire.Reply) -> None:
        question = self._question
        if question is not None and requester == _REQUESTER % question.verdict.number and reply.looks:
            question.found[rank] = reply.looks


def _compared(question: _Question) -> Line | None:
    culprit, *others = (question.found[rank] for rank in question.ranks)
    verdict = question.verdict
    return line_of(culprit, others[0] if others else (), verdict.phase, verdict.cost_ms or 0.0)
