"""Find the processes of a run that can be seen from here, and nobody else's, and send them a signal.

A process belongs to a run when it stands below torchrun, a rank or the supervisor, in a
session that one of the first two leads, or when its owner is the run's and its environment
carries the run's marker.  What has left all of these is not found; the caller and what stands above it
is left out.  Right before a signal goes out, pid and start time are compared
again, through a pidfd where the platform has them.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddptop.agent.run import identity
from ddptop.agent.run.files.masking import masked_words
from ddptop.agent.run.identity import Row, is_alive
from ddptop.agent.run.rundir import MARKER, Member, Process, Run

ROLES: Final = ("torchrun", "rank", "helper")


@dataclass(frozen=True, slots=True)
class Target:
    """One live process of a run."""

    process: Process
    role: str
    """Of `ROLES`; a helper is a data worker or any other child."""
    status: str
    """As psutil spells it."""
    rank: int | None = None
    """The rank that it is or stands below, None for torchrun and for whoever has lost its rank."""
    adrift: bool = False
    """True for what has lost its parent: nobody hands a signal on to it."""
    uid: int | None = None
    name: str = ""
    """What it is called: its role, but for a program that starts its ranks itself and so needs no torchrun."""


def find(run: Run, members: Mapping[int, Member]) -> list[Target]:
    """Return every live process of a run, torchrun first, then the ranks.

    Neither the caller nor anything above it is ever among them, nor the run's supervisor.
    """
    table = identity.table()
    spared = set(lineage(os.getpid(), table))
    supervisor = run.supervisor.pid if run.supervisor and _is_in(table, run.supervisor) else None
    if supervisor is not None:
        spared.add(supervisor)
    ranks = {member.process.pid: rank for rank, member in members.items() if _is_in(table, member.process)}
    roles = dict.fromkeys(ranks, "rank")
    if run.torchrun and _is_in(table, run.torchrun) and run.torchrun.pid not in spared:
        torchrun = run.torchrun.pid
        # Ranks that have not reported yet: what torchrun starts directly is a rank.
        if len(members) < run.world:
            roles.update({pid: "rank" for pid, row in table.items() if row.parent == torchrun})
        roles[torchrun] = "torchrun"
    roots = roles.keys() - spared
    # A session keeps its number as long as anybody is in it, whatever became of parents and environments.
    led = {pid for pid in roots if table[pid].session == pid}
    for pid, row in table.items():
        if pid not in roles and (row.session in led or _is_marked(row, run)):
            roles[pid] = "helper"
    # What has lost its parent falls to the supervisor.
    for pid in _below((roles.keys() - spared) | ({supervisor} if supervisor is not None else set()), table):
        roles.setdefault(pid, "helper")
    found = roles.keys() - spared
    names = {"torchrun": run.leader}
    targets = [
        replace(_target(table[pid], role, ranks, found, table), name=names.get(role, role))
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
    """Return the torchrun of a run whose supervisor was killed before it had written down who that is."""
    for pid, row in identity.table().items():
        # The record has a mask for each secret, the process itself has not.
        if _is_marked(row, run) and masked_words(identity.command(pid)) == masked_words(run.command):
            return row.process
    return None


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; False when it is gone, forbidden, or its number is somebody else's."""
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


def _is_in(table: Mapping[int, Row], process: Process) -> bool:
    return process.pid in table and is_alive(process)


def lineage(pid: int, table: Mapping[int, Row]) -> list[int]:
    """Return the number of a process and of all above it, its parent's first."""
    line: list[int] = []
    while pid in table and pid not in line:
        line.append(pid)
        pid = table[pid].parent
    return line


def _below(roots: Iterable[int], table: Mapping[int, Row]) -> set[int]:
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


def _is_marked(row: Row, run: Run) -> bool:
    if not run.run_id or run.owner not in (None, row.uid):
        return False
    return identity.carries(row.process.pid, MARKER, run.run_id)


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
