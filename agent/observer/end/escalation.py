"""End what belongs to a run, rung by rung: TERM, a grace period, KILL, and a count of who survives.

Who belongs to it is asked again and again: what a process forks while it is being ended is ended too.  What is
still there some seconds after the KILL is named as a survivor.  Also single signals, for those who want no escalation.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import psutil

from ddptop.agent.observer.end.processes import ROLES, Target, find, send
from ddptop.agent.run.identity import STOPPED
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, is_alive
from ddptop.agent.text import plural

Progress = Callable[[str], None]
"""Takes one line on what is being done."""

_KILL_PATIENCE_S: Final = 5.0
"""How long the dead may take to go after SIGKILL, before they count as survivors."""
_LAST_S: Final = 0.4
"""How long torchrun may stay when nobody else is left."""
_LOOK_S: Final = 0.03

FOR_ALL: Final = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT})
"""Signals whose effect no program can refuse: half a group killed or stopped is of no use, so helpers get them too.

A program may handle SIGCONT, but goes on all the same.
"""


class NotOurs(ValueError):
    """What was to be ended is not there, or is none of the run's; one line for the user."""


class Survived(Exception):
    """Something was asked to end and has not; one line for the user, with what is left and what to do about it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an ending has ended, and what it could not."""

    ranks: int
    helpers: int
    """Data workers and all other children."""
    survivors: tuple[str, ...] = ()
    """One text each: which process, and why it is still there."""
    left: frozenset[int] = frozenset()
    """Their numbers."""

    @property
    def text(self) -> str:
        """Say it in one line."""
        left = f"{len(self.survivors)} left" + "".join(f"; {survivor}" for survivor in self.survivors)
        return f"{plural(self.ranks, 'rank')} and {plural(self.helpers, 'helper')} ended, {left}"

    def text_of(self, process: Process) -> str:
        """Say it of one process in one line."""
        return f"process {process.pid}: {'; '.join(self.survivors) or 'ended, 0 left'}"


def end(
    directory: RunDir, run: Run, grace_s: float, progress: Progress, countdown: Progress = lambda line: None
) -> Outcome:
    """End a run: TERM by way of torchrun, a grace period, KILL to all that is left.

    Returns once nothing is left, or a few seconds after the KILL with the names of the survivors.

    Args:
        directory: where the ranks say who they are.
        run: what to end.
        grace_s: seconds between TERM and KILL.
        progress: told of every rung.
        countdown: told who is left and when the next rung comes; each line replaces the one before.
    """
    alone_at: float | None = None

    def scan() -> list[Target]:
        nonlocal alone_at
        targets = find(run, directory.members())
        if any(target.role != "torchrun" for target in targets):
            alone_at = None
        elif alone_at is None:
            alone_at = time.monotonic()
        elif time.monotonic() - alone_at > _LAST_S:
            # With its ranks gone torchrun has nothing to put in order, but takes a second or two to leave.
            for target in targets:
                send(target.process, signal.SIGKILL)
        return targets

    def ask(targets: list[Target]) -> list[Target]:
        # torchrun hands the signal on to its ranks, and they look after their own helpers, while they live and run.
        leader = [target for target in targets if target.role == "torchrun" and target.status not in STOPPED]
        others = [target for target in targets if target.adrift or target.status in STOPPED]
        return leader + others if leader else targets

    return _climb(scan, ask, grace_s, progress, countdown)


def end_rank(
    directory: RunDir, run: Run, rank: int, grace_s: float, progress: Progress, countdown: Progress = lambda line: None
) -> Outcome:
    """End one rank and the helpers below it; torchrun will then end the others, or start them anew.

    Raises:
        NotOurs: there is no such rank, or it is over.
    """
    member = directory.members().get(rank)
    if member is None:
        raise NotOurs(f"rank {rank}: not in this run, or not started yet (world {run.world})")
    if not is_alive(member.process):
        raise NotOurs(f"rank {rank}: already ended")
    known: dict[Process, Target] = {}

    def scan() -> list[Target]:
        # Helpers lose their parent when the rank goes: those seen once stay on the list.
        known.update({target.process: target for target in _of_rank(run, rank, member)})
        return [target for target in known.values() if is_alive(target.process)]

    def ask(targets: list[Target]) -> list[Target]:
        return [target for target in targets if target.role == "rank"] or targets

    return _climb(scan, ask, grace_s, progress, countdown)


def end_process(
    directory: RunDir,
    run: Run,
    process: Process,
    grace_s: float,
    progress: Progress,
    countdown: Progress = lambda line: None,
) -> Outcome:
    """End one process of the run, and it alone.

    Raises:
        NotOurs: it is none of the run's, or over.
    """
    target = one(run, directory.members(), process)
    return _climb(lambda: _still([target]), lambda targets: targets, grace_s, progress, countdown)


