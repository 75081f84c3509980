"""Why a rank that others wait for does not come: by the state of its process, its CPU time and its stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddptop.agent.observer.judge.hang import place
from ddptop.agent.observer.judge.hang.activity import Activity
from ddptop.agent.observer.judge.hang.looks import Look, main_thread, moves, spins_in_user_code, stacks, stands_still
from ddptop.agent.observer.judge.hang.place import NOWHERE, Place, place_of
from ddptop.agent.observer.judge.hang.progress import Progress
from ddptop.agent.observer.judge.standstill import BUSY_S, ENDED_S, LONGEST_S, POLLS_S, SHORT_S, WORK_S
from ddptop.agent.text import size
from ddptop.agent.wire import Frame, Inspection

BUSY: Final = 30.0
"""Percent of a core from which on a process computes: on a machine under load it does not get all of one."""
SPINS: Final = 3
"""Looks at a rank that computes in its own lines alone before it is said to spin."""
IDLE: Final = 5.0
"""Percent of a core below which a process does nothing."""
SWAPS: Final = 100.0
"""Pages a second from a disk from which on a process waits for its own memory."""
STANDS_AT_EXIT: Final = "its process stands in "
"""The beginning of the activity of a rank whose script has ended, and whose process has not."""
_NO_PY_SPY: Final = "py-spy is not installed"
"""In the words in which an inspection says why it has no stacks: the agent of such a rank cannot send any."""
STOPPED: Final = {"stopped": "stopped by SIGSTOP", "tracing-stop": "stopped by a debugger"}

ORDER: Final = (
    "gone", "left_early", "stopped", "lock_held", "working", "spinning", "data", "swapping", "waiting", "not_entered",
    "unknown",
)  # fmt: skip
"""Where several ranks do not come: the kinds that explain the others first. A rank that works explains ranks that only
stand somewhere: they may wait for it outside of any collective."""
SURE: Final = frozenset({"gone", "left_early", "stopped", "lock_held"})
"""Kinds that say of a rank that it is the cause, whatever is known of its calls."""


@dataclass(frozen=True)
class Cause:
    """A rank that others wait for."""

    rank: int
    kind: str
    """A class of `wire.Hang.kind`."""
    says: str
    """The reason, without a subject: `sleeps`; empty where nothing more is known."""
    place: Place = NOWHERE
    sure: bool = True
    evidence: tuple[str, ...] = ()


def cause_of(
    rank: int, looks: Sequence[Look], progress: Progress, now_ns: int, usual: Mapping[str, float], activity: Activity
) -> Cause | None:
    """Return why a rank does not come, None where that is not clear yet.

    Args:
        rank: the rank.
        looks: at two moments at least, oldest first.
        progress: what the heartbeats tell.
        now_ns: the time.
        usual: by function, the seconds for which a rank has stood there before and gone on.
        activity: the work that stacks do not show.
    """
    if progress.has_ended(rank):
        # Its process ends a moment later. The line of a `sys.exit` is in the rank's record.
        said = progress.beats[rank].activity
        by = re.fullmatch(r"its script has ended( by \S+ \(((\S+) ?.*)\))", said)
        says, where = ("has ended", NOWHERE) if by is None else (f"has ended{by[1]}", Place(by[2], by[3]))
        if said.startswith(STANDS_AT_EXIT):
            says = f"has left its script and {said.removeprefix('its process ')}"
        return Cause(rank, "left_early", says, where, evidence=("heartbeat",))
    if rank in progress.gone:
        if progress.age_s(now_ns) < ENDED_S:
            return None
        return Cause(rank, "gone", "is gone", evidence=("process table",))
    if rank not in progress.met and rank not in progress.beats:
        if progress.everyone:
            return Cause(rank, "not_entered", "has not started", evidence=("process table",))
        return Cause(rank, "unknown", "runs on another host", sure=False)
    seen = [look.ranks[rank] for look in looks if rank in look.ranks]
    if not seen:
        return None
    where = next((at for each in reversed(seen) if (at := place_of(main_thread(each))).where), NOWHERE)
    stopped = [each.status in STOPPED for each in seen[-2:]]
    if all(stopped):
        return Cause(rank, "stopped", f"is {STOPPED[seen[-1].status]}", where, evidence=("process state",))
    if stopped[-1]:
        # Since the last look; nothing that was seen before says why it does not come.
        return None
    found: Cause | None = None
    frames = stacks(looks, rank)
    is_silent = progress.silence_s(rank, now_ns) >= SHORT_S
    if all(each.by != "agent" for each in seen) and (is_silent or _holds_lock(seen, frames)):
        found = _silent(rank, seen, looks, where, progress, now_ns, heartbeat=is_silent)
    elif len(frames) >= 2:
        found = _by_stacks(rank, seen, looks, where, progress, now_ns)
    elif len(looks) > SPINS:
        found = Cause(rank, "unknown", "", where, sure=False)
    works = activity.says(rank)
    if found is None or found.kind == "working":
        by_line = found is not None and found.says in ("works", where.does) and where.does not in place.NAMED
        return replace(found, says=works) if found is not None and works and by_line else found
    if works is not None:
        return Cause(rank, "working", works, where, evidence=("bytes and CPU time",)) if works else None
    if found.kind in ("spinning", "lock_held", "unknown"):
        return found
    before = usual.get(where.function)
    if before is not None and progress.age_s(now_ns) < 1.5 * before + 2:
        return Cause(rank, "working", "stands where it has stood before", where)
    return found


def _holds_lock(seen: Sequence[Inspection], frames: Sequence[tuple[Frame, ...]]) -> bool:
    """Say whether a rank held the interpreter lock at all of several looks without executing Python meanwhile.

    A loop of the user's has it nearly always, too, but while it computes; who sleeps has let go of it.
    """
    last = seen[-SPINS:]
    held = len(last) == SPINS and all(any(each.main and each.holds_gil for each in look.threads) for look in last)
    sleeps = all(each.cpu_percent is not None and each.cpu_percent < IDLE for each in last)
    return held and (sleeps or not spins_in_user_code(frames))


def _silent(
    rank: int,
    seen: Sequence[Inspection],
    looks: Sequence[Look],
    where: Place,
    progress: Progress,
    now_ns: int,
    *,
    heartbeat: bool,
) -> Cause:
    """Return the cause of a rank that sends no heartbeat, or is seen to hold the lock: no thread of its can run."""
    last = seen[-1]
    evidence = ["heartbeat"] * heartbeat + (["stacks from outside"] if where.where else [])
    if where.does == place.SAVES and progress.age_s(now_ns) < WORK_S:
        return Cause(rank, "working", place.SAVES, where, evidence=tuple(evidence))
    if (disk := _by_disk(last, where, progress.age_s(now_ns))) is not None:
        return disk
    held = any(thread.holds_gil for thread in last.threads)
    busy = last.cpu_percent is not None and last.cpu_percent >= BUSY
    starved = last.status == "running" and not busy and progress.age_s(now_ns) < BUSY_S
    if starved or not stands_still(stacks(looks, rank)):
        # On a machine under load its agent gets no time either.
        return Cause(rank, "working", "works", where, evidence=tuple(evidence))
    evidence += ["CPU time"] if busy else []
    unseen = " (install py-spy to see the line)" if not where.where and _NO_PY_SPY in last.problem else ""
    if busy and moves(seen) and progress.age_s(now_ns) < max(LONGEST_S, progress.bearable_s):
        # To read a large pickle or table holds the lock for as long as that takes.
        return Cause(rank, "working", "works", where, evidence=tuple(evidence))
    return Cause(
        rank,
        "lock_held",
        f"{'computes, holding' if busy else 'holds'} the interpreter lock{unseen}",
        where,
        held or busy,
        tuple(evidence),
    )


def _by_stacks(
    rank: int, seen: Sequence[Inspection], looks: Sequence[Look], where: Place, progress: Progress, now_ns: int
) -> Cause | None:
    last, age_s = seen[-1], progress.age_s(now_ns)
    frames = stacks(looks, rank)
    beat = progress.beats.get(rank)
    told = None if beat is None or progress.silence_s(rank, now_ns) >= SHORT_S else beat.cpu_percent
    alone = told if last.cpu_percent is None else last.cpu_percent
    if (seen_outside := progress.seen.get(rank)) is not None:
        alone = max(alone or 0.0, seen_outside.busy_percent)
    # A heartbeat counts the data workers, too: a rank that waits for one that computes is not stuck.
    cpu = max(filter(None, (alone, told if where.does == place.LOADS else None)), default=alone)
    evidence = ("stacks" if last.by == "agent" else "stacks from outside", *(["CPU time"] if cpu is not None else []))
    working = Cause(rank, "working", where.does or "works", where, evidence=evidence)
    if cpu is not None and cpu >= BUSY and where.does != place.LOADS and spins_in_user_code(frames):
        if len(frames) < SPINS:
            return None
        if where.takes_long and age_s < max(WORK_S, progress.bearable_s):
            return working
        says = f"computes without end ({cpu:.0f}% CPU)"
        return Cause(rank, "spinning", says, where, age_s >= BUSY_S, evidence)
    if not stands_still(frames[-2:]):
        polls = age_s >= POLLS_S and cpu is not None and cpu < IDLE and stands_still(frames, users_alone=True)
        if not polls:
            return working
    # The CPU time is that of all threads, and the status that of the main one.
    most_s = POLLS_S if last.status == "sleeping" and where.does != place.LOADS else LONGEST_S
    if cpu is not None and cpu >= BUSY and age_s < max(most_s, progress.bearable_s):
        return working
    if (disk := _by_disk(last, where, age_s)) is not None:
        return disk
    if last.status == "running" and age_s < BUSY_S:
        # Ready to run, and not running: the machine is under load.
        return working
    if where.takes_long and age_s < max(WORK_S, progress.bearable_s):
        return working
    if where.does == place.LOADS:
        # A slow storage looks the same for a while.
        return Cause(rank, "data", place.LOADS, where, age_s >= POLLS_S, evidence)
    if where.does in place.WAITING:
        # Who waits for another thread waits for ever for one that has died.
        died = f" (its {last.dead_thread})" if last.dead_thread and where.does in place.FOR_THREADS else ""
        main = main_thread(last)
        lock = f"waits for the lock {main.lock}" if main is not None and main.lock else ""
        return Cause(rank, "waiting", (lock or where.does) + died, where, evidence=evidence)
    if not where.does and where.source and last.status == "sleeping":
        # In a call of C that its line makes, and not in a sleep.
        return Cause(rank, "waiting", place.WAITS, where, evidence=evidence)
    return Cause(
        rank, "not_entered", where.does if where.does in (place.SLEEPS, place.GROUPS) else "", where, evidence=evidence
    )


def _by_disk(last: Inspection, where: Place, age_s: float) -> Cause | None:
    """Return the cause of a rank that waits for a disk: at work at first."""
    swaps = last.page_reads_per_s is not None and last.page_reads_per_s >= SWAPS and bool(last.swapped_bytes)
    if not swaps and last.status != "disk-sleep":
        return None
    says = f"swaps, with {size(last.swapped_bytes or 0)} on the swap device" if swaps else "waits for the disk"
    is_slow = age_s < (WORK_S if where.takes_long else BUSY_S)
    return Cause(last.rank, "working" if is_slow else "swapping", says, where, True, ("process state",))
