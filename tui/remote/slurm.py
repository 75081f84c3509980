"""The run of a Slurm job, shown by an overlapping step on the job's node, to which srun forwards the terminal."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from ddptop.agent.client.acting import actor
from ddptop.agent.text import clean_line
from ddptop.tui.remote import errand
from ddptop.tui.remote.target import Unreachable

_JOB: Final = re.compile(r"\d{1,10}(?:_\d{1,10}|\+\d{1,10})?")
_FORMAT: Final = "%T|%u|%B|%N"
_WAIT_S: Final = 30.0
_KILLED: Final = 137
"""Exit code of srun where its step was ended by SIGKILL, as Slurm does after its grace."""


class Job(NamedTuple):
    """A job that runs."""

    number: str
    node: str
    """The node on which its batch script runs: that of rank 0, as a rule."""


def job(number: str) -> Job:
    """Return a job of this user that runs.

    Raises:
        Unreachable: there is no Slurm here, or no such job, or it does not run, or it is another user's.
    """
    if not _JOB.fullmatch(number):
        raise Unreachable(f"--slurm {number}: give the number of a job, as `squeue --me` lists them")
    for program in ("squeue", "srun"):
        if shutil.which(program) is None:
            raise Unreachable(f"--slurm {number}: no {program} on this machine; log in to a node of the cluster first")
    try:
        done = subprocess.run(
            ["squeue", "--noheader", f"--jobs={number}", f"--format={_FORMAT}"], capture_output=True, text=True,
            timeout=_WAIT_S, stdin=subprocess.DEVNULL, check=False, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unreachable(f"--slurm {number}: squeue does not answer") from None
    lines = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == _FORMAT.count("|")]
    if not lines:
        why = clean_line(done.stderr).removeprefix("slurm_load_jobs error: ") or "it is over, or was never there"
        raise Unreachable(f"--slurm {number}: no such job ({why}); `squeue --me` lists yours")
    state, user, node, nodes = lines[0]
    if user != actor.user():
        raise Unreachable(f"--slurm {number}: it is a job of {clean_line(user, 40)}; only its user may look into it")
    if state != "RUNNING":
        now = clean_line(state.lower(), 40)
        raise Unreachable(f"--slurm {number}: it does not run ({now}); `squeue -j {number}` says more")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", node):
        raise Unreachable(f"--slurm {number}: its first node is not known ({clean_line(nodes, 100)})")
    return Job(number, node)


def attach(number: str, arguments: Sequence[str], command: str | None = None) -> int:
    """Carry `attach` with these arguments out on a job's node; return its exit code.

    Raises:
        Unreachable: see `job`.
    """
    found = job(number)
    named = command or os.environ.get(errand.COMMAND_VARIABLE)
    # The folder of an environment is on all nodes, as a rule, which its programs being on the PATH is not.
    started = named or shlex.join([sys.executable, "-m", "ddptop.tui.cli.main"])
    verb = ["attach", *arguments]
    words = errand.line(started, verb, errand.marks(errand.BY_SRUN), found.node, errand.NAME_IT)
    terminal = errand.Terminal()
    start = [
        "srun", f"--jobid={found.number}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={found.node}",
        *(["--pty"] if terminal.is_there else []), "--quiet", "--export=ALL", *words,
    ]  # fmt: skip
    code = errand.wait(start, terminal)
    if code == _KILLED:
        terminal.restore()
    return code
