"""Enrolment of a rank in its run.

The environment of a launched rank names the run.  The ranks of a job started by hand under the agent find their
run by what they have in common, such as their launcher, and the first of them makes the directory.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.rank.process.output import Output, say
from ddptop.agent.run import injection, rundir
from ddptop.agent.run.rundir import ENDED_STATES, Run, RunDir, RunDirError

_MOST_LIKE_IT: Final = 1000
"""Ended jobs with the same marks as this one that may have a record at most."""


class Standing(NamedTuple):
    """Rank, local rank and world size of a process."""

    rank: int
    local_rank: int
    world: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Standing:
        """Return the numbers that a launcher has set in the environment; raises `ValueError` for other texts."""
        names = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))
        return cls(*(int(environment.get(name, otherwise)) for name, otherwise in names))


def enrolled() -> RunDir | None:
    """Return the run that the environment names, None for a job started by hand."""
    given = os.environ.get(rundir.DIRECTORY_VARIABLE)
    return RunDir(Path(given)) if given else None


def redirect(directory: RunDir, rank: int) -> Output:
    """Send stdout and stderr of a launched rank to its log, in the order written; leave them where that fails."""
    output = Output()
    output.redirect(directory.rank_log(rank))
    if output.problem is not None:
        say(f"ddptop: rank {rank}'s {output.problem}")
    return output


def enrol_and_restart(program: str, arguments: tuple[str, ...]) -> None:
    """Find or make the run of a job started by hand, then restart this process with the run's marker.

    The marker has to be in the environment with which the process starts, where `ddptop kill`
    finds it in every process that the script forks. The pid stays the same, so that torchrun notices nothing.

    Raises:
        RunDirError: no run directory can be made.
    """
    directory, run_id = _find_or_make(program, arguments)
    environment = {**os.environ, rundir.MARKER: run_id, rundir.DIRECTORY_VARIABLE: str(directory.path)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _find_or_make(program: str, arguments: tuple[str, ...]) -> tuple[RunDir, str]:
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    launcher = rundir.identify(os.getppid()) if under_torchrun else None
    shared = _shared(launcher)
    stem = rundir.stem_of(program, 24)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    run = Run(
        run=stem,
        run_id="",
        program=program,
        arguments=arguments,
        world=world,
        backend=None,
        device=None,
        created_at_ns=time.time_ns(),
        launched=False,
        cwd=os.getcwd(),
        torchrun=launcher,
        injected=injection.describe(injection.from_environment(os.environ)),
        owner=os.getuid(),
        local_world=_local_world(os.environ, world),
    )
    for number in range(_MOST_LIKE_IT):
        # The same shell may start the same job again: each has a run of its own, and the ended ones stay.
        text = f"{shared} {number}" if number else shared
        run_id = hashlib.sha256(text.encode()).hexdigest()[:32]
        for digits in (4, 8, 12):
            name = f"{stem}-{run_id[:digits]}"
            there = RunDir(rundir.base() / name)
            if not os.path.lexists(there.path):
                try:
                    return rundir.create(msgspec.structs.replace(run, run=name, run_id=run_id)), run_id
                except RunDirError:
                    # Another rank of this job may have made it meanwhile.
                    if not os.path.lexists(there.path):
                        raise
            found = there.read()
            if found.run_id == run_id:
                if found.state in ENDED_STATES:
                    break
                return there, run_id
    raise RunDirError(f"no free name for {stem} in {rundir.base()}; remove ended runs there")


def _local_world(environment: Mapping[str, str], world: int) -> int | None:
    """Return the number of ranks of this job on this host, None where the launcher does not tell it."""
    if world == 1:
        return 1
    text = environment.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() and 1 <= int(text) <= world else None


def _shared(launcher: rundir.Process | None) -> str:
    """Return a text that all ranks of this job, and of no other, have in common."""
    if launcher is not None:
        return f"torchrun {launcher.pid} {launcher.started}"
    port = os.environ.get("MASTER_PORT")
    if port is None:
        return f"alone {os.getpid()} {time.time_ns()}"
    job = os.environ.get("SLURM_JOB_ID", os.environ.get("PBS_JOBID", ""))
    return f"{os.environ.get('MASTER_ADDR')}:{port} {job} {os.getppid()}"
