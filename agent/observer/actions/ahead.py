"""Asks all ranks of a group for something at the same steps, a little ahead of the furthest; none is held.

Where a rank has passed the first of these steps before it was asked, other ones further ahead are chosen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final, Generic, TypeVar

from ddptop.agent import wire
from ddptop.agent.observer.actions.controller import FARTHEST, PATIENCE_S
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.observer.actions.wait import Wait
from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire.refusals import Refused

AHEAD: Final = (2, 16, 128, 1024)
"""Steps by which the chosen boundary is ahead of the furthest rank, at each attempt."""
_PENDING: Final = wire.Reply(0, False, pending=True)
"""In place of a rank that has not answered yet."""

_Found = TypeVar("_Found")


class Ahead(ABC, Generic[_Found]):
    """One question to all ranks."""

    paused: ClassVar[str]
    """The refusal of a run that is paused."""
    apart: ClassVar[str]
    """The end of the refusal of ranks that count their steps differently."""
    fast: ClassVar[str]
    """The refusal of a run that has always passed the step."""
    silent_s: ClassVar[float] = 0.0
    """Seconds for which a rank may answer nothing."""
    steps = 0
    """Steps behind the boundary that a rank has to make before it can answer."""

    @abstractmethod
    def command(self, boundary: int) -> wire.Command:
        """Return the question, which a rank has to hear before it has made the step of this number."""

    @abstractmethod
    def found(self, reply: wire.Reply) -> _Found | None:
        """Return the answer in a reply."""

    @abstractmethod
    def waiting(self, boundary: int, behind: Mapping[int, int]) -> str:
        """Return the line on ranks that are waited for, each with the steps that it has made."""

    def gather(self, ranks: PolledRanks, wait: Wait, patience_s: float = PATIENCE_S) -> tuple[int, dict[int, _Found]]:
        """Return the boundary that was chosen, and the answer of each rank.

        Args:
            ranks: those that are asked.
            wait: where the question says what it waits for, and is cancelled.
            patience_s: seconds without a step of a rank that is waited for after which it is given up.

        Raises:
            Refused: an answer cannot be had, and why.
            Cancelled: the wait was cancelled.
            Hung: the run hangs.
        """
        for ahead in AHEAD:
            standing = ranks.standing()
            if any(reply.done for reply in standing.values()):
                raise Refused(self.paused)
            steps = [reply.step or 0 for reply in standing.values()]
            if max(steps) - min(steps) > FARTHEST:
                raise Refused(f"the ranks do not share a step count, so {self.apart}")
            boundary = max(steps) + ahead
            found = self._at(boundary, ranks, wait, patience_s)
            if found is not None:
                return boundary, found
        raise Refused(self.fast)

    def _at(self, boundary: int, ranks: PolledRanks, wait: Wait, patience_s: float) -> dict[int, _Found] | None:
        """Return the answers of all ranks, None where one of them had passed the boundary before it was asked."""
        command, last, heard_at = self.command(boundary), boundary + self.steps, wait.clock()
        replies: dict[int, wire.Reply] = {}
        for _ in wait.rounds():
            present = ranks.gather(command)
            if len(present) == len(ranks.ranks):
                heard_at = wait.clock()
            elif wait.clock() - heard_at >= self.silent_s:
                ranks.check_heard(present)
            replies = {rank: present.get(rank) or replies.get(rank, _PENDING) for rank in ranks.ranks}
            answers = {rank: self.found(reply) for rank, reply in replies.items()}
            found = {rank: answer for rank, answer in answers.items() if answer is not None}
            if len(found) == len(replies):
                return found
            for rank, reply in replies.items():
                if not reply.done and not reply.pending:
                    if reply.step is None:
                        raise Refused(f"rank {rank}: {reply.text}")
                    return None
            behind = {rank: min(reply.step or 0, last) for rank, reply in replies.items() if rank not in found}
            progress = sum(behind.values()) + last * len(found) + len(found)
            if wait.stuck_s(progress) > patience_s:
                raise Refused(
                    f"{ranks_in_spans(behind)} made no step within {patience_s:.0f} s; `ddptop stacks` shows why"
                )
            wait.tell(self.waiting(boundary, behind))
        return None
