"""The torchrun command line: who spawns the ranks, and how the agent gets between.

torchrun (`torch.distributed.run`) does all spawning and rendezvous.  This room only knows
its flags; it imports no torch, and the command is plain text until the supervisor runs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ddptop.agent import startup


def command(program: str, arguments: Sequence[str], world: int) -> tuple[str, ...]:
    """Return the command line that runs `program` as `world` ranks under the agent.

    Args:
        program: path of a script, or `-m module`.
        arguments: the program's own; they reach it unchanged, whatever they begin with.
        world: number of ranks on this machine.
    """
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        # A rendezvous of its own on a free port: any number of runs at once.
        "--standalone",
        # Otherwise MASTER_ADDR is the host's name, which need not resolve.
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={world}",
        "--max-restarts=0",
        # Otherwise an empty torchelastic_* folder stays behind for each run.
        f"--log-dir={os.devnull}",
        "-m",
        "ddptop.agent",
        *_target(program),
        *arguments,
    )


def spawn_command(program: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that starts a program once, which then spawns its ranks itself."""
    return (sys.executable, *_target(program), *arguments)


def spawn_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what has to be set so that the agent reaches the ranks of such a program."""
    folder = os.path.dirname(os.path.abspath(startup.__file__))
    given = environment.get("PYTHONPATH")
    rest = [os.path.abspath(part) for part in given.split(os.pathsep)] if given else []
    return {"PYTHONPATH": os.pathsep.join([folder, *rest])}


def _target(program: str) -> list[str]:
    flag, _, module = program.partition(" ")
    # A script whose name begins with a dash must not be read as an option.
    return ["-m", module.strip()] if flag == "-m" else [os.path.join(".", program) if flag[:1] == "-" else program]
