"""The live ranks of a run, as an action sees them: asked by the relay, known by the records of the run directory."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.observer.service.requests import Replies
from ddptop.agent.run import hosts
from ddptop.agent.run.identity import may_live
from ddptop.agent.run.rundir import Member, Run, RunDir, RunDirError
from ddptop.agent.text import clean_line, ranks_in_spans
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.refusals import Refused, Unheard

_RECORDED_S: Final = 2.0
"""Seconds to wait for the record of a rank on a linked host: it is written once a second."""

Ask = Callable[[wire.Command, Collection[int], Replies], None]
"""Sends these ranks a command; each reply comes into the queue."""


class LiveRanks(PolledRanks):
    """The live ranks of a run, for one action."""

    def __init__(self, directory: RunDir, ask: Ask) -> None:
        """Find them.

        Raises:
            Refused: the run is in a state in which not all of its ranks can be asked.
        """
        run = directory.read()
        if run.state in ENDED:
            raise Refused(f"run {run.run} is over ({run.state})")
        here, members = _records(directory, run)
        self._directory = directory
        self._ask = ask
        super().__init__(sorted(members.keys() - _departed(directory, members, here)))
        self.hosts = {rank: member.host for rank, member in members.items()}
        self.stopped_by = next((by for each in members.values() if each.ended and (by := each.ended.stopped_by)), "")
        """The author of a stop by which a rank has ended; empty where none has."""
        if not self.ranks:
            raise Refused(f"no rank of run {run.run} is alive; `ddptop status {run.run}` tells how it ended")

    def send(self, command: wire.Command, ranks: Collection[int], timeout_s: float) -> Mapping[int, wire.Reply]:
        """Send these ranks a command and return the replies that come in time; ranks refuse the command after that.

        A rank that does not answer is left out, also where the relay says so in its place.
        """
        found: Replies = queue.SimpleQueue()
        give_up = time.monotonic() + timeout_s
        self._ask(deadline.limited(command, timeout_s), ranks, found)
        replies: dict[int, wire.Reply] = {}
        with contextlib.suppress(queue.Empty):
            for _ in ranks:
                rank, reply = found.get(timeout=max(0.0, give_up - time.monotonic()))
                if reply.refusal != Unheard.kind:
                    replies[rank] = reply
        # In one order, so that what is said of the same refusals is the same text.
        return dict(sorted(replies.items()))

    def departed(self) -> set[int]:
        """Return the ranks whose script has ended or whose process is gone."""
        here = self._directory.members()
        members = {**hosts.far_members(self._directory.path), **here}
        return {rank for rank in self.ranks if rank not in members} | _departed(self._directory, members, here)

    def unheard(self, ranks: Collection[int]) -> str:
        """Say that nothing is heard of the hosts of these ranks; empty where that is not so of all of them."""
        silent = [host for host in hosts.read_hosts(self._directory.path) if host.state in ("silent", "gone")]
        blamed = [host for host in silent if not set(host.ranks).isdisjoint(ranks)]
        if not set(ranks) <= {rank for host in blamed for rank in host.ranks}:
            return ""
        return f"{', '.join(clean_line(host.host, 60) for host in blamed[:3])} is not heard ({ranks_in_spans(ranks)})"


def _departed(directory: RunDir, members: Mapping[int, Member], here: Collection[int]) -> set[int]:
    """Return the ranks whose script has ended or whose process is gone, here or on another host."""
    known = hosts.read_hosts(directory.path) if len(here) < len(members) else ()
    with contextlib.suppress(RunDirError):
        if directory.read().state in ENDED:
            return set(members)

    def lives(rank: int, member: Member) -> bool:
        return may_live(member.process) if rank in here else hosts.may_train(member, known)

    return {rank for rank, member in members.items() if member.ended is not None or not lives(rank, member)}


def _records(directory: RunDir, run: Run) -> tuple[dict[int, Member], dict[int, Member]]:
    """Return the records of the ranks on this host, and those of all ranks.

    Raises:
        Refused: a rank has no record, nor gets one in time where its host is linked.
    """
    give_up = time.monotonic() + _RECORDED_S
    while True:
        here = directory.members()
        members = {**hosts.far_members(directory.path), **here}
        missing = {rank for rank in range(run.world) if rank not in members}
        if not missing:
            return here, members
        linked = {rank for host in hosts.read_hosts(directory.path) if host.state == "linked" for rank in host.ranks}
        if unheard := sorted(missing - linked):
            raise Refused(_missing(run, unheard, len(here)))
        if time.monotonic() > give_up:
            raise Refused(_starting(min(missing)))
        time.sleep(0.05)


def _missing(run: Run, ranks: list[int], here: int) -> str:
    if run.local_world is not None and here >= run.local_world < run.world:
        return (
            f"{ranks_in_spans(ranks)}: on another host, of which nothing is heard here; an action is for all ranks or "
            f"none; `ddptop status {run.run}` tells which hosts are linked"
        )
    return _starting(ranks[0])


def _starting(rank: int) -> str:
    return f"still starting: rank {rank} has not reported yet; try again in a moment"
