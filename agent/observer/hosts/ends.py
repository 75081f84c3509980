"""The parts of a run on several hosts: how the ranks of each ended, and where nothing is left.

A branch tells the head of each end of a rank, and when its part is over; the head brings them together with its own,
by its own clock, and says what the end of the run was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.hosts import far
from ddptop.agent.observer.hosts.far import FarHosts
from ddptop.agent.run import ends, records
from ddptop.agent.run.ends import Death
from ddptop.agent.run.hosts import FarRanks, bare
from ddptop.agent.run.rundir import Member

SILENT_S: Final = 10.0
"""Seconds after the end of this host's part for which a host that is not heard is waited for."""
_ANSWER_S: Final = 3.0
_AGAIN_S: Final = 1.0
_MOST_BYTES: Final = 400 << 10
"""Bytes of the records of ranks in one message; of larger ones the tracebacks are left out."""


class LostHost(NamedTuple):
    """A host that is not heard, with ranks of whose end nothing is known."""

    host: str
    ranks: tuple[int, ...]
    heard_at_ns: int


class Parts:
    """At the head: what the branches have told of their ends."""

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

    def take(self, told: wire.HostEnd, state: wire.HostState) -> bool:
        """Take in what a branch tells of this generation; return whether there is anything new.

        Args:
            told: its message; only what it tells of its own ranks is believed.
            state: what is known of that host.
        """
        ranks, offset_ns = set(state.ranks), int((state.offset_ms or 0.0) * 1e6)
        before = (len(self.deaths), len(self.members), len(self.over))
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
        return before != (len(self.deaths), len(self.members), len(self.over))

    def ended(self, rank: int) -> bool:
        """Say whether the end of a rank on another host is known."""
        return rank in self.deaths or rank in self.members

    def lost(self, known: tuple[wire.HostState, ...]) -> list[LostHost]:
        """Return the hosts that are not heard, and have ranks of whose end nothing is known."""
        found = []
        for each in known:
            ranks = tuple(rank for rank in each.ranks if not self.ended(rank))
            if each.state in (far.SILENT, far.GONE) and ranks and each.host not in self.over:
                found.append(LostHost(each.host, ranks, each.heard_at_ns or time.time_ns()))
        return found

    def is_awaited(self, host: wire.HostState, seconds: float) -> bool:
        """Say whether a host is to be waited for, so many seconds after the end of this host's part."""
        if host.host in self.over or not host.ranks:
            return False
        if host.state == far.LINKED and not all(self.ended(rank) or rank in host.gone for rank in host.ranks):
            return True
        # Silent, or with a launcher that waits although none of its ranks lives.
        return seconds < SILENT_S


def _members(content: bytes) -> tuple[Member, ...]:
    try:
        return records.decode(content, FarRanks).members if content else ()
    except ValueError:
        return ()


class Telling:
    """At a branch: the ends of its ranks, told to the head until it has answered."""

    def __init__(self, host: str, hosts: FarHosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._far = hosts
        self._clock = clock
        self._state: tuple[object, ...] = ()
        self._told: tuple[object, ...] = ()
        """What the head has acknowledged."""
        self._asked_at = -_AGAIN_S

    def turn(self, generation: int, deaths: Mapping[int, Death], members: Mapping[int, Member], *, over: bool) -> None:
        """Tell the head what it does not know yet; to be called from time to time."""
        ended = {rank: member for rank, member in members.items() if member.ended is not None}
        state = (generation, tuple(deaths.values()), tuple(ended.values()), over)
        if state != self._state:
            self._state, self._asked_at = state, -_AGAIN_S
        now = self._clock()
        if self._far.role != "branch":
            # Another head may not know it.
            self._told = ()
            return
        if self._told == state or not (deaths or ended or over) or now < self._asked_at + _AGAIN_S:
            return
        self._asked_at = now
        told = wire.HostEnd(0, self._host, generation, ends.encode(generation, deaths.values()), _encoded(ended), over)
        self._far.ask(far.HEAD, told, _ANSWER_S, self._taker(state))

    def _taker(self, state: tuple[object, ...]) -> far.Then:
        def take(reply: wire.Reply | None) -> None:
            if reply is not None and reply.done:
                self._told = state

        return take


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
