"""Tools of the tests: run the command line, start a process and end it, wait for a condition, look into /proc."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from ddptop.agent.client import runs
from ddptop.agent.client.look import frames
from ddptop.agent.run import rundir
from ddptop.tui.cli.output.status import as_json
from support.processes.asking import WARM, Warm

DDPTOP: Final = (sys.executable, "-m", "ddptop.tui.cli.main")
LIGHT: Final = Path(__file__).parent / "processes" / "light.py"
"""What training scripts of tests import that start many ranks; not imported here, because it imports torch."""
_STARTING_VERBS: Final = frozenset(("launch", "restart", "serve"))
"""Verbs that start processes, or serve until they are ended: an interpreter of its own runs them."""
_Found = TypeVar("_Found")

WAIT: Final = f"import os, select; select.select([os.pidfd_open({os.getpid()})], [], [])"
"""A line of Python that waits for the end of these tests: what one starts and cannot end does not outlive them."""
WAIT_LOCKED: Final = (
    "import ctypes, os, struct; ctypes.PyDLL(None).poll("
    f"ctypes.create_string_buffer(struct.pack('ihh', os.pidfd_open({os.getpid()}), 1, 0)), 1, -1)"
)
"""The same, in a C function that does not let go of the interpreter lock."""
WAITING: Final = ("tail", f"--pid={os.getpid()}", "-f", "/dev/null")
"""The same as a command that starts at once."""

DEADLINE_S: Final = 60.0
"""How long to wait for what is sure to come: on a busy machine a process may take half a minute to start."""


def own_words(stderr: str) -> str:
    """Return what a script under `-m ddptop.agent` has printed, without the line that says which run it is."""
    return "".join(line for line in stderr.splitlines(True) if not line.startswith("ddptop: this is run "))


@contextlib.contextmanager
def started(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is ended with the block, however the block ends."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def _start_warm() -> subprocess.Popen[str]:
    # Runs are told by what stands in the environment of their processes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DDPTOP")}
    process = subprocess.Popen(
        [sys.executable, str(WARM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(process.communicate)
    return process


_WARM: Final = Warm(_start_warm)


def write_script(folder: Path, text: str, name: str = "train.py") -> Path:
    """Write a training script that may import `light`, and return its path."""
    (folder / LIGHT.name).write_text(LIGHT.read_text())
    path = folder / name
    path.write_text(text)
    return path


def ddptop(
    *arguments: str, timeout: float = 2 * DEADLINE_S, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, without a terminal.

    Verbs that start nothing are run in a fork of a process that has imported them, unless another thread asks there.
    """
    if arguments and arguments[0] not in _STARTING_VERBS and _WARM.one_asks.acquire(blocking=False):
        try:
            return _WARM.answer(arguments, cwd=str(cwd or os.getcwd()), env=dict(os.environ), timeout=timeout)
        finally:
            _WARM.one_asks.release()
    return subprocess.run(
        [*DDPTOP, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def asked(environment: dict[str, str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `ddptop` in an environment by which a shell asks it for completions."""
    return _WARM.ask((), cwd=str(cwd), env=environment, timeout=2 * DEADLINE_S)


def status(run: str) -> dict[str, Any]:
    """Return what `status --json` tells, once every rank that has come up was heard of.

    The verb itself waits two seconds for them, which on a busy machine may be too short.  Asked in this
    process: to start one for each look takes the time that the run under test needs.
    """

    def told() -> dict[str, Any] | None:
        (frame,) = frames([runs.find(run)], "test")
        found: dict[str, Any] = json.loads(json.dumps(as_json(frame)))
        silent = [
            rank
            for rank in found["ranks"]
            if rank["pid"] and rank["state"] in ("starting", "silent") and rank["step"] is None
        ]
        return None if silent else found

    found = until(told, f"all ranks of {run} to be heard")
    assert isinstance(found, dict)
    return found


def until(condition: Callable[[], _Found], what: str, timeout: float = DEADLINE_S) -> _Found:
    """Wait until `condition` holds and return what it gave; fail with `what` when it does not in time."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.05)
    return found


def starved_s() -> float:
    """Return the seconds since some moment in which a process of this machine has waited for a core.

    So much longer something may take than on a machine without other work. 0 where the kernel does not tell.
    """
    try:
        words = Path("/proc/pressure/cpu").read_text().split()
    except OSError:
        return 0.0
    return int(words[4].removeprefix("total=")) / 1e6


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def carriers(run_id: str) -> list[int]:
    """Return the processes whose environment carries the run's marker, read from /proc alone."""
    wanted = f"{rundir.MARKER}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
