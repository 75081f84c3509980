"""The run of a Slurm job, seen by an overlapping step on the job's node: srun forwards a terminal, and no sockets."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from ddptop.agent.text import clean_line
from ddptop.tui.control import actor
from ddptop.tui.remote import ssh
from ddptop.tui.remote.unreachable import Unreachable
from ddptop.tui.remote.verbs import FROM_VARIABLE

_JOB: Final = re.compile(r"\d{1,10}(?:_\d{1,10}|\+\d{1,10})?")
_FORMAT: Final = "%T|%u|%B|%N"
_WAIT_S: Final = 30.0


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
        raise Unreachable(f"--slurm {number}: it does not run ({now}); `squeue -j {number}` tells more")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", node):
        raise Unreachable(f"--slurm {number}: its first node is not known ({clean_line(nodes, 100)})")
    return Job(number, node)


def attach(number: str, arguments: Sequence[str], command: str | None = None) -> int:
    """Carry `attach` with these arguments out on a job's node; return its exit code.

    Raises:
        Unreachable: see `job`; or there is no ddptop on the node.
    """
    found = job(number)
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    named = command or os.environ.get(ssh.COMMAND_VARIABLE)
    # The folder of an environment is on all nodes, as a rule, which its programs being on the PATH is not.
    started = shlex.split(named) if named else [sys.executable, "-m", "ddptop.tui.cli.main"]
    words = [
        "srun", f"--jobid={found.number}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={found.node}",
        *(["--pty"] if terminal else []), "--quiet", f"--export=ALL,{FROM_VARIABLE}={actor.here()}/srun",
        *started, "attach", *arguments,
    ]  # fmt: skip
    try:
        code = subprocess.call(words)
    except KeyboardInterrupt:
        return 130
    if code == ssh.NO_COMMAND:
        advice = f"name it: --remote-command, or set {ssh.COMMAND_VARIABLE}"
        raise Unreachable(f"--slurm {number}: no `{started[0]}` on {found.node}; {advice}")
    return code
