"""The lines that say of a hang who is the cause, what the others wait in, and on which line each stands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ddptop.agent.end.mismatch import DEFAULT_GROUP, Mismatch
from ddptop.agent.observer.judge.hang.classes import Cause
from ddptop.agent.observer.judge.hang.place import Place
from ddptop.agent.observer.judge.hang.waits import NEW_GROUP, Wait
from ddptop.agent.text import plural, size
from ddptop.agent.wire import Inspection, OpenCall, PastCall

_MOST_NAMED: Final = 3
"""Ranks that are named one by one; of more, the number is given."""


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
    """Return `all_reduce 4 MiB (group tp)`, `new_group`."""
    group = group_of(wait)
    return f"{wait.function or called(wait.call)}{f' ({group})' if group else ''}"


def group_of(wait: Wait) -> str:
    """Return `group tp`; empty of the default group, and of one that is being made."""
    return "" if wait.call.group in (DEFAULT_GROUP, "") or wait.call.op == NEW_GROUP else f"group {wait.call.group}"


def called(call: PastCall | OpenCall) -> str:
    """Return `all_reduce 4 MiB`, `barrier`."""
    return f"{call.op} {size(call.bytes)}" if call.bytes else call.op


def waiting(wait: Wait, ranks: Collection[int], members: int, place: Place) -> str:
    """Return the whole of it: `all_reduce 4 MiB, default group, 3 of 4 ranks, train.py:40`."""
    group = "default group" if wait.call.group == DEFAULT_GROUP else group_of(wait)
    parts = (wait.function or called(wait.call), group, f"{len(ranks)} of {plural(members, 'rank')}", place.line)
    return ", ".join(part for part in parts if part)


def accusation(
    causes: Sequence[Cause], wait: Wait | None, waiters: Collection[int], world: int, *, never_entered: bool = False
) -> str:
    """Return the line about ranks that do not come, all of the same class, without the time.

    Args:
        causes: these ranks.
        wait: a wait for them; None where the others wait in nothing.
        waiters: the ranks that wait.
        world: number of ranks of the run.
        never_entered: whether it is known of all of them that they are not in the call of `wait`.
    """
    ranks, first = [cause.rank for cause in causes], causes[0]
    who, hang = named(ranks, world), verb(ranks, "hangs", "hang")
    alike = all(cause.says == first.says for cause in causes)
    says = first.says or ("" if wait is not None and never_entered else "stands still")
    says = says if len(ranks) == 1 or not alike else _of_several(says)
    subject = "it" if len(ranks) == 1 else "they" if alike else f"rank {first.rank}"
    where = f" · {first.place.where}" if first.place.where else ""
    if wait is None:
        return f"{who} {hang}: {subject} {says}{where}"
    wait_for = f"{named(waiters, world)} {verb(waiters, 'waits', 'wait')}"
    if first.kind in ("gone", "left_early"):
        return f"{who} {says}, and {wait_for} for {verb(ranks, 'it', 'them')} in {in_words(wait)}"
    if not never_entered:
        return f"{who} {hang}: {subject} {says}; {wait_for} in {in_words(wait)}{where}"
    does = f"{says} and " if says and subject != f"rank {first.rank}" else f"{says}; they " if says else ""
    return f"{who} {hang}: {subject} {does}never entered {in_words(wait)}, in which {wait_for}{where}"


def missed(causes: Sequence[Cause], wait_for: str, meeting: Place, world: int) -> str:
    """Return the line about ranks that do not come to the meeting of all, where `wait_for` says who waits."""
    ranks, first = [cause.rank for cause in causes], causes[0]
    says = first.says if first.says and all(cause.says == first.says for cause in causes) else "does not come"
    says = says if len(ranks) == 1 else _of_several(says)
    where = f" · {first.place.where}" if first.place.where else ""
    at = f" ({meeting.line})" if meeting.line else ""
    return (
        f"{named(ranks, world)} of {world} {says}: {wait_for} for {verb(ranks, 'it', 'them')} "
        f"in init_process_group{at}{where}"
    )


def _of_several(says: str) -> str:
    """Return `sleep` for `sleeps`, `are stopped` for `is stopped`."""
    first, _, rest = says.partition(" ")
    if not first:
        return ""
    several = {"is": "are", "has": "have", "does": "do"}.get(first) or re.sub(r"s(,?)$", r"\1", first)
    return f"{several} {rest}".strip()


def difference(mismatch: Mismatch, lines: Mapping[int, str], world: int) -> str:
    """Return the line about ranks that called different collectives, and where; those that differ from the usual first.

    Args:
        mismatch: the calls.
        lines: by rank, the user's line that has called.
        world: number of ranks of the run.
    """
    by_call: dict[tuple[str, str], list[int]] = {}
    # Where the operations are the same, their inputs differ.
    calls = mismatch.calls.values()
    same = len({call.op for call in calls}) == 1 and all(call.form for call in calls)
    for rank, call in sorted(mismatch.calls.items(), key=lambda each: (each[0] not in mismatch.odd, each[0])):
        by_call.setdefault((call.form if same else called(call), lines.get(rank, "")), []).append(rank)
    parts = [f"{named(ranks, world)} {call}{f' ({line})' if line else ''}" for (call, line), ranks in by_call.items()]
    first = next(iter(by_call.values()))
    op = f" {mismatch.calls[first[0]].op}" if same else ""
    parts[0] = parts[0].replace(named(first, world), f"{named(first, world)} called{op}", 1)
    of = "" if mismatch.group == DEFAULT_GROUP else f" of group {mismatch.group}"
    text = f"{', '.join(parts[:_MOST_NAMED])} as call {mismatch.number:,}{of}"
    if not mismatch.is_ahead:
        return text
    return f"{text}: {named(mismatch.odd, world)} {verb(mismatch.odd, 'is', 'are')} one call ahead"


def in_calls(calls: Mapping[tuple[str, str], Sequence[int]], world: int) -> tuple[str, list[int]]:
    """Return the line about ranks that are in calls by their stacks alone, and the odd ones: fewer than all others.

    Args:
        calls: by call and line, the ranks in it.
        world: number of ranks of the run.
    """
    groups = sorted(calls.items(), key=lambda each: len(each[1]))
    parts = []
    for (call, line), ranks in groups[:_MOST_NAMED]:
        stands = f"{named(ranks, world)} {verb(ranks, 'stands', 'stand')} in {call}"
        parts.append(f"{stands} ({line})" if line else stands)
    if len(groups) == 1:
        return f"{parts[0]}, and it does not end: the network, or one is a call ahead", []
    odd = list(groups[0][1]) if len(groups[0][1]) < len(groups[-1][1]) and len(groups) == 2 else []
    return f"{', '.join(parts)}: they wait for each other", odd


def locks(inspections: Iterable[Inspection]) -> str:
    """Return a lock for which a thread of these ranks waits, with its holder where that is known; empty without any."""
    found = [(each.rank, thread) for each in inspections for thread in each.threads if thread.lock]
    if not found:
        return ""
    rank, thread = found[0]
    others = sorted({other for other, _ in found} - {rank})
    likewise = f"; likewise in rank {others[0]}" if others else ""
    return f"rank {rank}'s {thread.name} waits for the lock {thread.lock}{likewise}"


def raised(rank: int, exception: str, stands: str, waiters: Collection[int], world: int) -> str:
    """Return the line about a rank that has raised an exception, and does not end because of what handles it."""
    waits = f"; {named(waiters, world)} {verb(waiters, 'waits', 'wait')}" if waiters else ""
    return f"rank {rank} raised {exception}, and {stands} while that is handled{waits}"


def left_out(ranks: Collection[int], wait: Wait | None, waiters: Collection[int], world: int) -> str:
    """Return the line about ranks that make steps without a collective in which others wait."""
    call = "a collective" if wait is None else in_words(wait)
    steps = f"{named(ranks, world)} {verb(ranks, 'makes its', 'make their')} steps without {call}"
    return f"{steps}, in which {named(waiters, world)} {verb(waiters, 'waits', 'wait')}"


def circle(ranks: Collection[int], first: Wait, other: Wait, world: int) -> str:
    """Return the line about ranks that wait for each other in different calls."""
    return (
        f"{named(ranks, world)} wait for each other: rank {first.rank} in {in_words(first)}, "
        f"rank {other.rank} in {in_words(other)}"
    )


def gone_past(ranks: Collection[int], wait: Wait, world: int) -> str:
    """Return the line about ranks that have left out the call in which another one waits, and all wait by now."""
    return f"{named(ranks, world)} went on without {in_words(wait)}, in which rank {wait.rank} waits; now all wait"


def strange(ranks: Collection[int], wait: Wait, world: int) -> str:
    """Return the line about ranks that are in a call as they have not made before, while others are in usual ones."""
    return f"{named(ranks, world)} entered {in_words(wait)}, which others do not call; they wait for each other"


def at_work(causes: Sequence[Cause], waiters: Collection[int], world: int) -> str:
    """Return the line about ranks that others wait for because they work, without the time."""
    first = causes[0]
    where = f" ({first.place.where})" if first.place.where else ""
    more = f", as {plural(len(causes) - 1, 'other')}" if len(causes) > 1 else ""
    return f"rank {first.rank} {first.says}{where}{more}; {named(waiters, world)} {verb(waiters, 'waits', 'wait')}"
