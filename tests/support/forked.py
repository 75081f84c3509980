"""Runs a script under the agent on several ranks, forked from one process for which torch is imported once.

Run as `forked.py WORLD SCRIPT ARGUMENTS…` in the environment of a run that exists: it stands in for torchrun, which
takes as long to start as a rank, and for the imports of all ranks but one.  The exit code is that of the first
rank that fails.
"""

from __future__ import annotations

import gc
import os
import sys

# Besides torch, what an optimizer, DDP and FSDP import when they are first used.
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401  # the names are not used here

from ddptop.agent import __main__ as runner


def main() -> int:
    """Fork the ranks and wait for them."""
    world, script = int(sys.argv[1]), sys.argv[2:]
    # No rank is to copy all of that whenever garbage is collected.
    gc.freeze()
    for rank in range(world):
        if not os.fork():
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
            sys.argv[1:] = script
            runner.main()
            sys.exit()
    return next((code for _ in range(world) if (code := os.waitstatus_to_exitcode(os.wait()[1]))), 0)


if __name__ == "__main__":
    sys.exit(main())
