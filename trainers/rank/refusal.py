"""A reason not to train, told to the person once, in one line, with exit code 2.

Knows the rank only from the environment, so that it works before there is a process group.
"""

from __future__ import annotations

import os
import sys
import time

EXIT_CODE = 2
NO_MPI = (
    "--backend mpi needs a torch that was built from source beside an MPI library (USE_MPI=1), and mpirun to start "
    "the ranks; no published torch is, so choose gloo or nccl"
)
_PATIENCE_S = 5.0


class Refusal(Exception):
    """What the person asked for cannot be done; says in one line what it is and what would help."""


def one_line(error: BaseException) -> str:
    """Return an exception's message as one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def refuse(program: str, refusal: Refusal) -> int:
    """Print the refusal from rank 0 and return the exit code.

    The other ranks have the same to say. They stay silent and give rank 0 time to say it: at
    the first rank that ends, torchrun ends the others.
    """
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{program}: {one_line(refusal)}", file=sys.stderr, flush=True)
    else:
        time.sleep(_PATIENCE_S)
    return EXIT_CODE
