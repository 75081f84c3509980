"""The end of a run over several hosts: how the ranks on each ended, how long hosts are awaited, what they are told.

The run is over when each host's part is over.  A branch tells the head of each end of a rank, and when its part is
over.  The head waits for branches, brings their ends together with its own by its own clock, and tells them how the run
ended, so that the records on all hosts say the same; of a host that is not heard for some seconds after that, the end
is not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.end.cause import LostHost
from ddptop.agent.observer.hosts import questions
from ddptop.agent.observer.hosts.link.side import Said
from ddptop.agent.observer.hosts.questions import HEAD, Answer, OtherHosts
from ddptop.agent.run import ends, records
from ddptop.agent.run.ends import Death
from ddptop.agent.run.hosts import FarRanks, bare
from ddptop.agent.run.rundir import Member
from ddptop.agent.text import clean_line, plural, ranks_in_spans
from ddptop.agent.wire.frames import ENDED

CONCLUDE_S: Final = 2.0
"""Seconds in which branches take note of the end of the run."""
_CONCLUDED_S: Final = 3.0
"""Seconds after the end of the processes of a killed host in which the head tells how the run ended."""
SILENT_S: Final = 10.0
"""Seconds after the end of this host's part for which a host that is not heard is waited for."""
_ANSWER_S: Final = 3.0
_AGAIN_S: Final = 1.0
_MOST_BYTES: Final = 400 << 10
"""Bytes of the records of ranks in one message; of larger ones the tracebacks are left out."""


class ReportedEnds:
    """At the head: what the branches have told of the ends of their ranks."""

    def __init__(self) -> None:
        self.deaths: dict[int, Death] = {}
        """By rank on another host, what was seen of the end of its process, by the clock of this host."""
        self.members: dict[int, Member] = {}
        """By rank on another host that has ended, its record, likewise."""
        self.over: set[str] = set()
        """Hosts on which nothing of the run is left."""
        self._since_ns = 0
        """The present generation has begun after this time: what ended before was one of the last generation."""

    def forget(self) -> None:
        """Forget the ranks of the last generation: another one has begun."""
        # The hosts may count their restarts differently.
        self._since_ns = time.time_ns()
        self.deaths, self.members, self.over = {}, {}, set()

    def take(self, told: wire.HostEnd, state: wire.HostFrame) -> None:
        """Take in what a branch tells of this generation.

        Args:
            told: its message; only what it tells of its own ranks is believed.
            state: what is known of that host.
        """
        ranks, offset_ns = set(state.ranks), int((state.offset_ms or 0.0) * 1e6)
        for death in ends.decode(told.deaths, told.generation).values():
            at_ns = max(0, death.at_ns - offset_ns)
            if death.rank in ranks and at_ns >= self._since_ns:
                self.deaths[death.rank] = msgspec.structs.replace(death, at_ns=at_ns)
        for member in _members(told.members):
            at_ns = 0 if member.ended is None else max(0, member.ended.at_ns - offset_ns)
            if member.rank in ranks and member.ended is not None and at_ns >= self._since_ns:
                ended = msgspec.structs.replace(member.ended, at_ns=at_ns)
                changed = bare(msgspec.structs.replace(member, ended=ended, host=state.host))
                self.members[member.rank] = changed
        if told.over:
            self.over.add(state.host)
        else:
            self.over.discard(state.host)

    def ended(self, rank: int) -> bool:
        """Say whether the end of a rank on another host is known."""
        return rank in self.deaths or rank in self.members

    def lost(self, known: tuple[wire.HostFrame, ...]) -> list[LostHost]:
        """Return the hosts that are not heard, and have ranks of whose end nothing is known."""
        found = []
        for each in known:
            ranks = tuple(rank for rank in each.ranks if not self.ended(rank))
            if each.state in (questions.SILENT, questions.GONE) and ranks and each.host not in self.over:
                found.append(LostHost(each.host, ranks, _heard_ns(each)))
        return found

    def is_awaited(self, host: wire.HostFrame, seconds: float) -> bool:
        """Say whether a host is to be waited for, so many seconds after the end of this host's part."""
        if host.host in self.over or not host.ranks:
            return False
        if host.state == questions.LINKED and not all(self.ended(rank) or rank in host.gone for rank in host.ranks):
            return True
        # Silent, or with a launcher that waits although none of its ranks lives.
        return seconds < SILENT_S


