"""The lines that say of a hang who is the cause, what the others wait in, and on which line each stands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ddptop.agent.observer.judge.hang.classes import Cause
from ddptop.agent.observer.judge.hang.place import Place
from ddptop.agent.observer.judge.hang.waits import DEFAULT, Wait
from ddptop.agent.text import plural, size
from ddptop.agent.wire import OpenCall, PastCall

_MOST_NAMED: Final = 3
"""Ranks that are named one by one; of more, the number is told."""


def named(ranks: Collection[int], world: int) -> str:
    """Return `rank 1`, `ranks 1 and 3`, `12 ranks`, `all ranks`."""
    if len(ranks) == world and world > 1:
        return "all ranks" if world > 2 else "both ranks"
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) <= _MOST_NAMED:
        return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
    return plural(len(numbers), "rank")


def verb(ranks: Collection[int], singular: str, several: str) -> str:
    """Return the form of a verb for so many ranks."""
    return singular if len(ranks) == 1 else several


def in_words(wait: Wait) -> str:
    """Return `all_reduce 4 MiB (group tp)`."""
    group = "" if wait.call.group in (DEFAULT, "") else f" (group {wait.call.group})"
    return f"{called(wait.call)}{group}"


def called(call: PastCall | OpenCall) -> str:
    """Return `all_reduce 4 MiB`, `barrier`."""
    return f"{call.op} {size(call.bytes)}" if call.bytes else call.op


def waiting(wait: Wait, ranks: Collection[int], members: int, place: Place) -> str:
    """Return the whole of it: `all_reduce 4 MiB, default group, 3 of 4 ranks, train.py:40`."""
    group = {DEFAULT: "default group", "": ""}.get(wait.call.group, f"group {wait.call.group}")
    parts = (called(wait.call), group, f"{len(ranks)} of {plural(members, 'rank')}", place.line)
    return ", ".join(part for part in parts if part)


def accusation(causes: Sequence[Cause], wait: Wait | None, waiters: Collection[int], world: int) -> str:
    """Return the line about ranks that do not come, all for the same reason, without the time."""
    ranks, first = [cause.rank for cause in causes], causes[0]
    who, where = named(ranks, world), f" · {first.place.where}" if first.place.where else ""
    call = "" if wait is None else in_words(wait)
    wait_for = f"{named(waiters, world)} {verb(waiters, 'waits', 'wait')}" if waiters else ""
    if first.kind in ("gone", "left_early"):
        state = first.says if len(ranks) == 1 else first.says.replace("is ", "are ").replace("has ", "have ")
        return f"{who} {state}, and {wait_for} for {verb(ranks, 'it', 'them')} in {call}"
    subject = "it" if len(ranks) == 1 else f"rank {first.rank}"
    if wait is None:
        return f"{who} {verb(ranks, 'hangs', 'hang')}: {subject} {first.says or 'stands still'}{where}"
    they = verb(ranks, "it", "they")
    entered = f"never entered {call}, in which {wait_for}"
    if first.says:
        entered = f"{subject} {first.says}{' and ' if len(ranks) == 1 else '; they '}{entered}"
    else:
        entered = f"{they} {entered}"
    return f"{who} {verb(ranks, 'hangs', 'hang')}: {entered}{where}"


def at_work(causes: Sequence[Cause], waiters: Collection[int], world: int) -> str:
    """Return the line about ranks that others wait for because they work, without the time."""
    first = causes[0]
    where = f" ({first.place.where})" if first.place.where else ""
    more = f", as {plural(len(causes) - 1, 'other')}" if len(causes) > 1 else ""
    return f"rank {first.rank} {first.says}{where}{more}; {named(waiters, world)} {verb(waiters, 'waits', 'wait')}"
