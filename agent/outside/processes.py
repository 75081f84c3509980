"""The processes of this user that run Python, as the system shows them: words, environment, torch, connections.

All that costs more than a small file is read once somebody asks for it, and only of the processes that are meant.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process, Row
from ddptop.agent.run.rundir import BASE_VARIABLE, MARKER

_PROC: Final = Path("/proc")
_TORCH: Final = b"/libtorch_"
_WITH_VALUE: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker", "compile_worker")
"""Parts of the command line of helpers that Python or torch starts."""
_FORKSERVER: Final = "multiprocessing.forkserver"
_SPAWNED: Final = "spawn_main"
_WORKER: Final = "pt_data_worker"
"""The name that a data worker of torch gives itself."""
_BACKWARD: Final = "pt_autograd"
"""The beginning of the name of the threads that do backward passes for a device."""
_ESTABLISHED: Final = b"01"
_MAPPED: Final = b"0000000000000000FFFF0000"
"""The beginning of an IPv4 address in the table of IPv6."""
_seen_with_torch: set[Process] = set()
"""Processes of which it is known; a library that is loaded stays."""


@dataclass(frozen=True, slots=True)
class Python:
    """A process that runs Python."""

    row: Row
    words: tuple[str, ...]
    environment: Mapping[str, str]
    """The environment with which it was started."""
    name: str = ""
    """The name of its main thread."""

    @property
    def program(self) -> str:
        """Its program: a path, `-m module`, or empty."""
        return program_of(self.words)[0]

    @property
    def is_spawned(self) -> bool:
        """True for a child that Python's multiprocessing has started as another interpreter."""
        return any(_SPAWNED in word for word in self.words[1:4])

    @property
    def serves_forks(self) -> bool:
        """True for the process whose only work is to fork children for another one."""
        return any(_FORKSERVER in word for word in self.words[1:4])

    @property
    def loads_data(self) -> bool:
        """True for a data worker."""
        return self.name.startswith(_WORKER)

    @property
    def is_helper(self) -> bool:
        """True for a data worker and whatever else Python or torch starts beside a rank."""
        return self.loads_data or any(part in word for word in self.words[1:4] for part in _HELPERS)


def program_of(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the program in the command line of a Python, and its arguments; empty for code after `-c` and for none.

    A process that has given itself a title, such as the workers of Ray, has it for its program.
    """
    if len(words) == 1 and not os.path.basename(words[0]).startswith(("python", "pypy")):
        return words[0].partition(" ")[0], ()
    at = 1
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return word, words[at + 1 :]
        if not word.startswith("--") and word.endswith("m"):
            return (f"-m {words[at + 1]}", words[at + 2 :]) if at + 1 < len(words) else ("", ())
        if word == "-" or (not word.startswith("--") and word.endswith("c")):
            break
        at += 2 if word in _WITH_VALUE else 1
    return "", ()


class Processes:
    """The processes of this machine at one moment."""

    def __init__(self) -> None:
        """Read the process table, and words and environment of each Python of this user that has not our mark."""
        self.table = identity.table()
        self.pythons = {each.row.process.pid: each for each in self._read()}

    def _read(self) -> Iterator[Python]:
        user = os.geteuid()
        for pid, row in self.table.items():
            if row.uid != user or not _runs_python(pid):
                continue
            environment = identity.environment(pid)
            # A process that names another folder for its runs is none of those that are listed here.
            if MARKER not in environment and environment.get(BASE_VARIABLE) in (None, os.environ.get(BASE_VARIABLE)):
                yield Python(row, identity.command(pid), environment, _name(f"{_PROC}/{pid}/comm"))

    def loads_torch(self, pid: int) -> bool:
        """Say whether a process has loaded torch."""
        process = self.table[pid].process
        if process not in _seen_with_torch:
            try:
                if _TORCH not in (_PROC / str(pid) / "maps").read_bytes():
                    return False
            except OSError:
                return False
            _seen_with_torch.add(process)
        return True

    def environment(self, pid: int) -> Mapping[str, str]:
        """Return the environment with which a process was started; empty where it cannot be read."""
        known = self.pythons.get(pid)
        return identity.environment(pid) if known is None else known.environment

    def does_backward(self, pid: int) -> bool:
        """Say whether a process has threads that do backward passes; on a CPU the training thread does them itself."""
        try:
            threads = os.listdir(_PROC / str(pid) / "task")
        except OSError:
            return False
        return any(_name(f"{_PROC}/{pid}/task/{each}/comm").startswith(_BACKWARD) for each in threads)

    def are_connected(self, pids: Sequence[int]) -> bool:
        """Say whether two of some processes, of one parent, have a TCP connection with each other, as ranks have."""
        owners = {socket: pid for pid in pids for socket in _sockets(pid)}
        ends: dict[tuple[bytes, bytes], int] = {}
        for local, remote, inode in _connections(pids[0]):
            if (owner := owners.get(inode)) is not None:
                ends[local, remote] = owner
                if ends.get((remote, local), owner) != owner:
                    return True
        return False


def version_of(pid: int) -> tuple[int, int] | None:
    """Return the version of a Python by the name of its program, such as `python3.14`; None where that does not say."""
    found = re.match(r"python(\d)\.(\d{1,2})", _program(pid))
    return (int(found[1]), int(found[2])) if found is not None else None


def _runs_python(pid: int) -> bool:
    return _program(pid).startswith(("python", "pypy"))


def _program(pid: int) -> str:
    return os.path.basename(identity.link(pid, "exe"))


def _name(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").rstrip("\n")
    except OSError:
        return ""


def _sockets(pid: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        for each in os.listdir(f"{_PROC}/{pid}/fd"):
            target = identity.link(pid, f"fd/{each}")
            if target.startswith("socket:["):
                yield target[8:-1].encode()


def _connections(pid: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield both ends and the inode of each TCP connection in the network of a process, by proc(5)."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "net" / name).read_bytes().splitlines()[1:]:
                fields = line.split(maxsplit=10)
                if len(fields) > 9 and fields[3] == _ESTABLISHED:
                    yield _plain(fields[1]), _plain(fields[2]), fields[9]


def _plain(end: bytes) -> bytes:
    """Return an address and port with IPv4 alike in both tables."""
    return end.removeprefix(_MAPPED) if len(end) > len(_MAPPED) else end
