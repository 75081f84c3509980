"""Ending the processes of a run in stages: SIGTERM, a grace period, SIGKILL, and a count of the survivors.

The processes of the run are looked up again and again, so that those forked meanwhile are ended too.  A process that
lives some seconds after the SIGKILL is reported as a survivor.  This module also sends single signals.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ddptop.agent.end.processes import ROLES, Target, find, signal_name
from ddptop.agent.run.identity import STATUS_DISK_SLEEP, STATUS_STOPPED, STATUS_TRACING_STOP, STOPPED, send
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, is_alive
from ddptop.agent.text import plural

Progress = Callable[[str], None]
"""Receives one line on the progress of an ending."""

OTHER_HOSTS: Final = "other hosts"
"""Stands for hosts of which nothing was ever heard."""
_MOST_NAMED: Final = 4
_KILL_PATIENCE_S: Final = 5.0
"""Seconds after SIGKILL from which on a process counts as a survivor."""
_LAST_S: Final = 0.4
"""Seconds that torchrun may live on after the last of the other processes."""
_LOOK_S: Final = 0.03
_SOUGHT_OUTSIDE: Final = " (of what was seen as its processes, and of what they started)"
_SOUGHT: Final = " (of what they started, or what has the run's mark in its environment)"
"""A job started by hand may leave a process behind that has neither parent nor environment any more."""

FOR_ALL: Final = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT})
"""Signals whose effect no program can refuse; helpers get them too, because half a group killed or stopped is useless.

A program may handle SIGCONT, but continues in any case.
"""


def counted(ranks: int, helpers: int) -> str:
    """Return `2 ranks and 3 helpers`, without a number that is zero; `0 ranks` where there is neither."""
    told = [plural(number, name) for number, name in ((ranks, "rank"), (helpers, "helper")) if number]
    return " and ".join(told) or plural(0, "rank")


class Grace:
    """The time between SIGTERM and SIGKILL. Another thread may cut it short meanwhile."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self.seconds = seconds
        """From its beginning to its end."""
        self._began = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds until it ends, negative after that."""
        return self._began + self.seconds - time.monotonic()

    def cut(self, seconds: float) -> bool:
        """Let it end in so many seconds at the latest; return whether that is earlier than it would have ended."""
        if seconds >= self.left_s:
            return False
        self.seconds = time.monotonic() - self._began + seconds
        return True


class NotOurs(ValueError):
    """The process or rank to be ended does not exist, or does not belong to the run; one line for the user."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an ending: the numbers of ended processes, and the survivors."""

    ranks: int
    helpers: int
    """Data workers and all other children."""
    survivors: tuple[str, ...] = ()
    """A text for each survivor: the process, and why it still lives."""
    left: frozenset[int] = frozenset()
    """Pids of the survivors."""
    sought: str = ""
    """The processes that were looked for, in parentheses, where more may live."""

    @property
    def text(self) -> str:
        """The result in one line."""
        left = f"{len(self.survivors)} left{self.sought}" + "".join(f"; {survivor}" for survivor in self.survivors)
        return f"{counted(self.ranks, self.helpers)} ended, {left}"

    def text_of(self, process: Process) -> str:
        """Return the result for a single process in one line."""
        return f"process {process.pid}: {'; '.join(self.survivors) or 'ended, 0 left'}"


