"""Answers command lines of ddptop by forks of one process, which imports what an earlier one has needed.

A test that asks again and again would else spend on imports what the training under test needs. Each line of its input
is a request as JSON: arguments, and where they are not its own the folder `cwd`, the environment `env` and the seconds
`timeout`. Its answer is a line with the exit code, None for one that took longer and was killed, the output and the
errors.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
from typing import Any

from ddptop.tui.cli.main import main


def _run(request: dict[str, Any]) -> list[Any]:
    files = [os.memfd_create(name) for name in ("out", "err", "modules")]
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files[:2], 1):
            os.dup2(file, number)
        if "env" in request:
            os.environ.clear()
            os.environ.update(request["env"])
        if request.get("cwd"):
            os.chdir(request["cwd"])
        sys.argv[1:] = request["arguments"]
        try:
            main()
        finally:
            os.write(files[2], " ".join(sys.modules).encode())
        sys.exit()
    code = _code(pid, request.get("timeout"))
    out, err, modules = map(_content, files)
    for name in modules.split():
        if name.startswith(("ddptop", "zmq", "msgspec", "psutil")) and name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    return [code, out, err]


def _code(pid: int, timeout: float | None) -> int | None:
    process = os.pidfd_open(pid)
    in_time = bool(select.select([process], [], [], timeout)[0])
    os.close(process)
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if in_time else None


def _content(file: int) -> str:
    with open(file, "rb") as read:
        read.seek(0)
        return read.read().decode(errors="replace")


if __name__ == "__main__":
    # What a child prints must not carry what this process has not sent yet.
    for line in sys.stdin:
        answer = json.dumps(_run(json.loads(line)))
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
