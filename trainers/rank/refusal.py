"""A reason not to train, printed once for the user, in one line, with exit code 2.

The rank is read from the environment, so that this works before there is a process group.
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
    """A request of the user that cannot be carried out; the text is one line on the problem and its remedy."""


def one_line(error: BaseException) -> str:
    """Return an exception's message as one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def refuse(program: str, refusal: Refusal) -> int:
    """Print the refusal from rank 0 and return the exit code.

    The other ranks have the same refusal. They wait, to give rank 0 time to print it: when
    the first rank ends, torchrun ends the others.
    """
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{program}: {one_line(refusal)}", file=sys.stderr, flush=True)
    else:
        time.sleep(_PATIENCE_S)
    return EXIT_CODE