def _members(content: bytes) -> tuple[Member, ...]:
    try:
        return records.decode(content, FarRanks).members if content else ()
    except ValueError:
        return ()


class Reporting:
    """At a branch: the ends of its ranks, told to the head until it has answered."""

    def __init__(self, host: str, hosts: OtherHosts, clock: Callable[[], float]) -> None:
        self._host = host
        self._hosts = hosts
        self._clock = clock
        self._state: tuple[object, ...] = ()
        self._told: tuple[object, ...] = ()
        """What the head has acknowledged."""
        self._answer: tuple[tuple[object, ...], Answer] | None = None
        """What was told last, and the answer to it."""
        self._asked_at = -_AGAIN_S

    def turn(self, generation: int, deaths: Mapping[int, Death], members: Mapping[int, Member], *, over: bool) -> None:
        """Tell the head what it does not know yet; to be called from time to time."""
        if self._answer is not None and self._answer[1].done():
            reply = self._answer[1].result()
            if reply is not None and reply.done:
                self._told = self._answer[0]
            self._answer = None
        ended = {rank: member for rank, member in members.items() if member.ended is not None}
        state = (generation, tuple(deaths.values()), tuple(ended.values()), over)
        if state != self._state:
            self._state, self._asked_at = state, -_AGAIN_S
        now = self._clock()
        if self._hosts.role != "branch":
            # Another head may not know it.
            self._told = ()
            return
        if self._told == state or not (deaths or ended or over) or now < self._asked_at + _AGAIN_S:
            return
        self._asked_at = now
        told = wire.HostEnd(0, self._host, generation, ends.encode(generation, deaths.values()), _encoded(ended), over)
        self._answer = state, self._hosts.ask(HEAD, told, _ANSWER_S)


def _encoded(members: Mapping[int, Member]) -> bytes:
    content = msgspec.json.encode(FarRanks(tuple(members.values())))
    if len(content) > _MOST_BYTES:
        short = [
            msgspec.structs.replace(member, ended=msgspec.structs.replace(member.ended, traceback=None))
            for member in members.values()
            if member.ended is not None
        ]
        content = msgspec.json.encode(FarRanks(tuple(short)))
    return content if len(content) <= _MOST_BYTES else b""


class HostWatch:
    """What was last told of each host: hosts that are not heard, and that are heard again, are events."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}
        """By host, its state."""
        self._lost_ns: dict[str, int] = {}

    def turn(self, hosts: tuple[wire.HostFrame, ...], over: Collection[str]) -> list[Said]:
        """Return what is to be told; a host was lost where that is an error.

        Args:
            hosts: the other hosts, as they are now.
            over: hosts on which nothing of the run is left, so that their silence is no news.
        """
        found = []
        for each in hosts:
            before = self._told.get(each.host)
            if before == each.state or not each.ranks:
                continue
            self._told[each.host] = each.state
            if each.host in over or set(each.ranks) <= set(each.gone):
                continue
            if (said := self._said_of(each, before)) is not None:
                found.append(said)
        return found

    def _said_of(self, host: wire.HostFrame, before: str | None) -> Said | None:
        name, ranks = clean_line(host.host, 60), ranks_in_spans(host.ranks)
        match host.state:
            case questions.SILENT if before is not None:
                self._lost_ns[host.host] = _heard_ns(host)
                return Said(f"{name} is not heard since {time_of(self._lost_ns[host.host])}: {ranks}", "error")
            case questions.GONE if before is not None:
                since = self._lost_ns.setdefault(host.host, _heard_ns(host))
                return Said(f"{name} is gone, last heard at {time_of(since)}: {ranks}", "error")
            case questions.LINKED if host.host in self._lost_ns:
                seconds = max(0, time.time_ns() - self._lost_ns.pop(host.host)) / 1e9
                return Said(f"{name} is heard again after {seconds:.0f} s: {ranks}")
            case questions.LINKED if before is None:
                return Said(f"{name} is linked: {ranks}")
        return None


def _heard_ns(host: wire.HostFrame) -> int:
    return time.time_ns() if host.heard_at is None else round(host.heard_at * 1e9)


def time_of(at_ns: int) -> str:
    """Return a time of the wall clock as `10:31:07`."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


