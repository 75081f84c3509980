"""Enrolment of a rank in its run, and which start of its group it belongs to.

The environment of a launched rank names the run.  The ranks of a job started by hand under the agent find their
run by what they have in common, such as their launcher, and the first of them makes the directory.  Of a job on
several hosts that is a text which is the same on all of them, so that its run has one name and one id everywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.process.output import Output, say
from ddptop.agent.run import generations, hosts, rundir
from ddptop.agent.run.rundir import Run, RunDir, RunDirError
from ddptop.agent.run.switches import injection
from ddptop.agent.wire.frames import ENDED

_ON_TERM: Final = "checkpoint"
"""The reaction to a SIGTERM for which the observer of the run stays; see `agent.rank.commands.preemption`."""
_MOST_LIKE_IT: Final = 1000
"""Ended jobs with the same marks as this one that may have a record at most."""
_RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"
_OPENMPI_4: Final = "OMPI_MCA_ess_base_jobid"
"""Variable with the name of a job in versions of Open MPI before 5."""
_JOBS: Final = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "PBS_JOBID", "LSB_JOBID")
"""Variables of schedulers that name a job, alike on all of its hosts."""


def enrolled() -> RunDir | None:
    """Return the run that the environment names, None for a job started by hand."""
    given = os.environ.get(rundir.DIRECTORY_VARIABLE)
    return RunDir(Path(given)) if given else None


def generation(directory: RunDir, position: Position) -> int:
    """Return how often torchrun has started this process's group again, 0 without torchrun."""
    counted = os.environ.get(_RESTARTS)
    if counted is None:
        return 0
    known, lives = directory.reported(), rundir.is_alive
    return generations.of_start(int(counted), position.rank, position.local_rank, known, lives)


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
    first = os.environ.get(_RESTARTS, "0") == "0"
    if first and Position.from_environment(os.environ, program).rank == 0:
        say(f"ddptop: this is run {directory.name}; `ddptop attach {directory.name}` in another terminal shows it")
    environment = {**os.environ, rundir.MARKER: run_id, rundir.DIRECTORY_VARIABLE: str(directory.path)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _find_or_make(program: str, arguments: tuple[str, ...]) -> tuple[RunDir, str]:
    position = Position.from_environment(os.environ, program)
    launcher = rundir.identify(os.getppid()) if "TORCHELASTIC_RUN_ID" in os.environ else None
    spread = position.may_spread(os.environ)
    if launcher is not None and (restarted := _started_by(launcher)) is not None:
        # Also where it has only the ranks of this host now: an elastic launcher goes on without the others.
        resize(restarted[0], position)
        return restarted
    shared = _shared_by_hosts(position) if spread else _shared(position, launcher)
    stem = rundir.stem_of(program, 24)
    run = Run(
        run=stem,
        run_id="",
        program=program,
        arguments=arguments,
        world=position.world,
        backend=None,
        device=None,
        created_at_ns=time.time_ns(),
        launched=False,
        cwd=os.getcwd(),
        torchrun=launcher,
        injected=injection.describe(injection.from_environment(os.environ)),
        on_term=_ON_TERM if os.environ.get("DDPTOP_ON_TERM") == _ON_TERM else "",
        owner=os.getuid(),
        local_world=position.local_world,
        nodes=position.nodes,
        node=position.node,
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
                if found.state in ENDED or (spread and not _is_same_job(there, found, run)):
                    break
                if position.local_rank == 0 and found.node != position.node:
                    _widen(there, found, run)
                return there, run_id
    raise RunDirError(f"no free name for {stem} in {rundir.base()}; remove ended runs there")


def _started_by(launcher: rundir.Process) -> tuple[RunDir, str] | None:
    """Return the run that this torchrun has on this host: a restart may get another address than the start."""
    for directory in rundir.runs():
        # Another process may remove one meanwhile.
        with contextlib.suppress(RunDirError):
            run = directory.read()
            if run.torchrun == launcher and run.state not in ENDED:
                return directory, run.run_id
    return None


def resize(there: RunDir, position: Position) -> None:
    """Note the present number of ranks, which an elastic launcher may change with each start of the group."""
    run = there.read()
    if run.world != position.world and (run.spans_hosts or not run.launched):
        there.update(world=position.world, local_world=position.local_world, nodes=position.nodes, node=position.node)
        with contextlib.suppress(OSError):
            hosts.forget(there.path)


def _is_same_job(there: RunDir, found: Run, run: Run) -> bool:
    """Say whether a run that has not ended is that of this process, and not of an earlier job with the same marks."""
    if run.torchrun is not None:
        if found.torchrun == run.torchrun:
            return True
        # Two of one job on one host are two of its nodes.
        return rundir.is_alive(found.torchrun) and found.node != run.node
    members = there.members().values()
    return len(members) < (found.local_world or 1) or any(rundir.is_alive(member.process) for member in members)


def _widen(there: RunDir, found: Run, run: Run) -> None:
    """Note that further ranks of the run are on this host, where its launcher has two nodes here."""
    if found.local_world is not None and run.local_world is not None and found.local_world < found.world:
        there.update(local_world=min(found.world, found.local_world + run.local_world))


def _shared_by_hosts(position: Position) -> str:
    """Return a text that all ranks of this job have in common on all of its hosts, and no other job of these hosts.

    An earlier job of the same endpoint may have the same text.
    """
    job = " ".join(os.environ.get(name, "") for name in _JOBS)
    if position.launcher == "slurm":
        return f"slurm {job} {os.environ.get('SLURM_STEP_ID', '')}"
    master = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    if position.launcher == "torchrun":
        return f"torchrun {os.environ['TORCHELASTIC_RUN_ID']} {master} {job}"
    return f"{master} {job} {_mpi_job()}"


def _mpi_job() -> str:
    """Return the name that `mpirun` has given the job on all hosts; empty where it gives none."""
    return os.environ.get("PMIX_NAMESPACE") or os.environ.get(_OPENMPI_4, "")


def _shared(position: Position, launcher: rundir.Process | None) -> str:
    """Return a text that all ranks of this job, and of no other, have in common on this host."""
    if launcher is not None:
        return f"torchrun {launcher.pid} {launcher.started}"
    port = os.environ.get("MASTER_PORT")
    if port is None:
        if position.world > 1 and position.launcher != "environment":
            return f"{position.launcher} {_mpi_job()} {os.environ.get('SLURM_STEP_ID', '')} {_job()} {os.getppid()}"
        return f"alone {os.getpid()} {time.time_ns()}"
    return f"{os.environ.get('MASTER_ADDR')}:{port} {_job()} {os.getppid()}"


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID", os.environ.get("PBS_JOBID", ""))
