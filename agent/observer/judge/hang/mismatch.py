"""Ranks that called different collectives at the same number of a group, found by their newest calls.

Which of them is wrong is told by what came before: calls repeat from step to step, so that the calls before the
difference have been followed by the right one earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ddptop.agent.wire import GroupCalls, Inspection, OpenCall, PastCall

_SAME_SIZE: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce_coalesced"}
)
"""Collectives to which all ranks give as many bytes; of others they may differ."""
_SAME_WHERE_IT_STANDS: Final = frozenset({"all_gather", "gather", "scatter"})
"""Of these some backends take unequal sizes, and others do not complete them."""
BARRIERS: Final = frozenset({"barrier", "monitored_barrier"})


@dataclass(frozen=True)
class Mismatch:
    """The number of a group at which ranks called different collectives."""

    group: str
    number: int
    calls: dict[int, PastCall]
    """By rank."""
    odd: frozenset[int]
    """The ranks that called something else than what was due, or than most of them; empty where that is not known."""


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
        if len(calls) > 1 and (mismatch := _difference(name, calls, stand)) is not None:
            return mismatch
    return None


def is_usual(call: OpenCall, inspection: Inspection) -> bool:
    """Say whether a rank has made a call like its open one before, as far as its newest calls tell."""
    group = _calls(inspection, call.group)
    return group is not None and sum((each.op, each.bytes) == (call.op, call.bytes) for each in group.recent) > 1


def _calls(inspection: Inspection, name: str) -> GroupCalls | None:
    return next((group for group in inspection.groups if group.group == name and group.recent), None)


def _difference(name: str, calls: Mapping[int, GroupCalls], stand: Collection[int]) -> Mismatch | None:
    by_number = {
        rank: dict(enumerate(group.recent, group.calls - len(group.recent) + 1)) for rank, group in calls.items()
    }
    for number in sorted({number for each in by_number.values() for number in each}):
        at = {rank: each[number] for rank, each in by_number.items() if number in each}
        if len({_kind(call, exact=number in stand) for call in at.values()}) > 1:
            return Mismatch(name, number, at, _odd(number, at, by_number))
    return None


def _kind(call: PastCall, *, exact: bool = True) -> tuple[str, int]:
    counts = call.op in _SAME_SIZE or (exact and call.op in _SAME_WHERE_IT_STANDS)
    return call.op, call.bytes if counts else 0


def _odd(number: int, at: Mapping[int, PastCall], by_number: Mapping[int, Mapping[int, PastCall]]) -> frozenset[int]:
    kinds = Counter(_kind(call) for call in at.values())
    (usual, most), *others = kinds.most_common()
    if others and others[0][1] == most:
        due = _due(number, next(iter(by_number.values())))
        if due is None or due not in kinds:
            return frozenset()
        usual = due
    return frozenset(rank for rank, call in at.items() if _kind(call) != usual)


def _due(number: int, calls: Mapping[int, PastCall]) -> tuple[str, int] | None:
    """Return what followed the last time after the calls before `number`, by as many of them as have come before."""
    before = [_kind(calls[each]) for each in sorted(calls) if each < number]
    for length in range(len(before) - 1, 0, -1):
        tail = before[-length:]
        for end in range(len(before) - 1, length - 1, -1):
            if before[end - length : end] == tail:
                return before[end]
    return None