def one(run: Run, members: Mapping[int, Member], process: Process) -> Target:
    """Return what is known of exactly this process of the run.

    Raises:
        NotOurs: it is none of the run's, or over.
    """
    for target in find(run, members):
        if target.process.pid == process.pid and is_alive(process):
            return target
    raise NotOurs(f"process {process.pid}: not of run {run.run}, or gone; `ddptop kill {run.run}` ends all of it")


def signal_targets(
    run: Run, members: Mapping[int, Member], number: int, rank: int | None = None, process: Process | None = None
) -> list[Target]:
    """Return who gets a signal that is meant for the run, for one rank, or for one process.

    What a program may handle goes to the ranks alone, since a data worker that knows nothing of
    it would die; what nobody can handle goes to all.

    Raises:
        NotOurs: nobody is there.
    """
    if process is not None:
        return [one(run, members, process)]
    targets = find(run, members)
    if rank is not None:
        targets = [target for target in targets if target.rank == rank]
    chosen = [target for target in targets if number in FOR_ALL or target.role == "rank"]
    if not chosen:
        raise NotOurs(f"{'run ' + run.run if rank is None else f'rank {rank}'}: no process to send that to")
    return chosen


def deliver(targets: list[Target], number: int) -> str:
    """Send a signal to each and say in one line who got it.

    Raises:
        NotOurs: nobody got it.
    """
    got = [target for target in targets if send(target.process, number)]
    if not got:
        raise NotOurs("; ".join(f"{_who(target)}: {_why(target)}" for target in targets))
    missed = len(targets) - len(got)
    return f"{signal_name(number)} to {_names(got)}" + (f", {missed} could not be reached" if missed else "")


def signal_name(number: int) -> str:
    """Return the name of a signal, its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _of_rank(run: Run, rank: int, member: Member) -> list[Target]:
    # Without marker, torchrun and supervisor, what is found is this rank and what stands below it.
    return find(msgspec.structs.replace(run, run_id="", torchrun=None, supervisor=None, world=1), {rank: member})


def _still(targets: list[Target]) -> list[Target]:
    return [target for target in targets if is_alive(target.process)]


def _climb(
    scan: Callable[[], list[Target]],
    ask: Callable[[list[Target]], list[Target]],
    grace_s: float,
    progress: Progress,
    countdown: Progress,
) -> Outcome:
    seen: dict[Process, Target] = {}
    told: set[Process] = set()
    said = ""
    deadline = time.monotonic() + grace_s
    while targets := _note(scan(), seen):
        fresh = [target for target in ask(targets) if target.process not in told]
        if fresh:
            progress(f"SIGTERM to {_names(fresh)}")
        for target in fresh:
            send(target.process, signal.SIGTERM)
            told.add(target.process)
            if target.status in STOPPED:
                # What is stopped can end in order only once it runs; the TERM waits for it.
                send(target.process, signal.SIGCONT)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            progress(f"SIGKILL to {_names(targets)}, still there after {grace_s:g} s")
            break
        line = f"{_names(targets)} left, KILL in {math.ceil(left_s)} s"
        if line != said:
            said = line
            countdown(line)
        time.sleep(_LOOK_S)
    # Whoever forks while being killed leaves a child behind: look again until there is none.
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while targets and time.monotonic() < deadline:
        for target in targets:
            send(target.process, signal.SIGKILL)
        time.sleep(_LOOK_S)
        targets = _note(scan(), seen)
        countdown(f"{_names(targets)} left after KILL" if targets else "")
    countdown("")
    left = {target.process for target in targets}
    ended = [target.role for process, target in seen.items() if process not in left]
    survivors = tuple(f"{_who(target)} ({_why(target)})" for target in targets)
    return Outcome(ended.count("rank"), ended.count("helper"), survivors, frozenset(process.pid for process in left))


def _note(targets: list[Target], seen: dict[Process, Target]) -> list[Target]:
    for target in targets:
        # A rank that has lost its torchrun before it reported must stay a rank in the count.
        seen.setdefault(target.process, target)
    return targets


def _who(target: Target) -> str:
    return f"{target.name} with pid {target.process.pid}"


def _why(target: Target) -> str:
    if os.geteuid() not in (0, target.uid):
        return f"belongs to user {target.uid}, no permission to end it"
    return {
        psutil.STATUS_DISK_SLEEP: "in an uninterruptible wait of the kernel, for a disk or a device",
        psutil.STATUS_STOPPED: "stopped",
        psutil.STATUS_TRACING_STOP: "held by a debugger",
    }.get(target.status, f"{target.status}, too slow to go")


def _names(targets: list[Target]) -> str:
    if len(targets) == 1:
        return f"{targets[0].name} (pid {targets[0].process.pid})"
    roles = [target.role for target in targets]
    leader = [target.name for target in targets if target.role == "torchrun"]
    parts = [plural(roles.count(role), role) for role in ROLES[1:] if role in roles]
    return " and ".join(leader + parts)
