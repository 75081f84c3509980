"""The processes of a run with role, age, CPU and memory, for a list from which a person chooses, and what a kill ends.

psutil is loaded where it is called: each look at a run imports this module.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ddptop.agent.client.acting.kill import Aim
from ddptop.agent.end.processes import Target, find
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, is_alive
from ddptop.agent.text import clean, masked_words, plural

_MOST_HOSTS: Final = 4
"""Other hosts that are named one by one."""
_DATA_WORKER = "pt_data_worker"
"""The name that torch gives the main thread of a DataLoader's worker, from 2.6 on."""


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One living process. Values that cannot be read are None; text in here is clean."""

    process: Process
    role: str
    """`torchrun`, `rank`, `data worker` or `helper`."""
    rank: int | None
    """The rank that it is or works for."""
    status: str
    age_s: float | None = None
    cpu_percent: float | None = None
    """Mean since its start; 100 is one core."""
    memory_bytes: int | None = None
    command: str = ""
    """Its command line, with secrets masked."""


def processes(run: Run, members: Mapping[int, Member]) -> list[ProcessLine]:
    """Return torchrun, then each rank with its helpers, then the helpers that have lost their rank."""
    targets = find(run, members)
    commands = {target.rank: _command(target.process) for target in targets if target.role == "rank"}
    found = [_line(target, commands.get(target.rank, "")) for target in targets]
    return sorted(found, key=_order)


def victims(directory: RunDir, aim: Aim) -> str:
    """Say what `kill` would end, in one line for each thing there is to know."""
    run, members = directory.read(), directory.members()
    if isinstance(aim, Process):
        return f"process {aim.pid} alone; what depends on it may fail"
    if aim is not None:
        effect = "the run ends"
        if run.world > 1:
            effect = f"the others fail at their next collective, and {run.leader} ends them"
        if run.max_restarts:
            effect += f", then restarts all ranks (at most {run.max_restarts} times)"
        pid = f" (pid {members[aim].process.pid})" if aim in members else ""
        return f"rank {aim}{pid} and its helpers: {effect}"
    targets = find(run, members)
    counts = Counter(target.role for target in targets)
    leader = "".join(f"{target.name} {target.process.pid}, " for target in targets if target.role == "torchrun")
    helpers = f", {plural(counts['helper'], 'helper')}" if counts["helper"] else ""
    found = f"{leader}{plural(counts['rank'], 'rank')}{helpers}"
    far = Counter(member.host for rank, member in directory.everyone().items() if rank not in members)
    if not far:
        return found
    here = next((member.host for member in members.values()), "this host")
    there = [f"{plural(number, 'rank')} on {host}" for host, number in far.items()]
    if len(there) > _MOST_HOSTS:
        there = [f"{plural(far.total(), 'rank')} on {plural(len(far), 'other host')}"]
    return f"{found} on {here}; {', '.join(there)}"


def _order(line: ProcessLine) -> tuple[bool, bool, int, bool, int]:
    first = line.role == "torchrun"
    return not first, line.rank is None, line.rank or 0, line.role != "rank", line.process.pid


def _line(target: Target, rank_command: str) -> ProcessLine:
    import psutil

    role, status = target.role, clean(target.status, 20)
    try:
        process = psutil.Process(target.process.pid)
        with process.oneshot():
            name, command = process.name(), " ".join(masked_words(process.cmdline()))
            age = max(0.0, time.time() - process.create_time())
            times, memory = process.cpu_times(), process.memory_info().rss
    except psutil.Error:
        return ProcessLine(target.process, role, target.rank, status)
    if not is_alive(target.process):
        # It ended before the values were read: they are those of another process.
        return ProcessLine(target.process, role, target.rank, "gone")
    # A forked worker has the command line of its rank, by which alone it is recognized on an older torch.
    if role == "helper" and (name == _DATA_WORKER or (command and command == rank_command)):
        role = "data worker"
    cpu = 100 * (times.user + times.system) / age if age > 0 else None
    return ProcessLine(target.process, role, target.rank, status, age, cpu, memory, clean(command, 200))


def _command(process: Process) -> str:
    import psutil

    try:
        return " ".join(masked_words(psutil.Process(process.pid).cmdline()))
    except psutil.Error:
        return ""
