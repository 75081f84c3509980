"""The torchruns of several hosts meet at a store: the hosts that it still waits for, by this host's own sockets.

Nothing is sent to the store: whether it has answered shows in the table of connections, as the connection of this
host's torchrun.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import dropwhile
from typing import Final, NamedTuple

from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process
from ddptop.agent.run.records import TORCHRUN, Member, Run

_LOOK_S: Final = 1.0
_LOADS_S: Final = 30.0
"""Seconds that torchrun may take until it asks for the first time: it loads torch before that."""
_SETTLES_S: Final = 5.0
"""Seconds after the last rank of this host has ended in which torchrun has mostly started the next, or has ended."""
_OPTION: Final = "rdzv-endpoint"
_FLAGS: Final = frozenset({"m", "module", "no-python", "run-path", "standalone"})
"""The options of torchrun without a value."""
_TORCHRUN: Final = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_DEFAULT_PORT: Final = 29400


def endpoint(run: Run) -> str | None:
    """Return `HOST:PORT` at which the torchruns of a run meet; None of a run on one host, or where it is not known.

    Of a job that something else launched the command line of its torchrun tells it, if that was given there.
    """
    if run.launched:
        words = run.command[run.command.index(TORCHRUN) + 1 :] if TORCHRUN in run.command else ()
    elif (run.nodes or 1) > 1 and run.torchrun is not None:
        started = identity.command(run.torchrun.pid)
        words = tuple(dropwhile(lambda word: os.path.basename(word) not in _TORCHRUN, started))[1:]
    else:
        return None
    return next((value for name, value in _options(words) if name == _OPTION and value), None)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield torchrun's own options, with dashes, and their values: behind them stands the program, with others."""
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word == "--":
            return
        name, given, value = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        # The value of a short option may be written next to it, as in `-r3`.
        if not given and name not in _FLAGS and (word.startswith("--") or len(name) == 1):
            value = next(left, "")
        yield name, value


def port_of(endpoint: str) -> int:
    """Return the port of an endpoint, the one of torchrun where it has none."""
    text = endpoint.rpartition("]")[2].rpartition(":")[2]
    return int(text) if text.isdecimal() else _DEFAULT_PORT


class Awaited:
    """Tells what a start of a run on several hosts waits for, while none of its ranks lives here.

    After a failure torchrun starts the group again once all hosts have met anew: one of them may be gone for good.
    """

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint(run)
        self._nodes = run.nodes or 0
        self._clock = clock
        self._began = clock()
        self._due = 0.0
        self._told = ""
        self._lived_at = -math.inf

    def text(self, torchrun: Process | None, members: Collection[Member], *, lives: bool) -> str:
        """Return what is waited for; empty where it is nothing, or not known.

        Args:
            torchrun: the torchrun of this host.
            members: the records of the ranks that were started here last.
            lives: whether one of them lives.
        """
        if lives:
            self._lived_at = self._clock()
        if self._endpoint is None or torchrun is None or self._clock() - self._lived_at < _SETTLES_S:
            return ""
        if members and all(member.ended is not None and not member.ended.exit_code for member in members):
            # They are done. torchrun waits for the others to be, and starts nothing.
            return ""
        if self._clock() >= self._due:
            self._due = self._clock() + _LOOK_S
            self._told = self._say(look(torchrun.pid, port_of(self._endpoint)), self._endpoint)
        return self._told

    def _say(self, found: Connections | None, endpoint: str) -> str:
        if found is not None and 0 < found.peers < self._nodes:
            return f"{self._nodes - found.peers} of {self._nodes} hosts at the rendezvous {endpoint}"
        if found is not None and found.answers:
            return f"the other hosts at the rendezvous {endpoint}"
        if found is None or self._clock() - self._began < _LOADS_S:
            return f"the rendezvous at {endpoint}"
        return f"the rendezvous at {endpoint}, which does not answer"


class Connections(NamedTuple):
    """The TCP connections of a process that have to do with a store."""

    answers: bool
    """It has one to that port of any host."""
    peers: int
    """Addresses that have one to that port of this process, where it is the store: those of the hosts that have come,
    its own included."""


def look(pid: int, port: int) -> Connections | None:
    """Return the connections of a process to that port, of any host and of its own; None: they cannot be read."""
    # The dashboard's launch form reads ports here, and does without psutil, which takes long to import.
    import psutil

    try:
        rows = psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    met = [row for row in rows if row.status == psutil.CONN_ESTABLISHED]
    peers = {row.raddr.ip for row in met if row.laddr.port == port}
    return Connections(any(row.raddr.port == port for row in met), len(peers))
