"""What diagnoses have in common: the same steps of several ranks, a little ahead of the furthest; none is held.

Where a rank has passed the first of these steps before it was asked, other ones further ahead are chosen.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

from ddptop.agent import wire
from ddptop.agent.observer.actions.action import NAP_S, Action, Diagnosed, Turns
from ddptop.agent.observer.actions.pause import FARTHEST, PATIENCE_S
from ddptop.agent.observer.actions.ranks import Ranks
from ddptop.agent.record import diagnoses
from ddptop.agent.text import ranks_in_spans, size
from ddptop.agent.wire.vocabulary.refusals import Refused

AHEAD: Final = (2, 16, 128, 1024)
"""Steps by which the chosen boundary is ahead of the furthest rank, at each attempt."""
MOST_RANKS: Final = 64
"""Ranks that are asked at most: nobody reads more at once."""
_PENDING: Final = wire.Reply(0, False, pending=True)
"""In place of a rank that has not answered yet."""

_Found = TypeVar("_Found")


class Ahead(ABC, Generic[_Found]):
    """One question to all ranks at the same steps."""

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

    def gather(self, action: Action) -> Turns[tuple[int, dict[int, _Found]]]:
        """Return the boundary that was chosen, and the answer of each rank of an action.

        Raises:
            Refused: an answer cannot be had, and why.
            Cancelled: the wait was cancelled.
            Hung: the run hangs.
        """
        standing = yield from action.ranks.standing()
        if any(beat.hold is not None and beat.hold.held for beat in standing.values()):
            raise Refused(self.paused)
        # What a rank answers is newer than its last sign of life.
        made = {rank: beat.step for rank, beat in standing.items()}
        for ahead in AHEAD:
            boundary = max(made.values()) + ahead
            found = yield from self._at(boundary, action, made)
            if found is not None:
                return boundary, found
        raise Refused(self.fast)

    def _at(self, boundary: int, action: Action, made: dict[int, int]) -> Turns[dict[int, _Found] | None]:
        """Return the answers of all ranks, None where one of them had passed the boundary before it was asked.

        `made` are the steps of each rank, which are renewed.
        """
        ranks, command, last, nap = action.ranks, self.command(boundary), boundary + self.steps, 0.002
        replies: dict[int, wire.Reply] = {}
        action.wait()
        heard_at = action.clock()
        while True:
            present = yield from ranks.ask(command)
            if len(present) == len(ranks.ranks):
                heard_at = action.clock()
            elif action.clock() - heard_at >= self.silent_s:
                ranks.check_heard(present)
            is_first = not replies
            replies = {rank: present.get(rank) or replies.get(rank, _PENDING) for rank in ranks.ranks}
            answers = {rank: self.found(reply) for rank, reply in replies.items()}
            found = {rank: answer for rank, answer in answers.items() if answer is not None}
            if len(found) == len(replies):
                return found
            made.update({rank: reply.step for rank, reply in present.items() if reply.step is not None})
            told = [reply.step for reply in present.values() if reply.step is not None]
            if is_first and told and max(told) - min(told) > FARTHEST:
                raise Refused(f"the ranks do not share a step count, so {self.apart}")
            for rank, reply in replies.items():
                if not reply.done and not reply.pending:
                    if reply.step is None:
                        raise Refused(f"rank {rank}: {reply.text}")
                    return None
            behind = {rank: min(reply.step or 0, last) for rank, reply in replies.items() if rank not in found}
            progress = sum(behind.values()) + last * len(found) + len(found)
            if action.stuck_s(progress) > PATIENCE_S:
                raise Refused(
                    f"{ranks_in_spans(behind)} made no step within {PATIENCE_S:.0f} s; `ddptop stacks` shows why"
                )
            action.tell(self.waiting(boundary, behind))
            yield nap
            nap = min(2 * nap, NAP_S)
            action.check_wait()


class OverSteps(Ahead[_Found]):
    """A diagnosis over some steps, which is kept: the ranks work on it behind the boundary."""

    silent_s = 30.0
    """While a rank writes or counts, no other thread of it may run."""

    def __init__(self, folder: Path, steps: int) -> None:
        """Ask for the diagnosis that is kept in this numbered folder, over so many steps."""
        self.folder = folder
        self.number = int(folder.name)
        self.steps = steps
        self.token = ""
        """Of the attempt that was made last."""

    def command(self, boundary: int) -> wire.Command:
        """Return the question for the steps behind this one."""
        self.token = os.urandom(8).hex()
        return self.over(boundary + 1)

    @abstractmethod
    def over(self, first: int) -> wire.Command:
        """Return the question for the steps from this one on."""

    @abstractmethod
    def cancelling(self) -> wire.Command:
        """Return the command after which no rank goes on with what was asked for last."""

    def whole(self, ranks: Ranks, work: Turns[Diagnosed]) -> Turns[Diagnosed]:
        """Leave nothing of the diagnosis where the work on it fails: no rank goes on, and its folder is removed."""
        try:
            return (yield from work)
        except Exception:
            if self.token:
                ranks.tell(self.cancelling())
            diagnoses.remove(self.folder)
            raise


def check_room(folder: Path, least: int) -> None:
    """Raise `Refused` where less than so many bytes are free at a folder."""
    if shutil.disk_usage(folder).free < least:
        raise Refused(f"no room: less than {size(least)} is free at {folder}")


def chosen(ranks: Ranks, command: wire.Act, accused: Collection[int] | None, nobody: str) -> list[int]:
    """Return the ranks that a diagnosis is of.

    Args:
        ranks: those of the run that live.
        command: which ranks are asked for.
        accused: those that a verdict accuses, and the ones they are compared with; None: none is accused.
        nobody: that none is accused, in words.

    Raises:
        Refused: there are no such ranks, or too many.
    """
    if command.culprit and accused is None and command.ranks is None:
        raise Refused(f"{nobody}; say which ranks: --ranks 0,1 or --ranks all")
    wanted = accused if command.culprit and accused is not None else command.ranks
    found = sorted(ranks.ranks if wanted is None else set(wanted))
    if not found:
        raise Refused("no rank is named; say which ranks: --ranks 0,1 or --ranks all")
    if missing := set(found) - set(ranks.ranks):
        raise Refused(f"{ranks_in_spans(missing)}: not in this run, or ended")
    if len(found) > MOST_RANKS:
        raise Refused(f"{len(found)} ranks are too many at once; say up to {MOST_RANKS}")
    return found