def end(
    directory: RunDir, run: Run, grace: Grace, progress: Progress, countdown: Progress = lambda line: None
) -> Outcome:
    """End a run: SIGTERM by way of torchrun, a grace period, SIGKILL to all processes that are left.

    Returns once nothing is left, or a few seconds after the SIGKILL with the names of the survivors.

    Args:
        directory: the directory of the run, with the records of its ranks.
        run: the run.
        grace: the time between SIGTERM and SIGKILL.
        progress: receives a line at every stage.
        countdown: receives a line on the processes left and the time to SIGKILL, which replaces the last such line.
    """
    alone_at: float | None = None
    seen = set(run.known)
    above: set[Process] = set()

    def scan() -> list[Target]:
        nonlocal alone_at
        known = msgspec.structs.replace(run, known=tuple(seen)) if run.outside else run
        targets = find(known, directory.members(), above)
        # Without a mark, one that loses its parent meanwhile is known from before. A script may begin its next trial.
        for target in targets:
            (above if target.above else seen).add(target.process)
        if any(target.role != "torchrun" for target in targets):
            alone_at = None
        elif alone_at is None:
            alone_at = time.monotonic()
        elif time.monotonic() - alone_at > _LAST_S:
            # Without ranks torchrun has nothing to clean up, but takes a second or two to end.
            for target in targets:
                send(target.process, signal.SIGKILL)
        return targets

    def ask(targets: list[Target]) -> list[Target]:
        # torchrun passes the signal on to its ranks, and living ranks end their own helpers.
        leader = [target for target in targets if target.role == "torchrun" and target.status not in STOPPED]
        others = [target for target in targets if target.adrift or target.status in STOPPED]
        return leader + others if leader else targets

    outcome = _climb(scan, ask, grace, progress, countdown)
    # Of a launched run the observer is the parent of whatever has lost its own.
    return outcome if run.launched else replace(outcome, sought=_SOUGHT_OUTSIDE if run.outside else _SOUGHT)


def end_rank(
    directory: RunDir, run: Run, rank: int, grace_s: float, progress: Progress, countdown: Progress = lambda line: None
) -> Outcome:
    """End one rank and the helpers below it; torchrun will then end the others, or restart the group.

    Raises:
        NotOurs: there is no such rank, or it has ended.
    """
    member = directory.members().get(rank)
    if member is None:
        raise NotOurs(f"rank {rank}: not in this run, or not started yet (world {run.world})")
    if not is_alive(member.process):
        raise NotOurs(f"rank {rank}: already ended")
    known: dict[Process, Target] = {}

    def scan() -> list[Target]:
        # Helpers lose their parent when the rank ends, and are then found only in this table.
        known.update({target.process: target for target in _of_rank(run, rank, member)})
        return [target for target in known.values() if is_alive(target.process)]

    def ask(targets: list[Target]) -> list[Target]:
        return [target for target in targets if target.role == "rank"] or targets

    return _climb(scan, ask, Grace(grace_s), progress, countdown)


def end_process(
    directory: RunDir,
    run: Run,
    process: Process,
    grace_s: float,
    progress: Progress,
    countdown: Progress = lambda line: None,
) -> Outcome:
    """End one process of the run, and no other.

    Raises:
        NotOurs: it does not belong to the run, or has ended.
    """
    target = one(run, directory.members(), process)
    return _climb(lambda: _still([target]), lambda targets: targets, Grace(grace_s), progress, countdown)


def one(run: Run, members: Mapping[int, Member], process: Process) -> Target:
    """Return the target that is exactly this process of the run.

    Raises:
        NotOurs: it does not belong to the run, or has ended.
    """
    for target in find(run, members):
        if target.process.pid == process.pid and is_alive(process):
            return target
    raise NotOurs(f"process {process.pid}: not of run {run.run}, or gone; `ddptop kill {run.run}` ends all of it")


