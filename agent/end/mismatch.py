"""The first difference in the calls that ranks have made of a group. Pure.

Calls repeat from step to step: the calls before the difference have been followed by the right one earlier, which shows
whose is wrong.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ddptop.agent.wire import GroupCalls, PastCall

DEFAULT_GROUP: Final = "0"
"""The name of the default group."""
_SAME_SIZE: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce_coalesced"}
)
"""Collectives to which all ranks give as many bytes; of others they may differ."""
_SAME_WHERE_IT_STANDS: Final = frozenset({"all_gather", "gather", "scatter"})
"""Of these some backends take unequal sizes, and others do not complete them."""


@dataclass(frozen=True)
class Mismatch:
    """The number of a group at which ranks called different collectives."""

    group: str
    number: int
    calls: dict[int, PastCall]
    """By rank."""
    odd: frozenset[int]
    """The ranks that called something else than what was due, or than most of them; empty where that is not known."""
    is_ahead: bool = False
    """True where what these called has always come after what was due: they have left that out."""


def difference(name: str, calls: Mapping[int, GroupCalls], stand: Collection[int]) -> Mismatch | None:
    """Return the first difference in the newest calls of a group, by rank; `stand`: numbers that do not complete."""
    by_number = {
        rank: dict(enumerate(group.recent, group.calls - len(group.recent) + 1)) for rank, group in calls.items()
    }
    for number in sorted({number for each in by_number.values() for number in each}):
        at = {rank: each[number] for rank, each in by_number.items() if number in each}
        if len({_kind(call, exact=number in stand) for call in at.values()}) > 1:
            odd = _odd(number, at, by_number)
            return Mismatch(name, number, at, odd, bool(odd) and _is_ahead(number, at, odd, by_number))
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


def _is_ahead(
    number: int, at: Mapping[int, PastCall], odd: frozenset[int], by_number: Mapping[int, Mapping[int, PastCall]]
) -> bool:
    due = {_kind(call) for rank, call in at.items() if rank not in odd}
    calls = [_kind(call) for each, call in sorted(by_number[min(odd)].items()) if each < number]
    after = {then for call, then in itertools.pairwise(calls) if call in due}
    return bool(after) and after == {_kind(at[rank]) for rank in odd}


def _due(number: int, calls: Mapping[int, PastCall]) -> tuple[str, int] | None:
    """Return what followed the last time after the calls before `number`, by as many of them as have come before."""
    before = [_kind(calls[each]) for each in sorted(calls) if each < number]
    for length in range(len(before) - 1, 0, -1):
        tail = before[-length:]
        for end in range(len(before) - 1, length - 1, -1):
            if before[end - length : end] == tail:
                return before[end]
    return None
