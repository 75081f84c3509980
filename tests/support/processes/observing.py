"""Starts observers by forks of one process, which has imported what they need.

Each line of its input is a request as JSON: the run's `directory` and the environment `env`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any

from ddptop.agent.observer import observer


def _observe(request: dict[str, Any]) -> int:
    """Be the observer of a run as `observers.start` starts it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open("observer.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    sys.argv[1:] = [request["directory"]]
    return observer.main()


if __name__ == "__main__":
    gc.freeze()
    # Nobody waits for an observer.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if not (pid := os.fork()):
            sys.exit(_observe(json.loads(line)))
        print(pid, flush=True)
