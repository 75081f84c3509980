"""The ranks of an action: what they are asked, and what they say of themselves by their signs of life."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts.questions import LINKED, OtherHosts
from ddptop.agent.observer.model.run_model import RunModel
from ddptop.agent.observer.service.forwarding import Forwarding
from ddptop.agent.run import hosts
from ddptop.agent.run.identity import is_stopped, may_live
from ddptop.agent.run.rundir import Run, RunDirError
from ddptop.agent.text import clean_line, ranks_in_spans
from ddptop.agent.wire import Beat, Reply
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.vocabulary.refusals import Refused, Unheard

ANSWER_S: Final = 2.0
"""A rank's agent answers within milliseconds, also while its training thread is busy."""
INSIST_S: Final = 6.0
"""Seconds in which every rank has to do what some of them may have done already."""
RENEW_S: Final = 1.0
"""Seconds after which a rank is told again."""
_RECORDED_S: Final = 2.0
"""Seconds to wait for the record of a rank on a linked host: it is written once a second."""
_REQUESTER: Final = b"actions"
"""Stands for the observer itself among those who ask ranks."""

Replies = Generator[float, None, dict[int, Reply]]
"""A question to ranks, see `action.Turns`, which returns their replies."""


class AllEnded(Refused):
    """No rank is left to be asked."""


