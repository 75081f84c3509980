"""Training groups that nobody prepared: seen among the processes, and met once somebody asks for one.

To meet one means to make the directory of its run, as its ranks would have under the agent; an observer comes with the
first look.  To list them changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from msgspec.structs import replace

from ddptop.agent.client.frame import Frame, whole
from ddptop.agent.client.sources import recorded
from ddptop.agent.end.processes import lineage
from ddptop.agent.outside import groups
from ddptop.agent.outside import recorded as records
from ddptop.agent.outside.groups import Group
from ddptop.agent.outside.processes import Processes
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.agent.wire.frames import ENDED, OUTSIDE


def found() -> list[Group]:
    """Return the groups that nobody has met, by all processes of this user."""
    every = groups.found(Processes())
    met = {process for _, belonging in _live() for process in belonging} if every else set()
    return [group for group in every if not met & group.processes]


def of_process(pid: int) -> RunDir | None:
    """Return the run of the group that a process belongs to, met now or before; None where it belongs to none.

    Raises:
        RunDirError: it has started several groups.
    """
    processes = Processes()
    meant = groups.of_process(processes, pid)
    if len(meant) > 1:
        raise RunDirError(f"process {pid} has started several: name one of {', '.join(each.name for each in meant)}")
    # The pids of a run that was left behind may be those of others now.
    own = {processes.table[each].process for each in lineage(pid, processes.table)}
    own.update(*(each.processes for each in meant))
    for directory, belonging in _live():
        if belonging & own:
            return directory
    return meet(meant[0]) if meant else None


def meet(group: Group) -> RunDir:
    """Make the directory of its run, and return it; one that somebody else has made meanwhile is as good.

    Raises:
        RunDirError: it cannot be made.
    """
    directory = RunDir(rundir.base() / group.name)
    try:
        directory = rundir.create(records.run_of(group))
    except RunDirError:
        with contextlib.suppress(RunDirError):
            if directory.read().run_id == group.run_id:
                return directory
        raise
    records.write(directory, group)
    return directory


def frame_of(group: Group) -> Frame:
    """Return all that is known of a group that nobody has met."""
    run = records.run_of(group)
    members = {rank: records.member(group, rank, process, 0) for rank, process in group.ranks.items()}
    frame, ranks = recorded.by_record(replace(run, state="running"), members)
    shown = [replace(each, state="running", known_by=OUTSIDE) if each.pid is not None else each for each in ranks]
    return replace(whole(frame, shown), unmet=True, known_by=OUTSIDE)


def _live() -> Iterator[tuple[RunDir, set[Process]]]:
    """Yield those that were met and have not ended, each with the processes by which it is known."""
    for directory in rundir.runs():
        with contextlib.suppress(RunDirError):
            run = directory.read()
            if run.outside and run.state not in ENDED:
                yield directory, records.processes_of(run, directory.members())
