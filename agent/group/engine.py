"""The torchrun command line: who spawns the ranks, and how the agent gets between.

torchrun (`torch.distributed.run`) does all spawning and rendezvous.  This room only knows
its flags; it imports no torch, and the command is plain text until the supervisor runs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def command(program: str, arguments: Sequence[str], world: int) -> tuple[str, ...]:
    """Return the command line that runs `program` as `world` ranks under the agent.

    Args:
        program: path of a script, or `-m module`.
        arguments: the program's own; they reach it unchanged, whatever they begin with.
        world: number of ranks on this machine.
    """
    flag, _, module = program.partition(" ")
    # A script whose name begins with a dash must not be read as an option of the runner.
    target = ["-m", module.strip()] if flag == "-m" else [os.path.join(".", program) if flag[:1] == "-" else program]
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
        *target,
        *arguments,
    )
