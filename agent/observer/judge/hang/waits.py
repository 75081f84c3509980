"""The ranks for which each rank waits, by the records of collectives of all ranks.

A rank that is in call n of a group waits for the members of the group that have made fewer than n calls; one that makes
a new group, for its members that do not know it yet; one that meets others otherwise, for those that meet nobody.  Who
is waited for may itself wait in a call of another group, or of the same one a step behind: the cause is found at the
end of these chains, at the ranks that wait for nobody.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent.end.mismatch import DEFAULT_GROUP, Mismatch, difference
from ddptop.agent.observer.judge.hang.looks import main_thread
from ddptop.agent.observer.judge.hang.place import place_of
from ddptop.agent.wire import GroupCalls, Inspection, OpenCall

_POINT_TO_POINT: Final = frozenset({"send", "recv", "isend", "irecv", "recv_any_source"})
NEW_GROUP: Final = "new_group"
"""The call that is open while a group is made: it has no number, and the group no calls yet."""


@dataclass(frozen=True)
class Wait:
    """A rank that has called a collective which is not complete."""

    rank: int
    call: OpenCall
    absent: frozenset[int] = frozenset()
    """Members of the group that have not called it, as far as that is known."""
    unknown: frozenset[int] = frozenset()
    """Members that may not have called it; of a send or a receive, the ranks that are in no call."""
    function: str = ""
    """The function of torch that has made the call, where it says more: `all_gather_object`, `init_device_mesh`."""

    @property
    def on(self) -> frozenset[int]:
        """The ranks that may be waited for."""
        return self.absent | self.unknown


@dataclass(frozen=True)
class Waits:
    """The waits of all ranks, and what follows from them."""

    waits: dict[int, tuple[Wait, ...]] = field(default_factory=dict)
    """By rank, its calls that are not complete, oldest first; without ranks that wait for nothing."""
    causes: frozenset[int] = frozenset()
    """The ranks at the ends of the chains: they wait for nobody, and others wait for them."""
    circle: frozenset[int] = frozenset()
    """Ranks that wait for each other, each in another call; empty where there is a cause."""
    complete: tuple[Wait, ...] = ()
    """Calls that all members have made, and that do not complete."""
    by_stacks: bool = False
    """True where the calls are known by the stacks alone."""

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that wait for others, and are not a cause."""
        return frozenset(self.waits) - self.causes

    def first(self, causes: Iterable[int]) -> Wait | None:
        """Return the oldest wait for one of these ranks; where none is for them, the oldest of all."""
        wanted = frozenset(causes)
        found = [wait for waits in self.waits.values() for wait in waits if wait.rank not in wanted]
        direct = [wait for wait in found if wait.on & wanted]
        return max(direct or found, key=lambda wait: (wait.call.open_ns, -wait.rank), default=None)


def waits_of(
    ranks: Mapping[int, Inspection],
    world: int,
    present: Iterable[int],
    absent: Iterable[int],
    seen: Mapping[int, str],
) -> Waits:
    """Return who waits for whom.

    Args:
        ranks: the inspections of one moment.
        world: number of ranks of the run.
        present: the ranks that can be asked.
        absent: ranks that have ended or are gone, and call nothing any more.
        seen: by rank, the call that it was found in by many looks from outside.
    """
    groups = {rank: {each.group: each for each in inspection.groups} for rank, inspection in ranks.items()}
    away, there = frozenset(absent), frozenset(present)
    known = {rank for rank, inspection in ranks.items() if inspection.observed}
    # One that answers late, or not at all, may stand in the very call; it made at least those that it sent before.
    late = {rank for rank, inspection in ranks.items() if inspection.by != "agent"}
    meets = {rank: name for rank in ranks if (name := _collective(ranks[rank]) or seen.get(rank, ""))}
    stands_in = {rank: name for rank, name in meets.items() if rank in late or rank not in known}
    idle = frozenset(rank for rank in there if not _is_in_call(ranks.get(rank)))
    members = {group: _members(group, groups, world) for group in {name for each in groups.values() for name in each}}

    @functools.cache
    def missing(group: str, number: int, op: str) -> tuple[frozenset[int], frozenset[int]]:
        """Return the members that have not made a call, and those of which that is not known."""
        of = members.get(group, frozenset(range(world)))
        behind = frozenset(other for other in of & known if not _has_made(groups[other].get(group), number, op))
        inside = frozenset(other for other, name in stands_in.items() if name in op or op in name)
        return behind - late | (of & away), (of - known | behind & late) - inside - away

    waits: dict[int, tuple[Wait, ...]] = {}
    for rank, inspection in sorted(ranks.items()):
        found = []
        for call in inspection.open:
            if call.op != NEW_GROUP and (not call.number or call.op in _POINT_TO_POINT):
                # Which of them it is for is not known.
                found.append(Wait(rank, call, unknown=idle - {rank} or away))
                continue
            behind, unknown = missing(call.group, call.number, call.op)
            function = meets.get(rank, "") if call.blocking else ""
            function = function if call.op == NEW_GROUP or re.search("object|mesh", function) else ""
            found.append(Wait(rank, call, behind - {rank}, unknown - {rank}, function))
        if not found and rank in meets and _MEETING.match(meets[rank]):
            found.append(_met(rank, meets[rank], idle - meets.keys()))
        if found:
            waits[rank] = tuple(found)
    if not waits:
        waits = {rank: (_met(rank, name, there - meets.keys()),) for rank, name in meets.items()}
        return _concluded(waits, by_stacks=True) if waits else Waits()
    return _concluded(waits)


