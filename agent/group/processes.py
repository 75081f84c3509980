"""Find every process of a run and end it, without ever touching a stranger.

A process belongs to a run when its environment carries the run's marker, or when it stands
below torchrun or a rank in the process tree.  Right before a signal goes out, pid and start
time are compared again, through a pidfd where the platform has them.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import psutil

from ddptop.agent.rundir import MARKER, Member, Process, Run, RunDir, identify, is_alive

Progress = Callable[[str], None]
"""Takes one line on what is being done."""

_KILL_PATIENCE_S: Final = 5.0
"""How long the dead may take to go after SIGKILL, before they count as survivors."""
_STOPPED: Final = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})


@dataclass(frozen=True, slots=True)
class Target:
    """One live process of a run."""

    process: Process
    role: str
    """`torchrun`, `rank` or `helper`."""
    status: str
    """As psutil spells it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an ending has ended, and what it could not."""

    ranks: int
    helpers: int
    """Data workers and all other children."""
    survivors: tuple[str, ...] = ()
    """One text each: which process, and why it is still there."""

    @property
    def text(self) -> str:
        """Say it in one line."""
        left = f"{len(self.survivors)} left" + "".join(f"; {survivor}" for survivor in self.survivors)
        return f"{_count(self.ranks, 'rank')} and {_count(self.helpers, 'helper')} ended, {left}"


def find(run: Run, members: Mapping[int, Member]) -> list[Target]:
    """Return every live process of a run, torchrun first, then the ranks.

    Neither the caller nor anything above it is ever among them, nor the run's supervisor.
    """
    table = _table()
    spared = _line_of(os.getpid(), table)
    if run.supervisor and _is_in(table, run.supervisor):
        spared.add(run.supervisor.pid)
    roles = {}
    for member in members.values():
        if _is_in(table, member.process):
            roles[member.process.pid] = "rank"
    if run.torchrun and _is_in(table, run.torchrun) and run.torchrun.pid not in spared:
        torchrun = run.torchrun.pid
        # Ranks that have not reported yet: what torchrun starts directly is a rank.
        if len(members) < run.world:
            roles.update({pid: "rank" for pid, row in table.items() if row.parent == torchrun})
        roles[torchrun] = "torchrun"
    for pid in table.keys() - roles.keys():
        if _is_marked(pid, run.run_id):
            roles[pid] = "helper"
    for pid in _below(roles.keys() - spared, table):
        roles.setdefault(pid, "helper")
    targets = [Target(table[pid].process, role, table[pid].status) for pid, role in roles.items() if pid not in spared]
    return sorted(targets, key=lambda target: ("torchrun", "rank", "helper").index(target.role))


def end(directory: RunDir, run: Run, grace_s: float, progress: Progress) -> Outcome:
    """End a run: TERM by way of torchrun, a grace period, KILL to all that is left.

    Returns once nothing is left, or a few seconds after the KILL with the names of the survivors.
    """

    def scan() -> list[Target]:
        return find(run, directory.members())

    def ask(targets: list[Target]) -> list[Target]:
        # torchrun hands the signal on to its ranks, and they look after their own helpers.
        leader = [target for target in targets if target.role == "torchrun" and target.status not in _STOPPED]
        return leader or targets

    return _end(scan, ask, grace_s, progress)


def end_rank(directory: RunDir, run: Run, rank: int, grace_s: float, progress: Progress) -> Outcome:
    """End one rank and the helpers below it; torchrun will then end the others.

    Raises:
        ValueError: there is no such rank, or it is over.
    """
    member = directory.members().get(rank)
    if member is None:
        raise ValueError(f"rank {rank}: not in this run, or not started yet (world {run.world})")
    if not is_alive(member.process):
        raise ValueError(f"rank {rank}: already ended")
    # Without marker and torchrun, what is found is this rank and what stands below it.
    only = msgspec.structs.replace(run, run_id="", torchrun=None)
    known: dict[int, Target] = {}

    def scan() -> list[Target]:
        # Helpers lose their parent when the rank goes: those seen once stay on the list.
        known.update({target.process.pid: target for target in find(only, {rank: member})})
        return [target for target in known.values() if is_alive(target.process)]

    def ask(targets: list[Target]) -> list[Target]:
        return [target for target in targets if target.role == "rank"] or targets

    return _end(scan, ask, grace_s, progress)


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; False when it is gone or its number is somebody else's."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        # No pidfds on this platform: the time between look and signal cannot be closed.
        return is_alive(process) and _kill(process.pid, number)
    try:
        # The handle holds on to one process; only then is it worth asking which one.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def _end(
    scan: Callable[[], list[Target]],
    ask: Callable[[list[Target]], list[Target]],
    grace_s: float,
    progress: Progress,
) -> Outcome:
    seen: dict[Process, Target] = {}
    told: set[Process] = set()
    deadline = time.monotonic() + grace_s
    while targets := _note(scan(), seen):
        fresh = [target for target in ask(targets) if target.process not in told]
        if fresh:
            progress(f"SIGTERM to {_names(fresh)}")
        for target in fresh:
            send(target.process, signal.SIGTERM)
            told.add(target.process)
        if time.monotonic() >= deadline:
            progress(f"SIGKILL to {_names(targets)}, still there after {grace_s:g} s")
            break
        time.sleep(0.05)
    # Whoever forks while being killed leaves a child behind: look again until there is none.
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while targets and time.monotonic() < deadline:
        for target in targets:
            send(target.process, signal.SIGKILL)
        time.sleep(0.02)
        targets = _note(scan(), seen)
    left = {target.process for target in targets}
    ended = [target.role for process, target in seen.items() if process not in left]
    return Outcome(ended.count("rank"), ended.count("helper"), tuple(_reason(target) for target in targets))


def _note(targets: list[Target], seen: dict[Process, Target]) -> list[Target]:
    for target in targets:
        # A rank that has lost its torchrun before it reported must stay a rank in the count.
        seen.setdefault(target.process, target)
    return targets


def _reason(target: Target) -> str:
    why = {
        psutil.STATUS_DISK_SLEEP: "in an uninterruptible wait of the kernel, for a disk or a device",
        psutil.STATUS_STOPPED: "stopped",
        psutil.STATUS_TRACING_STOP: "held by a debugger",
    }.get(target.status, f"{target.status}, no permission to end it or too slow to go")
    return f"{target.role} with pid {target.process.pid} ({why})"


def _names(targets: list[Target]) -> str:
    if len(targets) == 1:
        return f"{targets[0].role} (pid {targets[0].process.pid})"
    roles = [target.role for target in targets]
    parts = [_count(roles.count(role), role) for role in ("rank", "helper") if role in roles]
    return " and ".join((["torchrun"] if "torchrun" in roles else []) + parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True, slots=True)
class _Row:
    parent: int
    process: Process
    status: str


def _table() -> dict[int, _Row]:
    """Return all live processes; a zombie is none: it holds no memory and takes no signal."""
    table = {}
    for pid in psutil.pids():
        identity = identify(pid)
        if identity is None:
            continue
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                table[pid] = _Row(process.ppid(), identity, process.status())
        except psutil.Error:
            continue
    return table


def _is_in(table: Mapping[int, _Row], process: Process) -> bool:
    return process.pid in table and is_alive(process)


def _line_of(pid: int, table: Mapping[int, _Row]) -> set[int]:
    line = set()
    while pid in table and pid not in line:
        line.add(pid)
        pid = table[pid].parent
    return line


def _below(roots: Iterable[int], table: Mapping[int, _Row]) -> set[int]:
    children = defaultdict(list)
    for pid, row in table.items():
        children[row.parent].append(pid)
    found: set[int] = set()
    rest = list(roots)
    while rest:
        fresh = set(children[rest.pop()]) - found
        found |= fresh
        rest.extend(fresh)
    return found


def _is_marked(pid: int, run_id: str) -> bool:
    if not run_id:
        return False
    try:
        return psutil.Process(pid).environ().get(MARKER) == run_id
    except (psutil.Error, OSError):
        return False


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
