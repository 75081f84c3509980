"""A launch inside an allocation of Slurm: the `srun` that has each of its hosts launch its part.

Each host gets one task, which is `ddptop launch --nnodes` and so has a run directory and an observer of its own.
Nothing is started on another machine but by `srun`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Final, NamedTuple

from ddptop.agent.client.start import hosts
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.launcher.slurm import JOB, is_task
from ddptop.agent.run import rundir
from ddptop.agent.text import clean_line, plural

_NODES: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_RESTARTED: Final = "SLURM_RESTART_COUNT"
_PORTS: Final = range(20000, 30000)
"""Ports of which one becomes the endpoint's: below those that Linux gives away by itself."""
_ANSWER_S: Final = 30.0
_LAGGARDS_S: Final = 60
"""Seconds that the other hosts have once the first one has ended its part."""
_MOST_STARTS: Final = 1000
"""Runs of one program and one job at most with names of their own."""


class Allocation(NamedTuple):
    """The hosts that Slurm has given away."""

    job: str
    hosts: tuple[str, ...]
    restarts: int = 0
    """How often the job was requeued."""
    binds: bool = False
    """True where Slurm may bind a task to some of its cores."""

    @property
    def ident(self) -> str:
        """The job's number, with the number of its start from the second one on."""
        return f"{self.job}.{self.restarts + 1}" if self.restarts else self.job


def allocation(environment: Mapping[str, str], wanted: int | None) -> Allocation:
    """Return the allocation that this process is in, or so many hosts of it.

    Raises:
        RequestError: there is none, or it is too small.
    """
    job, nodes = environment.get(JOB, ""), next(filter(None, map(environment.get, _NODES)), "")
    if not (job.isdecimal() and nodes):
        raise RequestError(
            f"--slurm: no allocation here: get one by `salloc --nodes {wanted or 2}`, or put this line into a script "
            f"for sbatch; `ddptop help many-machines` has examples"
        )
    if is_task(environment):
        raise RequestError("--slurm: this is a task of srun already, of which each host has one: use launch --nnodes")
    if shutil.which("srun") is None or shutil.which("scontrol") is None:
        raise RequestError("--slurm: no srun and scontrol on this PATH; add the folder of Slurm's commands to it")
    names = _told(["scontrol", "show", "hostnames", nodes]).split()
    if wanted is not None and not 0 < wanted <= len(names):
        raise RequestError(f"--nodes {wanted}: job {job} has {plural(len(names), 'node')}")
    binds = re.search(r"^TaskPlugin\s*=.*affinity", _told(["scontrol", "show", "config"]), re.MULTILINE) is not None
    return Allocation(job, tuple(names[:wanted]), restarts(environment), binds)


