"""The hosts of a run on several: their ranks, whether they are heard, and how far their clocks are apart. Pure.

The head of the run tells of them once a second; before that, and of a run that is over, the records of the ranks do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ddptop.agent.run.states import has_other_hosts
from ddptop.agent.wire.frames import NO_HOSTS, HostFrames
from ddptop.agent.wire.hosts import HostFrame

if TYPE_CHECKING:
    from ddptop.agent.observer.model.ranks.rank import RankModel
    from ddptop.agent.observer.model.situation import Situation
    from ddptop.agent.run.records import Member, Run

_TOLD_S: Final = 2.0
"""A host is told to be silent at most so long after its ranks seem to be."""
_MOVED_S: Final = 0.005
"""A clock that has moved less than this since is the same one: an estimate is never twice the same."""


class Hosts:
    """The hosts of one run, as far as they are known."""

    def __init__(self, world: int) -> None:
        """Know nothing yet of a run of so many ranks."""
        self._world = world
        self._told: Sequence[HostFrame] = ()
        self._recorded: dict[int, str] = {}
        """By rank, its host by its record."""
        self._local: frozenset[int] = frozenset()
        self.why = ""
        """Why hosts are not linked, one line; empty where that is not known."""
        self._gone: frozenset[int] = frozenset()
        """Ranks whose processes have ended, by the observers of their hosts."""
        self.shown = NO_HOSTS
        self.unheard: dict[int, HostFrame] = {}
        """By rank, its host, where nothing is heard of that."""

    def know(self, members: Mapping[int, Member], local: frozenset[int]) -> None:
        """Take in the records of the ranks, and which of them are on this host."""
        recorded = {rank: member.host for rank, member in members.items() if rank < self._world}
        if (recorded, local) != (self._recorded, self._local):
            self._recorded, self._local = recorded, local
            self._arrange()

    def take(self, hosts: Sequence[HostFrame]) -> None:
        """Take in the hosts as this one's observer knows them, or that of the head."""
        self._told = hosts
        self._arrange()

    def lag_s(self, host: HostFrame) -> float | None:
        """Return the seconds by which a host's clock is ahead of the one here; None where that is not known."""
        here = next((each for each in self.shown if not self._local.isdisjoint(each.ranks)), None)
        if here is None or here.offset_ms is None or host.offset_ms is None:
            return None
        return (host.offset_ms - here.offset_ms) / 1e3

    def set_clocks(self, ranks: Mapping[int, RankModel]) -> None:
        """Tell the ranks by how much their clocks are off; one that has not moved costs nothing."""
        for host in self.shown:
            lag_s = self.lag_s(host)
            if lag_s is None or not host.ranks:
                continue
            before_s = ranks[host.ranks[-1]].lag_s
            if before_s is None or abs(lag_s - before_s) >= _MOVED_S:
                for rank in host.ranks:
                    ranks[rank].lag_s = lag_s

    def set_alive(self, ranks: Mapping[int, RankModel]) -> None:
        """Tell the ranks on other hosts whether their processes are known to be gone: nobody here can look."""
        gone = frozenset(rank for state in self._told for rank in state.gone)
        for rank in gone | self._gone:
            if rank in ranks and ranks[rank].far:
                ranks[rank].alive = False if rank in gone else None
        self._gone = gone

    def unlinked(self, run: Run, ranks: Mapping[int, RankModel]) -> tuple[int, ...]:
        """Return the ranks on other hosts that nobody tells of, once all ranks of this host have come."""
        told, here = self.shown.by_rank, run.local_world
        if not has_other_hosts(run) or here is None or len(told) >= len(ranks):
            return ()
        missing = [rank for rank, model in ranks.items() if rank not in told and not model.is_known]
        come = sum(model.member is not None and not model.far for model in ranks.values()) if missing else 0
        return tuple(missing) if come >= here else ()

    def withheld(self, situation: Situation, ranks: Mapping[int, RankModel], silent_s: float) -> list[int]:
        """Return the silent ranks of which the silence of their whole host is told, or is about to be told.

        A rank is silent after `silent_s`, and its host is so a moment later.
        """
        if not self.shown or "silent" not in situation.ranks.values():
            return []
        silent = [rank for rank, state in situation.ranks.items() if state == "silent"]
        return [
            rank
            for rank in silent
            if rank in self.unheard
            or not ranks[rank].is_known
            or (ranks[rank].far and (ranks[rank].heard_age(situation.at) or 0.0) < silent_s + _TOLD_S)
        ]

    def _arrange(self) -> None:
        found = self._hosts()
        here = next((host for host in found if not self._local.isdisjoint(host.ranks)), None)
        if here is not None and here.offset_ms:
            # The head tells when it heard of each by its own clock.
            shift = here.offset_ms / 1e3
            found = [each if each.heard_at is None else replace(each, heard_at=each.heard_at + shift) for each in found]
        self.shown = HostFrames(found) if len(found) > 1 or self._told else NO_HOSTS
        self.unheard = {rank: host for host in self.shown if host.is_unheard for rank in host.ranks}

    def _hosts(self) -> list[HostFrame]:
        taken: set[int] = set()
        entries: list[tuple[HostFrame, list[int]]] = []
        for host in self._told:
            # The first that names a rank has it.
            ranks = [rank for rank in dict.fromkeys(host.ranks) if rank < self._world and rank not in taken]
            taken.update(ranks)
            entries.append((host, ranks))
        by_name = {host.host: ranks for host, ranks in reversed(entries)}
        for rank, name in self._recorded.items():
            if rank in taken:
                continue
            if name not in by_name:
                by_name[name] = []
                entries.append((HostFrame(name), by_name[name]))
            by_name[name].append(rank)
        entries.sort(key=lambda each: (min(each[1], default=self._world), each[0].node or 0))
        hosts: list[HostFrame] = []
        named: dict[str, int] = {}
        for known, ranks in entries:
            number = named[known.host] = named.get(known.host, 0) + 1
            changes: dict[str, object] = {"ranks": tuple(sorted(ranks))}
            if number > 1:
                changes["host"] = f"{known.host} ({number})"
            if 0 in ranks and known.state:
                # The head is where rank 0 is, and its clock is the measure of the others.
                changes |= {"offset_ms": known.offset_ms or 0.0, "offset_error_ms": known.offset_error_ms or 0.0}
            hosts.append(replace(known, **changes))
        return hosts
