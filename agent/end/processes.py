"""Finding the processes of a run that are visible from here.

A process belongs to a run when it descends from torchrun, a rank or the observer, when it is in a
session that one of the first two leads, or when its owner is the run's and its environment
carries the run's marker.  A process without any of these is not found; the caller and its ancestors
are left out, but for ancestors of the observer.  A job that nobody prepared carries no marker: there the variables that
torchrun has drawn for it take its place, and processes that were seen as the job's before.  A script that has started
such a job, and a shell between the two, belong to it as long as they have started nothing else that lives: the next
trial is another job.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ddptop.agent.run import identity
from ddptop.agent.run.identity import Row, is_alive
from ddptop.agent.run.rundir import DIRECTORY_VARIABLE, MARKER, Member, Process, Run
from ddptop.agent.text import masked_words

ROLES: Final = ("torchrun", "rank", "helper")


@dataclass(frozen=True, slots=True)
class Target:
    """One living process of a run."""

    process: Process
    role: str
    """One of `ROLES`; a helper is a data worker or any other child."""
    status: str
    """In psutil's spelling."""
    rank: int | None = None
    """The rank that it is or descends from, None for torchrun and for a helper whose rank has ended."""
    adrift: bool = False
    """True for a helper that has lost its parent, so that no process passes signals on to it."""
    uid: int | None = None
    name: str = ""
    """Its role in messages, which is `the program` instead of `torchrun` where the program spawns its ranks itself."""
    above: bool = False
    """True for a script that has started the run, and for what stands between it and the ranks, a shell for example."""


def find(run: Run, members: Mapping[int, Member], above: Collection[Process] = ()) -> list[Target]:
    """Return every living process of a run, torchrun first, then the ranks.

    The caller, its ancestors and the run's observer are not among them; where the observer is the caller, its
    ancestors may be.

    Args:
        run: the run.
        members: the records of its ranks.
        above: those that were found above the ranks before: each of them still belongs to the run when what it has
            started has ended, but not once it has started anything else.
    """
    table = identity.table()
    observer = run.observer.pid if run.observer and _is_in(table, run.observer) else None
    # In a container, a process of the run may be the first one there, and so the parent of the run's own observer.
    spared = {os.getpid()} if observer == os.getpid() else set(lineage(os.getpid(), table))
    if observer is not None:
        spared.add(observer)
    ranks = {member.process.pid: rank for rank, member in members.items() if _is_in(table, member.process)}
    roles = dict.fromkeys(ranks, "rank")
    if run.torchrun and _is_in(table, run.torchrun) and run.torchrun.pid not in spared:
        torchrun = run.torchrun.pid
        # Ranks that have not reported yet: the direct children of torchrun are ranks.
        if len(members) < run.world and not run.outside:
            roles.update({pid: "rank" for pid, row in table.items() if row.parent == torchrun})
        roles[torchrun] = "torchrun"
    roots = roles.keys() - spared
    # A session keeps its id as long as it has a process, whatever became of parents and environments.
    led = {pid for pid in roots if table[pid].session == pid}
    known = {process.pid for process in run.known if _is_in(table, process) and run.owner == table[process.pid].uid}
    for pid, row in table.items():
        if pid not in roles and (row.session in led or pid in known or _is_marked(row, run)):
            roles[pid] = "helper"
    # Processes that have lost their parent are children of the observer, but for those of a job seen from outside.
    adopting = {observer} if observer is not None and not run.outside else set()
    starter = run.starter.pid if run.starter is not None and _is_in(table, run.starter) else None
    children = _children(table)
    for pid in _below((roles.keys() - spared - {starter}) | adopting, children):
        roles.setdefault(pid, "helper")
    before = {process.pid for process in above if _is_in(table, process)}
    upper: set[int] = set()
    for pid in before if starter is None else before | {starter}:
        if _has_started_only(roles.keys(), pid, children, before):
            upper |= ({pid} | _below({pid}, children)) - roles.keys()
    roles |= dict.fromkeys(upper, "helper")
    if starter in roles:
        roles[starter] = "torchrun"
    found = roles.keys() - spared
    names = {"torchrun": run.leader}
    targets = [
        replace(_target(table[pid], role, ranks, found, table), name=names.get(role, role), above=pid in upper)
        for pid, role in roles.items()
        if pid in found
    ]
    return sorted(targets, key=lambda target: ROLES.index(target.role))


def _target(row: Row, role: str, ranks: Mapping[int, int], found: Iterable[int], table: Mapping[int, Row]) -> Target:
    above = [pid for pid in lineage(row.process.pid, table) if pid in ranks]
    return Target(
        row.process,
        role,
        row.status,
        rank=ranks[above[0]] if above else None,
        adrift=role == "helper" and row.parent not in found,
        uid=row.uid,
    )


def find_torchrun(run: Run) -> Process | None:
    """Return the torchrun of a run whose observer was killed before it recorded that process."""
    for pid, row in identity.table().items():
        # The command in the record has masks for secrets, that of the process has not.
        if _is_marked(row, run) and masked_words(identity.command(pid)) == masked_words(run.command):
            return row.process
    return None


def marked_by(folder: Path) -> set[str]:
    """Return the ids of the runs to which processes of this user belong that have this folder for that of their run."""
    found = set()
    for pid, row in identity.table().items():
        if row.uid == os.getuid() and identity.carries(pid, DIRECTORY_VARIABLE, str(folder)):
            found.add(identity.variable(pid, MARKER))
    return found - {""}


def signal_name(number: int) -> str:
    """Return the name of a signal, its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_in(table: Mapping[int, Row], process: Process) -> bool:
    return process.pid in table and is_alive(process)


def lineage(pid: int, table: Mapping[int, Row]) -> list[int]:
    """Return the pid of a process and those of its ancestors, from the process upwards."""
    line: list[int] = []
    while pid in table and pid not in line:
        line.append(pid)
        pid = table[pid].parent
    return line


def _children(table: Mapping[int, Row]) -> Mapping[int, set[int]]:
    children: defaultdict[int, set[int]] = defaultdict(set)
    for pid, row in table.items():
        children[row.parent].add(pid)
    return children


def _below(roots: Iterable[int], children: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    rest = list(roots)
    while rest:
        fresh = children[rest.pop()] - found
        found |= fresh
        rest.extend(fresh)
    return found


def _has_started_only(
    found: Collection[int], pid: int, children: Mapping[int, set[int]], before: Collection[int]
) -> bool:
    """Say whether all children of a process are among those found, or have started only such.

    It needs one child at least, unless it is among those that were found before.
    """
    return bool(children[pid] or pid in before) and all(
        child in found or _has_started_only(found, child, children, before) for child in children[pid]
    )


def _is_marked(row: Row, run: Run) -> bool:
    if not run.run_id or run.owner not in (None, row.uid):
        return False
    if run.outside:
        held = identity.environment(row.process.pid) if run.marks else {}
        return bool(held) and all(_is_of(held.get(name, ""), mark) for name, mark in run.marks.items())
    return identity.carries(row.process.pid, MARKER, run.run_id)


def _is_of(value: str, mark: str) -> bool:
    """Say whether the value of a variable is a mark, or a path below the folder that the mark is."""
    return value == mark or (mark.endswith("/") and value.startswith(mark))
