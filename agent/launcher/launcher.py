"""torchrun, or a program that spawns its own ranks: the command line, and the process itself.

The observer spawns no ranks: torchrun does all spawning, rendezvous and restarting, or the program that is
started in its place.  This module starts and adopts that process, and does not know the state of a run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from ddptop.agent.run.files import marks, masking
from ddptop.agent.run.rundir import (
    DIRECTORY_VARIABLE,
    MARKER,
    RANK_VARIABLE,
    TORCHRUN,
    Process,
    Run,
    RunDir,
    RunDirError,
    identify,
    is_alive,
)
from ddptop.agent.startup import starter
from ddptop.agent.startup.starter import isolated

_RESTARTABLE: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""A separate store for every generation: torch 2.15 shares one among all, in which gloo then finds the addresses of
ranks that are gone ("connectFullMesh failed … Connection refused")."""


RUNNER: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(starter.__file__))), "__main__.py")
"""The file of the agent's runner. With `-m` Python would search the current directory for it first."""
_OURS: Final = "ddptop."


class Rendezvous(NamedTuple):
    """How the torchruns of several hosts meet, in its own words; the same on all hosts but for the `node_rank`."""

    nnodes: str
    """Number of hosts, or the least and the most of them: `1:4`."""
    endpoint: str
    """`HOST:PORT` of the store."""
    ident: str
    node_rank: int | None = None
    """Number of this host, from 0, where the hosts are numbered by hand; number 0 has the store then."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options of torchrun."""
        numbered = self.node_rank is not None
        return (
            f"--nnodes={self.nnodes}",
            f"--rdzv-backend={'static' if numbered else 'c10d'}",
            f"--rdzv-endpoint={self.endpoint}",
            f"--rdzv-id={self.ident}",
            *((f"--node-rank={self.node_rank}",) if numbered else ()),
        )


_ALONE: Final = (
    # A separate rendezvous on a free port: any number of runs at once.
    "--standalone",
    # Otherwise MASTER_ADDR is the host's name, which need not resolve.
    "--local-addr=127.0.0.1",
)


def command(
    program: str, arguments: Sequence[str], world: int, max_restarts: int = 0, rendezvous: Rendezvous | None = None
) -> tuple[str, ...]:
    """Return the command line that runs `program` as `world` ranks on this host under the agent.

    Args:
        program: path of a script, or `-m module`.
        arguments: arguments of the program, which reach it unchanged.
        world: number of ranks on this host.
        max_restarts: how often all ranks are restarted when one has failed.
        rendezvous: how the other hosts of the run are met; None where there are none.
    """
    return (
        *isolated(TORCHRUN),
        *(_ALONE if rendezvous is None else rendezvous.options),
        f"--nproc-per-node={world}",
        f"--max-restarts={max_restarts}",
        # Otherwise an empty torchelastic_* folder stays behind for each run.
        f"--log-dir={os.devnull}",
        # Otherwise torchrun takes an argument of the program for an option of its own: `--r=16` for seven of them.
        "--",
        RUNNER,
        *_target(program),
        *arguments,
    )


class Torchrun:
    """The torchrun of a run: a child of this process, or adopted from an observer that is gone."""

    def __init__(self, process: Process, child: subprocess.Popen[bytes] | None = None) -> None:
        self.process = process
        self.exit_code: int | None = None
        """Negative for a signal. None while it runs, and always where it was adopted from another process: only a
        parent gets the status."""
        self._child = child

    @classmethod
    def start(cls, directory: RunDir, run: Run) -> Torchrun:
        """Start it in a session of its own, with the run's marker.

        Raises:
            OSError: it cannot be started.
        """
        try:
            run = masking.whole(directory.path, run)
        except RunDirError as problem:
            raise OSError(str(problem)) from problem
        environment = {
            **(_RESTARTABLE if run.max_restarts else {}),
            # The user's value overrides this one, even an empty one.
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            **run.environment,
            MARKER: run.run_id,
            DIRECTORY_VARIABLE: str(directory.path),
        }
        # A rank of another run may launch this one; its ranks must not pass for that rank's children.
        environment.pop(RANK_VARIABLE, None)
        with open(marks.append(directory.torchrun_log), "ab") as log:
            child = subprocess.Popen(
                run.command,
                cwd=run.cwd or None,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return cls(identify(child.pid) or Process(child.pid, 0.0), child)

    def is_over(self) -> bool:
        """Say whether it has ended, and read its exit status."""
        if self._child is None:
            if is_alive(self.process):
                return False
            # Its parent may have begun anew as this process; see `resizing`.
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(self.process.pid, os.WNOHANG)
                if not ended:
                    # Other threads of it have not ended yet; it has no status before.
                    return False
                self.exit_code = os.waitstatus_to_exitcode(status)
            return True
        self.exit_code = self._child.poll()
        return self.exit_code is not None


def spawn_command(program: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that starts a program which spawns its ranks itself."""
    flag, _, module = program.partition(" ")
    if flag == "-m" and module.startswith(_OURS):
        return (*isolated(module), *arguments)
    return (sys.executable, *_target(program), *arguments)


def _target(program: str) -> list[str]:
    flag, _, module = program.partition(" ")
    # A script whose name begins with a dash must not be read as an option.
    return ["-m", module.strip()] if flag == "-m" else [os.path.join(".", program) if flag[:1] == "-" else program]
