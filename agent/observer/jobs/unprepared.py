"""The ranks of a job that nobody prepared: the observer writes the records that agents would write.

They are found among the processes, by their launcher and by themselves; see `agent.outside`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from ddptop.agent.end import processes, traces
from ddptop.agent.observer.inspection import dumps
from ddptop.agent.outside import groups, recorded, rights
from ddptop.agent.outside.processes import Processes, version_of
from ddptop.agent.run.files import tail
from ddptop.agent.run.identity import Process, is_alive
from ddptop.agent.run.rundir import Ended, Member, Run, RunDir
from ddptop.agent.text import masked_words

_LOOK_S: Final = 1.0
"""Seconds between two looks while ranks are missing."""
_LOOK_COMPLETE_S: Final = 5.0
"""The same while all are there: only what they start is new then."""

_OUTPUT_BYTES: Final = 256 << 10
"""Bytes at the end of an output in which an exception is looked for: libraries print much after it."""
_LONGEST: Final = 2000
"""Characters of an exception that are recorded."""
_JOINABLE: Final = (3, 14)
"""The version of Python from which on an agent can come into a process that runs."""


def refusal(run: Run, members: Iterable[Member]) -> str:
    """Return why nothing can be done with such a job that takes an agent, and what can; empty where all have one."""
    without = [member for member in members if not member.by_agent]
    if not run.outside or not without:
        return ""
    start = "torchrun ... -m" if run.leader == "torchrun" else "python -m"
    joins = (version_of(without[0].process.pid) or (0, 0)) >= _JOINABLE
    return (
        f"nobody prepared this job, so no agent in its ranks can do that; `ddptop pause {run.run} --freeze` and "
        f"`ddptop stacks {run.run}` work; start the next one with `{start} ddptop.agent {run.program}`"
    ) + (f"; `ddptop attach {without[0].process.pid} --join` joins it" if joins else "")


def unseen(members: Iterable[Member]) -> str:
    """Return why the stacks of ranks cannot be seen from outside, and what helps; empty where they can."""
    if (program := dumps.executable()) is None:
        return dumps.MISSING
    problems = (rights.may_look(member.process, program) for member in members)
    return next((f"no stacks from outside: {problem}" for problem in problems if problem), "")


def record_ends(directory: RunDir, at_ns: Mapping[int, int], status: Mapping[int, int]) -> None:
    """Record the ends of ranks as their agents would: the exit code, and the exception that their output ends with.

    Of one that was ended by a signal an agent says nothing, either.

    Args:
        directory: of the run.
        at_ns: by rank, when its process ended.
        status: by rank, its exit code, negative for a signal; of those of which it is known.
    """
    members = [member for member in directory.reported() if not member.by_agent]
    shared = Counter(member.log for member in members)
    for member in members:
        code = status.get(member.rank, -1)
        if member.rank not in at_ns or member.ended is not None or code < 0:
            continue
        trace = _traceback(directory, member, shared=shared[member.log] > 1) if code else ""
        error = trace.splitlines()[-1][:_LONGEST] if trace else None
        ended = Ended(at_ns[member.rank], code, error, trace or None)
        directory.write_member(msgspec.structs.replace(member, ended=ended))


def _traceback(directory: RunDir, member: Member, *, shared: bool) -> str:
    """Return the traceback with which the output of a rank ends; in a file of several torch marks the lines of each."""
    text = tail.end(directory.output(member.rank), _OUTPUT_BYTES, member.log_begin) if member.log else ""
    mark = f"[rank{member.rank}]: "
    own = [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]
    return traces.printed("\n".join(own) if own else "" if shared else text)


class Unprepared:
    """Looks for the ranks of such a job, and remembers its processes, but not a script that has started it."""

    def __init__(self, directory: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._due = 0.0
        self._seen: set[Process] = set()
        """The processes that belonged to it at some time, but for such a script and what stands between."""

    def turn(self, run: Run, *, complete: bool) -> dict[str, Any]:
        """Write the records of new ranks, where a look is due; return what has changed of the record of the run."""
        now = self._clock()
        if now < self._due:
            return {}
        self._due = now + (_LOOK_COMPLETE_S if complete else _LOOK_S)
        group = groups.again(Processes(), recorded.processes_of(run, self._directory.members()))
        changes: dict[str, Any] = {}
        if group is not None:
            recorded.write(self._directory, group)
            here = max(len(group.ranks), run.local_world or 1)
            present: dict[str, Any] = {"world": group.world, "local_world": min(here, group.world)}
            present["starter"] = group.starter
            # A process by itself may have become the launcher of others, or a launcher the starter of two jobs; one
            # that has ended stays theirs.
            if group.launcher is not None or is_alive(run.torchrun):
                present |= {"torchrun": group.launcher, "command": masked_words(group.command)}
            changes = {name: value for name, value in present.items() if value != getattr(run, name)}
            if "torchrun" in changes and group.launcher is None:
                # What was seen below it may be of the other one.
                changes["known"] = ()
                self._seen.clear()
            run = msgspec.structs.replace(run, **changes)
        # What stands above the ranks is of the job only as long as it has started nothing else.
        alone = msgspec.structs.replace(run, known=(), starter=None)
        by_descent = processes.find(alone, self._directory.members())
        below = {target.process for target in by_descent}
        self._seen = {each for each in self._seen | set(run.known) | below if each in below or is_alive(each)}
        # Those that only this memory knows; another observer has to know them, too.
        if (orphans := self._seen - below) != set(run.known):
            changes["known"] = tuple(sorted(orphans, key=lambda each: each.pid))
        return changes
