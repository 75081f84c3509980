"""The torchruns of several hosts meet at a store: what is awaited there, told from this host's own sockets.

Nothing is sent to the store: whether it has answered shows in the table of connections, as the connection of this
host's torchrun.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final

from ddptop.agent.run.identity import Process
from ddptop.agent.run.records import ENGINE, Run

_LOOK_S: Final = 1.0
_LOADS_S: Final = 30.0
"""Seconds that torchrun may take until it asks for the first time: it loads torch before that."""
_OPTION: Final = "--rdzv-endpoint="
_ESTABLISHED: Final = "01"
_TABLES: Final = ("tcp", "tcp6")
_MOST_LINES: Final = 100_000
_DEFAULT_PORT: Final = 29400


def endpoint(run: Run) -> str | None:
    """Return `HOST:PORT` at which the torchruns of a launched run meet; None of a run on one host."""
    if not run.launched or ENGINE not in run.command:
        return None
    # Behind the options stands the program, with options of its own.
    ours = takewhile(lambda word: word.startswith("-"), run.command[run.command.index(ENGINE) + 1 :])
    return next((word.removeprefix(_OPTION) for word in ours if word.startswith(_OPTION)), None)


def port_of(endpoint: str) -> int:
    """Return the port of an endpoint, the one of torchrun where it has none."""
    text = endpoint.rpartition("]")[2].rpartition(":")[2]
    return int(text) if text.isdecimal() else _DEFAULT_PORT


class Awaited:
    """Tells what the start of a run on several hosts waits for, until a rank is there."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint(run)
        self._clock = clock
        self._began = clock()
        self._due = 0.0
        self._told = ""

    def text(self, torchrun: Process | None, *, reported: bool) -> str:
        """Return what is waited for; empty where it is nothing, or not known.

        Args:
            torchrun: the torchrun of this host.
            reported: whether a rank of this host has reported.
        """
        if self._endpoint is None or torchrun is None or reported:
            return ""
        if self._clock() >= self._due:
            self._due = self._clock() + _LOOK_S
            answers = is_connected(torchrun.pid, port_of(self._endpoint))
            self._told = self._say(answers, self._endpoint)
        return self._told

    def _say(self, answers: bool | None, endpoint: str) -> str:
        if answers:
            return f"the other hosts, which meet at {endpoint}"
        if answers is None or self._clock() - self._began < _LOADS_S:
            return f"the rendezvous at {endpoint}"
        return f"the rendezvous at {endpoint}, which does not answer"


def is_connected(pid: int, port: int) -> bool | None:
    """Say whether a process has a TCP connection to that port of any host; None where that cannot be read."""
    try:
        own = set(_sockets(pid))
        found = [inode for table in _TABLES for inode in _connected(f"/proc/{pid}/net/{table}", port)]
    except OSError:
        return None
    return not own.isdisjoint(found)


def _sockets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(f"{folder}/{name}").partition(":")
            if kind == "socket":
                yield inode.strip("[]")


def _connected(table: str, port: int) -> Iterator[str]:
    """Yield the inodes of the connections to that port, from a table as `proc(5)` describes it."""
    wanted = f":{port:04X}"
    with open(table, encoding="ascii", errors="replace") as lines:
        for number, line in enumerate(lines):
            fields = line.split()
            if number > _MOST_LINES or len(fields) < 10:
                break
            if fields[3] == _ESTABLISHED and fields[2].endswith(wanted):
                yield fields[9]
