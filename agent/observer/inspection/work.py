"""Work that a rank's stack does not show: what the rank and its children read, write, send, receive and compute.

Only numbers that grow are taken here; `agent.observer.judge.hang.activity` says of two of them what has moved.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

from ddptop.agent import wire
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process, Row

_T = TypeVar("_T")

_PROC: Final = Path("/proc")
_MOST: Final = 256
"""Children of a rank that are looked at, and theirs."""
# From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301
_DONE: Final = {2, 3}
"""Messages that end an answer: an error, or its end."""
_INFO: Final = 2
_ALL_STATES: Final = 0xFFF
_LISTENS: Final = 10
_MOVED_AT: Final = 120
"""Place in `tcp_info` of the bytes that were sent and acknowledged; those received follow."""


class _Connections:
    """The TCP connections of one process: the kernel forgets the bytes of one that is closed."""

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0
        """Connections that were seen, without those that nobody has accepted."""
        self._open: dict[int, int] = {}
        """By inode, the bytes of those that are open."""

    def note(self, found: Mapping[int, int]) -> None:
        """Take in the bytes of those that are open now."""
        connected = {inode: moved for inode, moved in found.items() if moved}
        self.bytes += sum(max(0, moved - self._open.get(inode, 0)) for inode, moved in connected.items())
        self.count += len(connected.keys() - self._open.keys())
        self._open = connected


class Works:
    """The work of ranks, measured again and again."""

    def __init__(self) -> None:
        """Know no connection yet."""
        self._connections = defaultdict[int, _Connections](_Connections)
        """By rank."""

    def measure(
        self,
        processes: Mapping[int, Process],
        own_bytes: Mapping[int, int],
        spared: Collection[int] = (),
        trainers: Mapping[int, int] | None = None,
    ) -> dict[int, wire.Work]:
        """Return what ranks and their children have done so far, by rank; without those of which it cannot be read.

        Args:
            processes: of the ranks.
            own_bytes: what their agents have read and written.
            spared: pids of processes that do no work of a rank, whoever has started them: other ranks, and observers.
            trainers: by rank, the system's id of its training thread, where it may be another one than the main thread.
        """
        if sys.platform != "linux":
            return {}
        table = identity.table()
        moved = _moved_by_sockets()
        found = {}
        for rank, process in processes.items():
            row = table.get(process.pid)
            if row is not None and identity.look(process) is not None:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    below = _below(process.pid, table, {*spared, os.getpid()})
                    trainer = (trainers or {}).get(rank, process.pid)
                    connections = self._connections[rank]
                    connections.note(_sent_and_received(process.pid, moved))
                    found[rank] = _work(process.pid, trainer, below, table, moved, connections, own_bytes.get(rank, 0))
        return found


def _work(
    pid: int,
    trainer: int,
    below: list[int],
    table: Mapping[int, Row],
    moved: Mapping[int, int],
    connections: _Connections,
    own_bytes: int,
) -> wire.Work:
    # The CPU time and the bytes of a child that was waited for become those of its parent.
    ended_s = sum(_readable((pid, *below), lambda each: _cpu_s(_PROC / str(each), 13)))
    file_bytes, written = _io(pid)
    file_bytes = max(0, file_bytes - own_bytes)
    trainer_s = _cpu_s(_PROC / str(pid) / "task" / str(trainer), 11)
    return wire.Work(
        at_ns=time.time_ns(),
        file_bytes=file_bytes,
        socket_bytes=connections.bytes,
        child_bytes=sum(_readable(below, lambda each: _io(each)[0] + sum(_sent_and_received(each, moved).values()))),
        child_cpu_ms=int(1000 * (ended_s + sum(table[each].cpu_s for each in below))),
        thread_cpu_ms=max(0, int(1000 * (table[pid].cpu_s - trainer_s))),
        children=len(below),
        connections=connections.count,
        written_bytes=min(written, file_bytes),
    )


def _readable(pids: Iterable[int], read: Callable[[int], _T]) -> Iterator[_T]:
    for pid in pids:
        # One that has ended meanwhile, or that is another user's by now.
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield read(pid)


def _below(pid: int, table: Mapping[int, Row], spared: Collection[int]) -> list[int]:
    children = defaultdict(list)
    for row in table.values():
        children[row.parent].append(row.process.pid)
    found: list[int] = []
    rest = [pid]
    while rest and len(found) < _MOST:
        fresh = [each for each in children[rest.pop()] if each not in spared]
        found += fresh
        rest += fresh
    return found[:_MOST]


def _cpu_s(folder: Path, field: int) -> float:
    """Return the sum of two fields after the name, by proc(5): own CPU from 11, that of children waited for from 13."""
    fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[field]) + int(fields[field + 1])) / os.sysconf("SC_CLK_TCK")


def _io(pid: int) -> tuple[int, int]:
    """Return the bytes of all calls of `read` and `write`, as of files, pipes and terminals, and of `write` alone."""
    lines = (_PROC / str(pid) / "io").read_text().split()
    return int(lines[1]) + int(lines[3]), int(lines[3])


def _sent_and_received(pid: int, moved: Mapping[int, int]) -> dict[int, int]:
    """Return the bytes of a process's connections, by inode."""
    found = {}
    for entry in os.scandir(_PROC / str(pid) / "fd"):
        with contextlib.suppress(OSError):
            kind, _, rest = os.readlink(entry.path).partition("[")
            if kind == "socket:" and (inode := int(rest[:-1])) in moved:
                found[inode] = moved[inode]
    return found


def _moved_by_sockets() -> dict[int, int]:
    """Return the bytes sent and received of this machine's TCP connections, by inode.

    A call of `recv` counts nowhere else. Those that a process has accepted are left out: a rank that serves others,
    as the store of the group, answers them whatever it does itself.
    """
    found: dict[int, tuple[int, int]] = {}
    listening = set()
    with contextlib.suppress(OSError, struct.error), _diagnosis() as asked:
        for message in _answers(asked):
            state, port = message[1], int.from_bytes(message[4:6], "big")
            if state == _LISTENS:
                listening.add(port)
            elif (info := _attribute(message, _INFO)) is not None and len(info) >= _MOVED_AT + 16:
                sent, received = struct.unpack_from("=QQ", info, _MOVED_AT)
                found[struct.unpack_from("=I", message, 68)[0]] = port, sent + received
    return {inode: moved for inode, (port, moved) in found.items() if port not in listening}


def _diagnosis() -> socket.socket:
    asked = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
    asked.settimeout(0.2)
    return asked


def _answers(asked: socket.socket) -> Iterator[bytes]:
    for family in (socket.AF_INET, socket.AF_INET6):
        head = struct.pack("=IHHII", 72, _BY_FAMILY, _DUMP, 1, 0)
        asked.send(head + struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ALL_STATES))
        more = True
        while more:
            rest = asked.recv(1 << 17)
            while len(rest) >= 16 and more:
                length, kind = struct.unpack_from("=IH", rest)
                more = kind not in _DONE
                if more:
                    yield rest[16:length]
                rest = rest[_padded(length) :]


def _attribute(message: bytes, wanted: int) -> bytes | None:
    at = 72
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == wanted:
            return message[at + 4 : at + length]
        at += max(4, _padded(length))
    return None


def _padded(length: int) -> int:
    return length + 3 & ~3