class OtherEnds:
    """The other hosts of the run, at its end; for use from the observer's main thread."""

    def __init__(self, host: str, hosts: OtherHosts, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet; `host` is the name of this one."""
        self.hosts = hosts
        self.reported = ReportedEnds()
        self.conclusion: wire.Conclude | None = None
        """The end of the run, as the head has told it."""
        self._clock = clock
        self._watch = HostWatch()
        self._reporting = Reporting(host, hosts, clock)
        self._has_changed = False
        self._was_branch = False
        self._over_at: float | None = None
        """When this host's part of the run was seen to be over."""
        self._killed_at: float | None = None
        """Of a branch, when it was seen that all its processes were killed."""
        self._unlinked_at: float | None = None
        """Of a branch, since when it has no link."""

    def ended(self) -> set[int]:
        """Return the ranks on other hosts whose end is known."""
        return {*self.reported.deaths, *self.reported.members}

    def turn(self, generation: int, deaths: Mapping[int, Death], members: Mapping[int, Member]) -> list[Said]:
        """Tell the head of the ends here; return what is to be said of hosts that are lost or heard again.

        Args:
            generation: the present one.
            deaths: by rank of this host, what was seen of the end of its process.
            members: the records of the ranks of this host.
        """
        role = self.hosts.role
        self._was_branch = self._was_branch or role == "branch"
        if self._was_branch:
            self._reporting.turn(generation, deaths, members, over=self._over_at is not None)
        return self._watch.turn(self.hosts.hosts(), self.reported.over) if role == "head" else []

    def take(self, message: wire.HostEnd | wire.Conclude) -> str | None:
        """Take what another observer tells of the end of the run, or return why not."""
        if isinstance(message, wire.Conclude):
            if self.hosts.role != "branch" or message.state not in ENDED:
                return "only the head tells branches of the end of the run"
            self.conclusion = message
            return None
        state = next((each for each in self.hosts.hosts() if each.host == message.host), None)
        if state is None or self.hosts.role != "head":
            return "not known here yet; tell it again"
        self.reported.take(message, state)
        self._has_changed = True
        return None

    def take_changes(self) -> bool:
        """Say whether a branch has told of an end since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def are_awaited(self, *, over: bool) -> bool:
        """Say whether the run goes on elsewhere; `over`: this host's part is over."""
        if not over:
            self._over_at = None
            return True
        now = self._clock()
        self._over_at = self._over_at or now
        if self.hosts.role == "head":
            return any(self.reported.is_awaited(each, now - self._over_at) for each in self.hosts.hosts())
        if self.conclusion is not None or not self._was_branch:
            return False
        if self.hosts.role == "branch":
            self._unlinked_at = None
            return True
        self._unlinked_at = self._unlinked_at or now
        return now - self._unlinked_at < SILENT_S

    def is_to_conclude(self) -> bool:
        """At a branch of a run that was killed, say whether the head is about to tell how it ended."""
        if self.hosts.role != "branch" or self.conclusion is not None:
            return False
        now = self._clock()
        self._killed_at = self._killed_at or now
        return now - self._killed_at < _CONCLUDED_S

    def unknown(self) -> list[Said]:
        """Return, at the head, what is to be said of the hosts that did not answer, before the branches leave."""
        lost = self.reported.lost(self.hosts.hosts()) if self.hosts.role == "head" else []
        return [
            Said(f"{clean_line(each.host, 60)} did not answer: {plural(len(each.ranks), 'rank')} unknown", "warning")
            for each in lost
        ]

    def conclude(self, told: wire.Conclude) -> int:
        """As the head, tell all branches how the run ended; return when it was."""
        now_ns = time.time_ns()
        if self.hosts.role != "head":
            return now_ns if self.conclusion is None else self.conclusion.ended_at_ns or now_ns
        told = msgspec.structs.replace(told, ended_at_ns=now_ns)
        linked = [each.host for each in self.hosts.hosts() if each.state == questions.LINKED]
        futures.wait([self.hosts.ask(host, told, CONCLUDE_S) for host in linked], CONCLUDE_S)
        return now_ns
