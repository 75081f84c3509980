"""The ranks of an action: all are asked at once, and those that end meanwhile drop out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ddptop.agent import wire
from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire import Command, Reply
from ddptop.agent.wire.refusals import Refused, Unheard

ANSWER_S: Final = 2.0
"""A rank's agent answers within milliseconds, also while its training thread is busy."""

INSIST_S: Final = 6.0
"""Seconds in which every rank has to acknowledge what some of them may have done already."""


class AllEnded(Refused):
    """No rank is left to be asked."""


class PolledRanks(ABC):
    """The ranks of a run that have not ended; a subclass reaches them."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = list(ranks)
        self.hosts: Mapping[int, str] = {}
        """By rank, the name of its host, where that is known."""

    @abstractmethod
    def send(self, command: Command, ranks: Collection[int], timeout_s: float) -> Mapping[int, Reply]:
        """Send these ranks a command and return the replies that came in time."""

    @abstractmethod
    def departed(self) -> set[int]:
        """Return the ranks whose script has ended or whose process is gone."""

    @abstractmethod
    def unheard(self, ranks: Collection[int]) -> str:
        """Say that nothing is heard of the hosts of these ranks; empty where that is not so of all of them."""

    def standing(self) -> Mapping[int, Reply]:
        """Return the state of each rank; raises `Refused` where one does not answer."""
        return self.ask(wire.Query(0))

    def ask(self, command: Command) -> Mapping[int, Reply]:
        """Ask all ranks and return their replies, refusals included.

        Raises:
            Refused: a rank that has not ended does not answer.
        """
        replies = self.gather(command)
        self.check_heard(replies)
        return replies

    def demand(self, command: Command) -> Mapping[int, Reply]:
        """Ask all ranks and return their replies; raises `Refused` where one refuses or does not answer."""
        replies = self.gather(command)
        self.check(replies)
        return replies

    def insist(self, command: Command) -> Mapping[int, Reply]:
        """Ask all ranks, those again that do not answer, or refuse; return their replies, the last refusals included.

        Raises:
            Unheard: a rank that has not ended does not answer within `INSIST_S`.
        """
        replies = dict(self.gather(command))
        for _ in range(int(INSIST_S / ANSWER_S) - 1):
            # A refusal may be one of a command that came too late.
            left = [rank for rank in self.ranks if rank not in replies or not replies[rank].done]
            if not left:
                break
            replies |= self.gather(command, left)
        self.check_heard(replies)
        return replies

    def gather(self, command: Command, ranks: Collection[int] | None = None) -> Mapping[int, Reply]:
        """Ask these ranks, or all, and return the replies that came in time; ranks that have ended since drop out."""
        asked = self.ranks if ranks is None else ranks
        replies = self.send(command, asked, ANSWER_S)
        if len(replies) < len(asked):
            gone = self.departed()
            self.ranks = [rank for rank in self.ranks if rank in replies or rank not in gone]
        if not self.ranks:
            raise AllEnded("every rank has ended meanwhile")
        return replies

    def check(self, replies: Mapping[int, Reply]) -> None:
        """Raise `Refused` where a rank has not answered, or refused."""
        self.check_heard(replies)
        for rank, reply in replies.items():
            if not reply.done:
                known = reply.text.startswith("already paused")
                raise Refused(reply.text if known else f"rank {rank}: {reply.text}")

    def release(self, token: str, step: int, lease_ms: int) -> None:
        """Open the gates that are held under the lease of this token, which allowed at most `step`.

        A rank that refuses to renew the lease is free.
        """
        renewed = self.send(wire.Commit(0, token, step, lease_ms), self.ranks, ANSWER_S)
        ranks = [rank for rank, reply in renewed.items() if reply.done]
        if ranks:
            self.send(wire.Resume(0), ranks, ANSWER_S)

    def let_go(self) -> None:
        """Open all gates, whoever has closed them; a rank that does not answer is not waited for."""
        self.send(wire.Resume(0), self.ranks, ANSWER_S)

    def remaining(self) -> list[int]:
        """Return the ranks whose script has not ended."""
        departed = self.departed()
        return [rank for rank in self.ranks if rank not in departed]

    def check_heard(self, replies: Mapping[int, Reply]) -> None:
        """Raise `Unheard` where a rank has not answered."""
        silent = [rank for rank in self.ranks if rank not in replies]
        if silent:
            if hosts := self.unheard(silent):
                raise Unheard(f"{hosts}; an action is for all ranks or none: try again when it is heard")
            said = f"{ranks_in_spans(silent)} did not answer within {ANSWER_S:.0f} s"
            raise Unheard(f"{said}; `ddptop status` shows the state of each rank")