def signal_targets(
    run: Run, members: Mapping[int, Member], number: int, rank: int | None = None, process: Process | None = None
) -> list[Target]:
    """Return the processes that get a signal to the run, to one rank, or to one process.

    A signal that a program may handle goes to the ranks only, since a data worker without a handler
    would die; a signal of `FOR_ALL` goes to all processes.

    Raises:
        NotOurs: there is no such process.
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
    """Send a signal to each target and return one line on those that got it.

    Raises:
        NotOurs: none got it.
    """
    got = [target for target in targets if send(target.process, number)]
    if not got:
        raise NotOurs("; ".join(f"{_who(target)}: {_why(target)}" for target in targets))
    missed = len(targets) - len(got)
    return f"{signal_name(number)} to {_names(got)}" + (f", {missed} could not be reached" if missed else "")


def _of_rank(run: Run, rank: int, member: Member) -> list[Target]:
    # Without marker, torchrun, observer and what was seen before, only this rank and its descendants are found.
    alone = msgspec.structs.replace(run, run_id="", torchrun=None, starter=None, observer=None, known=(), world=1)
    return find(alone, {rank: member})


def _still(targets: list[Target]) -> list[Target]:
    return [target for target in targets if is_alive(target.process)]


def _climb(
    scan: Callable[[], list[Target]],
    ask: Callable[[list[Target]], list[Target]],
    grace: Grace,
    progress: Progress,
    countdown: Progress,
) -> Outcome:
    seen: dict[Process, Target] = {}
    asked: set[Process] = set()
    last_line = ""
    while targets := _note(scan(), seen):
        fresh = [target for target in ask(targets) if target.process not in asked]
        if fresh:
            progress(f"SIGTERM to {_names(fresh)}")
        for target in fresh:
            send(target.process, signal.SIGTERM)
            asked.add(target.process)
        for target in targets:
            # A stopped process gets its SIGTERM only after a SIGCONT; it may have stopped after it was asked.
            if target.status in STOPPED and target.process in asked:
                send(target.process, signal.SIGCONT)
        left_s = grace.left_s
        if left_s <= 0:
            progress(f"SIGKILL to {_names(targets)}, still there after {grace.seconds:.3g} s")
            break
        line = f"{_names(targets)} left, SIGKILL in {math.ceil(left_s)} s"
        if line != last_line:
            last_line = line
            countdown(line)
        time.sleep(_LOOK_S)
    # A process that forks while it is killed leaves a child behind: look again until there is none.
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while targets and time.monotonic() < deadline:
        for target in targets:
            send(target.process, signal.SIGKILL)
        time.sleep(_LOOK_S)
        targets = _note(scan(), seen)
        countdown(f"{_names(targets)} left after SIGKILL" if targets else "")
    countdown("")
    left = {target.process for target in targets}
    # A script that has begun its next trial lives on.
    ended = [target.role for process, target in seen.items() if process not in left and not is_alive(process)]
    survivors = tuple(f"{_who(target)} ({_why(target)})" for target in targets)
    return Outcome(ended.count("rank"), ended.count("helper"), survivors, frozenset(process.pid for process in left))


def _note(targets: list[Target], seen: dict[Process, Target]) -> list[Target]:
    for target in targets:
        # A rank that loses its torchrun before it reports looks like a helper then; its first role counts.
        seen.setdefault(target.process, target)
    return targets


def _who(target: Target) -> str:
    return f"{target.name} with pid {target.process.pid}"


def _why(target: Target) -> str:
    if os.geteuid() not in (0, target.uid):
        return f"belongs to user {target.uid}, no permission to end it"
    return {
        STATUS_DISK_SLEEP: "in an uninterruptible wait of the kernel, for a disk or a device",
        STATUS_STOPPED: "stopped",
        STATUS_TRACING_STOP: "held by a debugger",
    }.get(target.status, f"{target.status}, too slow to go")


def _names(targets: list[Target]) -> str:
    if len(targets) == 1:
        return f"{targets[0].name} (pid {targets[0].process.pid})"
    roles = [target.role for target in targets]
    leader = [target.name for target in targets if target.role == "torchrun"]
    parts = [plural(roles.count(role), role) for role in ROLES[1:] if role in roles]
    return " and ".join(leader + parts)


def unheard(unknown: Mapping[str, int]) -> list[str]:
    """Return `node2 did not answer: 4 ranks unknown` for each such host, of many hosts the first and their number."""
    told = [
        f"{host} {'are not linked' if host == OTHER_HOSTS else 'did not answer'}: {plural(ranks, 'rank')} unknown"
        for host, ranks in unknown.items()
    ]
    if len(told) <= _MOST_NAMED:
        return told
    rest = list(unknown.values())[_MOST_NAMED:]
    ranks = plural(sum(rest), "rank")
    return [*told[:_MOST_NAMED], f"{plural(len(rest), 'further host')} did not answer: {ranks} unknown"]
