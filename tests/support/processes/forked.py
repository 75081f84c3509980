"""Starts ranks of training scripts by forks of one process, for which torch is imported once.

Each line of its input is a request as JSON: the number of ranks `world`, the `words` of the script, its folder `cwd`,
its environment `env`, the file `output`, and whether the `agent` runs it.  Its answer is a line with the pid of the
process that has started the ranks, which leads a process group: it stands in for torchrun, which takes as long to
start as a rank.  When all have ended, the exit code of the first one that fails is in the file `output` and `.code`.
Under the agent a script begins once there is a file `output` and `.go`.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

# Besides torch, what an optimizer, DDP, FSDP and tensor parallelism import when they are first used.
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # noqa: F401  # the names are not used here

from ddptop.agent import __main__ as runner


def _start(request: dict[str, Any]) -> None:
    """Fork the ranks and wait for them."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for rank in range(request["world"]):
        if not os.fork():
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["world"]))
            if request["agent"]:
                sys.argv[1:] = request["words"]
                runner._execute = functools.partial(_execute, runner._execute, request["output"] + ".go")
                runner.main()
            else:
                sys.argv = request["words"]
                runpy.run_path(sys.argv[0], run_name="__main__")
            sys.exit()
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(request["world"])]
    with open(request["output"] + ".code", "w") as file:
        file.write(str(next(filter(None, codes), 0)))
    os._exit(0)


def _execute(execute: Callable[[str, bool], None], go: str, program: str, as_module: bool) -> None:
    """Let the script begin once the observer hears its rank: many a script is over before it would."""
    while not os.path.exists(go):
        time.sleep(0.005)
    execute(program, as_module)


if __name__ == "__main__":
    # No rank is to copy all of that whenever garbage is collected.
    gc.freeze()
    # Nobody waits for those who have started ranks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if not (pid := os.fork()):
            _start(json.loads(line))
        # Here, so that nobody looks for the group before it is there.
        os.setpgid(pid, pid)
        print(pid, flush=True)