class Ranks:
    """The ranks of a run that have not ended, for one action."""

    def __init__(
        self,
        model: RunModel,
        others: OtherHosts,
        forwarding: Forwarding,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Know none yet.

        Args:
            model: what the ranks say of themselves, and their records.
            others: the other hosts of the run.
            forwarding: the way to the ranks.
            clock: monotonic, in seconds.
            wall: seconds since the epoch.
        """
        self.ranks: list[int] = []
        self.hosts: Mapping[int, str] = {}
        """By rank, the name of its host."""
        self.stopped_by = ""
        """The author of a stop by which a rank has ended; empty where none has."""
        self._model = model
        self._others = others
        self._forwarding = forwarding
        self._clock = clock
        self._wall = wall
        self._give_up = clock() + _RECORDED_S

    def find(self) -> bool:
        """Find the ranks that live; return False where the record of one on a linked host has to come.

        Raises:
            Refused: the run is in a state in which not all of its ranks can be asked.
        """
        self._look()
        known, run = self._model.store.ranks, self._model.store.run
        if run.state in ENDED:
            raise Refused(f"run {run.run} is over ({run.state})")
        members = {rank: each.member for rank, each in known.items() if each.member is not None}
        if missing := [rank for rank in known if rank not in members]:
            linked = {rank for host in self._others.hosts() if host.state == LINKED for rank in host.ranks}
            if unheard := sorted(set(missing) - linked):
                raise Refused(_missing(run, unheard, sum(not known[rank].far for rank in members)))
            if self._clock() > self._give_up:
                raise Refused(_starting(missing[0]))
            return False
        if any(is_stopped(member.process) for rank, member in members.items() if not known[rank].far):
            raise Refused("its processes are frozen; resume it first")
        gone = self.departed()
        self.ranks = [rank for rank in sorted(members) if rank not in gone]
        self.hosts = {rank: member.host for rank, member in members.items()}
        self.stopped_by = next((by for each in members.values() if each.ended and (by := each.ended.stopped_by)), "")
        if not self.ranks:
            raise Refused(f"no rank of run {run.run} is alive; `ddptop status {run.run}` tells how it ended")
        return True

    def _look(self) -> None:
        # Removed under our eyes, what is known is all there is.
        with contextlib.suppress(RunDirError):
            self._model.look(at_once=True)

    def departed(self) -> set[int]:
        """Return the ranks whose script has ended or whose process is gone."""
        self._look()
        known, gone = self._model.store.ranks, hosts.gone_ranks(self._others.hosts())
        if self._model.store.run.state in ENDED:
            return set(known)
        return {
            rank
            for rank, each in known.items()
            if each.member is None
            or each.member.ended is not None
            or not (hosts.may_train(each.member, gone) if each.far else may_live(each.member.process))
        }

    def drop_departed(self) -> None:
        """Leave out the ranks that have ended since; raises `AllEnded` where none is left."""
        gone = self.departed()
        self.ranks = [rank for rank in self.ranks if rank not in gone]
        if not self.ranks:
            raise AllEnded("every rank has ended meanwhile")

    # What they say

    def beats(self) -> dict[int, Beat]:
        """Return the newest sign of life of each rank that has given one."""
        known = self._model.store.ranks
        return {rank: beat for rank in self.ranks if (beat := known[rank].beat) is not None}

    def standing(self) -> Generator[float, None, dict[int, Beat]]:
        """Return the newest sign of life of each rank, once all were heard within the last seconds.

        Raises:
            Unheard: a rank that has not ended is not heard.
        """
        give_up, since = self._clock() + ANSWER_S, self._wall() - ANSWER_S
        known = self._model.store.ranks
        while True:
            heard = [rank for rank in self.ranks if (known[rank].heard_at or 0.0) >= since and known[rank].beat]
            if len(heard) == len(self.ranks):
                return self.beats()
            if self._clock() >= give_up:
                self.drop_departed()
                self.check_heard(heard)
            yield max(0.0, give_up - self._clock())

    # What they are asked

    def tell(self, command: wire.Command, ranks: Collection[int] | None = None) -> None:
        """Tell these ranks something, or all; nobody waits for their replies."""
        command = deadline.limited(command, ANSWER_S)
        for rank in self.ranks if ranks is None else ranks:
            self._forwarding.forward(_REQUESTER, rank, command, lambda *_: None)

    def ask(self, command: wire.Command, ranks: Collection[int] | None = None, timeout_s: float = ANSWER_S) -> Replies:
        """Ask these ranks, or all, and return the replies that come in time; ranks that have ended since drop out.

        A rank that does not answer is left out, also where the relay says so in its place.
        """
        asked = tuple(self.ranks if ranks is None else ranks)
        replies: dict[int, Reply] = {}
        silent: set[int] = set()

        def take(_: bytes, rank: int, reply: Reply) -> None:
            if reply.refusal == Unheard.kind:
                silent.add(rank)
            else:
                replies[rank] = reply

        command, give_up = deadline.limited(command, timeout_s), self._clock() + timeout_s
        for rank in asked:
            self._forwarding.forward(_REQUESTER, rank, command, take)
        while len(replies) + len(silent) < len(asked) and (left_s := give_up - self._clock()) > 0:
            yield left_s
        if len(replies) < len(asked):
            self.drop_departed()
        # In one order, so that what is said of the same refusals is the same text.
        return dict(sorted(replies.items()))

    def bring(self, command: wire.Command, is_so: Callable[[Beat], bool]) -> Generator[float, None, None]:
        """Tell ranks something until it is so by the word of each, again those of which it is not.

        Raises:
            Unheard: it is not so within `INSIST_S`, of a rank that has not ended.
        """
        give_up = self._clock() + INSIST_S
        while True:
            self.tell(command, self._others_than(is_so))
            again = self._clock() + RENEW_S
            while self._others_than(is_so) and (left_s := again - self._clock()) > 0:
                yield left_s
            if not (left := self._others_than(is_so)):
                return
            self.drop_departed()
            if self._clock() >= give_up:
                self.check_heard(set(self.ranks).difference(left))

    def _others_than(self, is_so: Callable[[Beat], bool]) -> list[int]:
        beats = self.beats()
        return [rank for rank in self.ranks if rank not in beats or not is_so(beats[rank])]

    def check(self, replies: Mapping[int, Reply]) -> None:
        """Raise `Refused` where a rank has not answered, or refused."""
        self.check_heard(replies)
        for rank, reply in replies.items():
            if not reply.done:
                known = reply.text.startswith("already paused")
                raise Refused(reply.text if known else f"rank {rank}: {reply.text}")

    def check_heard(self, heard: Collection[int]) -> None:
        """Raise `Unheard` where a rank is not among these."""
        silent = [rank for rank in self.ranks if rank not in heard]
        if silent:
            if unheard := self._unheard(silent):
                raise Unheard(f"{unheard}; an action is for all ranks or none: try again when it is heard")
            said = f"{ranks_in_spans(silent)} did not answer within {ANSWER_S:.0f} s"
            raise Unheard(f"{said}; `ddptop status` shows the state of each rank")

    def _unheard(self, ranks: Collection[int]) -> str:
        """Say that nothing is heard of the hosts of these ranks; empty where that is not so of all of them."""
        silent = [host for host in self._others.hosts() if host.state in wire.UNHEARD]
        blamed = [host for host in silent if not set(host.ranks).isdisjoint(ranks)]
        if not set(ranks) <= {rank for host in blamed for rank in host.ranks}:
            return ""
        return f"{', '.join(clean_line(host.host, 60) for host in blamed[:3])} is not heard ({ranks_in_spans(ranks)})"


def _missing(run: Run, ranks: list[int], here: int) -> str:
    if run.local_world is not None and here >= run.local_world < run.world:
        return (
            f"{ranks_in_spans(ranks)}: on another host, of which nothing is heard here; an action is for all ranks or "
            f"none; `ddptop status {run.run}` tells which hosts are linked"
        )
    return _starting(ranks[0])


def _starting(rank: int) -> str:
    return f"still starting: rank {rank} has not reported yet; try again in a moment"
