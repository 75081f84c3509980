"""The ends of the ranks of the present generation: said as they are noticed, recorded, and judged by their cause.

A script may fail seconds before its process ends, and a process may end without a word of its own: what is known by
the rank's record, by its exit status and by what the kernel has counted is brought together here.  Of a run on several
hosts the head judges over all of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from typing import Final

from ddptop.agent.control.events import Events
from ddptop.agent.end import cause
from ddptop.agent.observer.actions.orders import Orders
from ddptop.agent.observer.end import kernel
from ddptop.agent.observer.end.exits import Exits
from ddptop.agent.observer.end.kernel import Found, MemoryKills
from ddptop.agent.observer.hosts.ends import OtherEnds, ReportedEnds
from ddptop.agent.run import ends, states
from ddptop.agent.run.ends import Death
from ddptop.agent.run.files import tail
from ddptop.agent.run.rundir import Member, Process, Run, RunDir
from ddptop.agent.wire import Verdict

_LINGERS_NS: Final = 2_000_000_000
"""Time after the end of a script in which most processes end."""

_log = logging.getLogger("ddptop.observer")


class RankEnds:
    """The ends of ranks, as far as they were seen."""

    def __init__(
        self,
        directory: RunDir,
        exits: Exits,
        orders: Orders,
        events: Events,
        others: OtherEnds,
    ) -> None:
        """Know nothing yet.

        Args:
            directory: of the run.
            exits: watches the processes of the ranks.
            orders: knows which ends were asked for.
            events: takes each end.
            others: the other hosts, and the ends that they have reported.
        """
        self._hosts = others.hosts
        self._reported = others.reported
        self._directory = directory
        self._exits = exits
        self._orders = orders
        self._events = events
        self._generation = 0
        self._memory_kills = MemoryKills()
        self._seen: dict[int, Death] = {}
        """By rank, what was seen of the end of its process."""
        self._told: set[int] = set()
        """Ranks whose end was said before that of their process."""
        self.lingering: set[int] = set()
        """Ranks whose scripts have failed, and whose processes wait for something before they end."""
        self._records_at_ns = 0
        """When a record of a rank was written last."""

    def resume(self, generation: int) -> None:
        """Take in what an earlier observer has recorded of the ends in the present generation."""
        self._generation = generation
        # Those of ranks on other hosts, which the record has too, are said again by the observers there.
        self._seen = ends.read(self._directory.path, generation)

    def watch(self, rank: int, process: Process) -> None:
        """Note what the kernel has counted by now for the process of a rank."""
        # Of a job started by hand another process may take the place of one that has ended.
        self._seen.pop(rank, None)
        self._told.discard(rank)
        self.lingering.discard(rank)
        self._memory_kills.watch(rank, process.pid)

    def turn(self) -> None:
        """Read the kernel's counters where that is due; to be called from time to time."""
        self._memory_kills.turn()

    def forget(self, generation: int) -> None:
        """Forget the ranks of the last generation: another one has begun."""
        self._generation = generation
        self._seen = {}
        self._told.clear()
        self.lingering.clear()
        self._memory_kills.forget()
        self._reported.forget()

    def have_records_changed(self) -> bool:
        """Say whether a rank has written its record since the last call."""
        before = self._records_at_ns
        with contextlib.suppress(OSError):
            self._records_at_ns = os.stat(self._directory.path / "ranks").st_mtime_ns
        return self._records_at_ns != before

    def tell_failures(self, members: Mapping[int, Member]) -> bool:
        """Say which ranks' scripts have failed while their processes still live; return whether there are any.

        An interpreter that has torch in it takes seconds to end after its script.

        Args:
            members: the records of the ranks, as they are now.
        """
        failing = [rank for rank in self._exits.alive() if self._has_failed(rank, members.get(rank))]
        for rank in failing:
            self._told.add(rank)
            text, level = cause.describe_end(members[rank])
            self._events.say(text, level, rank)
        return bool(failing)

    def tell_lingering(self, members: Mapping[int, Member]) -> bool:
        """Say which ranks' scripts have failed, and whose processes still wait; return whether there are new."""
        found = {
            rank: ended
            for rank in self._exits.alive()
            if rank in members and rank not in self.lingering and (ended := members[rank].ended) is not None
            if ended.exit_code and ended.awaits and time.time_ns() - ended.at_ns >= _LINGERS_NS
        }
        for rank, ended in found.items():
            self.lingering.add(rank)
            self._events.say(f"rank {rank}'s script has failed{states.lingers(ended, alive=True)}", "warning", rank)
        return bool(found)

    def _has_failed(self, rank: int, member: Member | None) -> bool:
        """Say whether the script of a rank whose process still lives has failed, which was not said yet."""
        if member is None or member.ended is None or rank in self._told or self._orders.killed_by is not None:
            return False
        return bool(member.ended.exit_code) and rank not in self._orders.ranks_killed_by

    def note(self, rank: int, member: Member | None, *, launched: bool) -> bool:
        """Take note of the end of a rank's process, and say so where that was not done; return whether it failed.

        Args:
            rank: its number.
            member: its record; None where it has none in this generation.
            launched: ddptop launched the run.
        """
        if member is not None:
            self._see(rank, member)
        if self._orders.killed_by is not None or member is None:
            self._events.say(f"rank {rank} is gone", "info", rank)
            return False
        if rank in self._told:
            return False
        asked = rank in self._orders.ranks_killed_by
        text, level = cause.describe_end(member, self._seen.get(rank), on_request=asked)
        self._events.say(text, level, rank)
        # Of a crash in native code or a SIGKILL a rank leaves no record.
        return level == "error" or (launched and member.ended is None)

    def _see(self, rank: int, member: Member) -> None:
        status = self._exits.status.get(rank)
        if status is None and rank in self._seen:
            # It was recorded by the observer before this one.
            return
        found = Found(None, "")
        if status and rank not in self._orders.ranks_killed_by:
            found = self._memory_kills.found(rank, member.process.pid)
            if status != -signal.SIGKILL and not found.out_of_memory:
                # A rank may fail of the end of its data worker; otherwise its memory has nothing to do with it.
                said = kernel.device_error(member.process.pid, time.monotonic())
                found = Found(None, f'kernel log: "{said}"' if said else "")
        self._seen[rank] = Death(rank, self._exits.at_ns[rank], status, found.out_of_memory, found.text)

    def record(self) -> None:
        """Write down what was seen, unless the run is killed: the report of a run that failed is made of records."""
        if self._orders.killed_by is not None:
            return
        try:
            ends.write(self._directory.path, self._generation, {**self._reported.deaths, **self._seen}.values())
        except OSError as error:
            _log.warning("record of the ends of ranks: %s", error)

    @property
    def seen(self) -> Mapping[int, Death]:
        """By rank of this host, what was seen of the end of its process."""
        return self._seen

    def first_cause(
        self, run: Run, members: Mapping[int, Member], exit_code: int | None, hang: Verdict | None
    ) -> cause.FirstCause:
        """Judge the end of the ranks; where the cause was killed on request, name the author of the kill.

        Args:
            run: the record of the run.
            members: the records of its ranks on this host; those of others are added.
            exit_code: that of torchrun, None where it is not known.
            hang: the newest hang of the present processes.
        """
        # A branch and an observer without a link judge their own host.
        reported = self._reported if self._hosts.role == "head" else ReportedEnds()
        everyone = {**reported.members, **members}
        at_ns = {**{rank: death.at_ns for rank, death in reported.deaths.items()}, **self._exits.at_ns}
        heard = {rank for each in self._hosts.hosts() for rank in each.ranks} if self._hosts.role == "head" else set()
        killed_by = self._orders.ranks_killed_by
        judgement = cause.judge(
            min(run.world, states.ranks_here(run, len(members)) + len(heard - members.keys())),
            everyone,
            exit_code,
            tail.end(self._directory.torchrun_log),
            at_ns,
            run.leader,
            killed_by,
            self._directory,
            {**reported.deaths, **self._seen},
            reported.lost(self._hosts.hosts()),
            elsewhere=reported.members.keys() | reported.deaths.keys(),
            hangs=[] if hang is None else [hang],
        )
        judgement = cause.with_host(judgement, everyone)
        if judgement.rank is None or (who := killed_by.get(judgement.rank)) is None:
            return judgement
        where = cause.place(judgement.rank, everyone)
        text = f"{where} was killed by {who}"
        return cause.FirstCause("failed", judgement.exit_code, text, judgement.rank, kind="on_request")
