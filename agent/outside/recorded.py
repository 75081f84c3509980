"""A group that nobody prepared as the records of a run: with a directory it is met as any other."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.outside.groups import Group
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Member, Run, RunDir

_PROC: Final = Path("/proc")


def run_of(group: Group) -> Run:
    """Return the record of the run that a group becomes once somebody meets it."""
    first = group.ranks[min(group.ranks)]
    return Run(
        run=group.name,
        run_id=group.run_id,
        program=group.program,
        arguments=group.arguments,
        world=group.world,
        backend=None,
        device=None,
        created_at_ns=round(identity.began_at(first) * 1e9),
        launched=False,
        outside=True,
        cwd=identity.link(first.pid, "cwd"),
        command=group.command,
        torchrun=group.launcher,
        starter=group.starter,
        marks=dict(group.marks),
        # Those of others are not among the processes in which groups are found.
        owner=os.geteuid(),
        local_world=len(group.ranks),
        nodes=group.nodes,
        node=group.node,
    )


def write(directory: RunDir, group: Group) -> None:
    """Write the records of the ranks that are new, as their agents would; those of other processes stay."""
    present = {member.rank: member for member in directory.reported()}
    newest = max((member.generation for member in present.values()), default=0)
    is_new = {rank: rank not in present or present[rank].process != each for rank, each in group.ranks.items()}
    # Where no launcher counts, another process in the place of a rank begins another generation for all.
    begins = any(new and rank in present and rank not in group.restarts for rank, new in is_new.items())
    for rank, process in group.ranks.items():
        generation = group.restarts.get(rank, newest + begins)
        if is_new[rank]:
            directory.write_member(member(group, rank, process, generation))
        elif present[rank].generation != generation and begins:
            directory.write_member(msgspec.structs.replace(present[rank], generation=generation))


def member(group: Group, rank: int, process: Process, generation: int) -> Member:
    """Return the record of a rank without an agent."""
    log, local_rank = output_of(process), group.local_ranks.get(rank, rank)
    return Member(
        rank, local_rank, group.world, process, socket.gethostname(), generation, "", "", log,
        log_begin=_size(log), by_agent=False,
    )  # fmt: skip


def processes_of(run: Run, members: Mapping[int, Member]) -> set[Process]:
    """Return the processes by which such a run is known: its ranks, and its launcher where it has one."""
    return {*(member.process for member in members.values()), *filter(None, [run.torchrun])}


def output_of(process: Process) -> str | None:
    """Return the file that the output of a process goes to; None where that is a terminal, a pipe or nothing."""
    for number in (1, 2):
        path = identity.link(process.pid, f"fd/{number}")
        try:
            file = os.stat(_PROC / str(process.pid) / f"fd/{number}")
            # In a container, or once it was replaced, the path leads to another file, or to none.
            if stat.S_ISREG(file.st_mode) and os.path.samestat(file, os.stat(path)):
                return path
        except OSError:
            continue
    return None


def _size(path: str | None) -> int:
    try:
        return 0 if path is None else os.stat(path).st_size
    except OSError:
        return 0