def restarts(environment: Mapping[str, str]) -> int:
    """Return how often Slurm has requeued the job of an environment."""
    text = environment.get(_RESTARTED, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0


def _told(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, errors="replace", check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise RequestError(f"--slurm: {command[0]}: {clean_line(str(problem), 200)}") from problem
    if done.returncode or not done.stdout.strip():
        raise RequestError(f"--slurm: {command[0]}: {clean_line(done.stderr, 200) or 'it says nothing'}")
    return done.stdout


def request_for(request: Request, place: Allocation, tasks: int | None, environment: Mapping[str, str]) -> Request:
    """Return the request that each host is given.

    Args:
        request: what was asked for.
        place: the allocation.
        tasks: ranks on each host, where they were asked for by Slurm's own option.
        environment: that of the allocation.

    Raises:
        RequestError: they contradict each other.
    """
    for flag, value in (("--nnodes", request.nnodes), ("--rdzv-endpoint", request.rdzv_endpoint),
                        ("--rdzv-id", request.rdzv_id), ("--node-rank", request.node_rank)):  # fmt: skip
        if value not in (None, ""):
            raise RequestError(f"{flag}: --slurm finds that out; leave it out, or use --nodes and --ntasks-per-node")
    if None not in (tasks, request.nproc_per_node) and tasks != request.nproc_per_node:
        raise RequestError(f"--ntasks-per-node {tasks}: --nproc-per-node says {request.nproc_per_node}")
    here = tasks if request.nproc_per_node is None else request.nproc_per_node
    if here is None and request.world is None:
        here = _number(environment, "SLURM_GPUS_ON_NODE") or _number(environment, "SLURM_NTASKS_PER_NODE")
    return request._replace(
        nproc_per_node=here,
        nnodes=str(len(place.hosts)),
        rdzv_endpoint=f"{place.hosts[0]}:{random.choice(_PORTS)}",
        rdzv_id=place.ident,
    )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < 1000 else None


def named(request: Request, place: Allocation) -> tuple[Request, str]:
    """Return a request with an id by which the run is a new one on this host, and its name.

    Raises:
        RequestError: the request cannot work.
        rundir.RunDirError: it cannot have the name that it asks for.
    """
    for number in range(place.restarts + 1, _MOST_STARTS):
        try:
            several = hosts.read(request)
        except ValueError as problem:
            raise RequestError(str(problem)) from problem
        assert several is not None
        if request.name:
            return request, rundir.check_name(request.name)
        name = rundir.check_name(hosts.name_of(request.shown, several))
        if not os.path.lexists(rundir.base() / name):
            return request, name
        request = request._replace(rdzv_id=f"{place.job}.{number + 1}")
    raise RequestError(f"--slurm: no free name for another run of job {place.job}; give a --name")


def command(place: Allocation, name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return the line that has each host launch its part of a run by these words."""
    return (
        "srun",
        f"--nodes={len(place.hosts)}",
        f"--ntasks={len(place.hosts)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(place.hosts)}",
        # The ranks share what the task has. A Slurm that cannot bind complains of the option.
        *(("--cpu-bind=none",) if place.binds else ()),
        f"--job-name={name}",
        # All hosts print the same of the run.
        "--output=0",
        "--kill-on-bad-exit=0",
        f"--wait={_LAGGARDS_S}",
        *words,
    )


class Step:
    """The `srun` of a launch; it goes on without this process."""

    def __init__(self, words: Sequence[str], place: Allocation, name: str, *, shown: bool) -> None:
        """Start it.

        Args:
            words: its command line.
            place: the allocation.
            name: the name of the step.
            shown: whether what the first host prints goes where we print, with what any host complains about.

        Raises:
            RequestError: it cannot be started.
        """
        self._job, self._name = place.job, name
        # Without a name: nothing of it is left when the last process that has it ends.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the step
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=None if shown else subprocess.DEVNULL,
                stderr=None if shown else self._errors,
                start_new_session=True,
            )
        except OSError as problem:
            raise RequestError(f"--slurm: srun: {problem.strerror}") from problem

    def ended(self) -> int | None:
        """Return its exit code; None while it goes on."""
        return self._process.poll()

    def wait(self) -> int:
        """Return its exit code once it has ended, 128+n for a signal."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def complaints(self) -> list[str]:
        """Return what it and the hosts have complained about, each line once."""
        self._errors.seek(0)
        lines = self._errors.read(1 << 16).decode(errors="replace").splitlines()
        said = (clean_line(re.sub(r"^ddptop: ", "", each), 300) for each in lines)
        return list(dict.fromkeys(filter(None, said)))

    def terminate(self) -> None:
        """Send SIGTERM to its tasks: one to srun itself would reach them as an order to end at once."""
        with contextlib.suppress(RequestError):
            listed = _told(["squeue", "--noheader", "--steps", f"--jobs={self._job}", "--format=%i %j"])
            for each in listed.splitlines():
                number, _, name = each.strip().partition(" ")
                if name.strip() == self._name and re.fullmatch(r"[0-9_+.]{1,40}", number):
                    subprocess.run(["scancel", "--signal=TERM", number], check=False, timeout=_ANSWER_S)
                    return
        self._process.terminate()


def is_here(place: Allocation) -> bool:
    """Say whether this process is on one of the hosts."""
    own = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    return own.partition(".")[0] in {each.partition(".")[0] for each in place.hosts}