def _concluded(waits: dict[int, tuple[Wait, ...]], *, by_stacks: bool = False) -> Waits:
    edges = {rank: frozenset().union(*(wait.on for wait in each)) for rank, each in waits.items()}
    waiting = {rank for rank, on in edges.items() if on}
    reached = frozenset().union(*(edges[rank] for rank in waiting)) if waiting else frozenset()
    causes = frozenset(reached - waiting)
    # A call whose completion is not reported may be complete, where nobody is missing in it.
    complete = tuple(wait for each in waits.values() for wait in each if not wait.on and wait.call.sure)
    # Who has entered a call that all have entered waits for its end, unless others wait for it elsewhere.
    circle = frozenset(waiting & reached) if not causes else frozenset()
    return Waits(waits, causes, circle, complete if not causes else (), by_stacks)


_MEETING: Final = re.compile(r"new_group|new_subgroups|split_group|init_device_mesh|store")
"""Functions by which ranks meet without a collective."""


def _met(rank: int, function: str, outside: frozenset[int]) -> Wait:
    """Return the wait of a rank that is in a function by its stack alone: for those that are in none."""
    return Wait(rank, OpenCall(function, "", 0, 0, 0, blocking=True), unknown=outside)


def _collective(inspection: Inspection) -> str:
    return place_of(main_thread(inspection)).collective


def _is_in_call(inspection: Inspection | None) -> bool:
    return inspection is not None and bool(inspection.open)


def _has_made(calls: GroupCalls | None, number: int, op: str) -> bool:
    return calls is not None if op == NEW_GROUP else (0 if calls is None else calls.calls) >= number


def _members(group: str, groups: Mapping[int, Mapping[str, GroupCalls]], world: int) -> frozenset[int]:
    told = [each[group] for each in groups.values() if group in each]
    named = next((calls.ranks for calls in told if calls.ranks), ())
    if named:
        return frozenset(named)
    # Of the default group all are members; of another one whose members are not known, those that know it.
    return (
        frozenset(range(world))
        if group == DEFAULT_GROUP
        else frozenset(r for r, each in groups.items() if group in each)
    )


BARRIERS: Final = frozenset({"barrier", "monitored_barrier"})


def mismatch_of(ranks: Mapping[int, Inspection]) -> Mismatch | None:
    """Return the first difference in the newest calls of a group whose calls do not complete; None where none is."""
    names = sorted({call.group for inspection in ranks.values() for call in inspection.open})
    for name in names:
        calls = {
            rank: found
            for rank, inspection in ranks.items()
            if inspection.observed and (found := _calls(inspection, name)) is not None
        }
        stand = {call.number for each in ranks.values() for call in each.open if call.group == name}
        if len(calls) > 1 and (mismatch := difference(name, calls, stand)) is not None:
            return mismatch
    return None


def is_usual(call: OpenCall, inspection: Inspection) -> bool:
    """Say whether a rank has made a call like its open one before, as far as its newest calls show."""
    group = _calls(inspection, call.group)
    return group is not None and sum((each.op, each.bytes) == (call.op, call.bytes) for each in group.recent) > 1


def _calls(inspection: Inspection, name: str) -> GroupCalls | None:
    return next((group for group in inspection.groups if group.group == name and group.recent), None)
