"""Imports torch once and then forks ranks, for tests of real process groups that take a second each.

Reads one request a line from stdin, as JSON: world, module, arguments, folder, timeout_s. Each
rank calls `module.main(arguments)` as torchrun would have it, and writes to `folder/RANK.out` and
`.err`; the answer is a list of rank and exit code in the order of their ends, without those that had to be killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torchvision  # noqa: F401  # so that no rank has to import it

from ddptop.trainers import CATALOGUE

for program in CATALOGUE.values():
    importlib.import_module(program.module)
torch.set_num_threads(1)
# No rank is to go through all of that whenever garbage is collected.
gc.freeze()
sys.path.insert(0, str(Path(__file__).parent))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _be_rank(rank: int, request: dict[str, Any], port: int) -> None:
    for number, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{request['folder']}/{rank}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    world = str(request["world"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    code = 1
    try:
        code = importlib.import_module(request["module"]).main(request["arguments"])
    except SystemExit as request_to_end:
        code = int(request_to_end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(request: dict[str, Any]) -> list[tuple[int, int]]:
    port = _free_port()
    ranks = {}
    for rank in range(request["world"]):
        if (pid := os.fork()) == 0:
            _be_rank(rank, request, port)
        ranks[pid] = rank
    ends = []
    deadline = time.monotonic() + request["timeout_s"]
    while ranks and time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ends.append((ranks.pop(pid), os.waitstatus_to_exitcode(status)))
        else:
            time.sleep(0.01)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return ends


for line in sys.stdin:
    print(json.dumps(_serve(json.loads(line))), flush=True)
