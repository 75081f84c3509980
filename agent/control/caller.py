"""The connection of a controller to the ranks of a run, through its observer, and to the run's decisions.

A rank that acts on its own group, because its scheduler told it to, asks the others without the observer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Mapping
from typing import Protocol, TypeVar

import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.controller import Refused
from ddptop.agent.run.decisions import Decisions
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.identity import may_live
from ddptop.agent.run.rundir import ENDED_STATES, RunDir, RunDirError

Peer = TypeVar("Peer", bound=Hashable)


class Caller:
    """Commands to several peers at once; for use from one thread."""

    def __init__(self, addresses: Mapping[Peer, str]) -> None:
        """Connect to all peers; raises `Refused` where a socket belongs to another user or is open to others."""
        self._context = zmq.Context()
        self._sockets: dict[Hashable, zmq.Socket[bytes]] = {}
        try:
            for peer, address in addresses.items():
                self._sockets[peer] = connect(self._context, zmq.DEALER, address)
        except Refused:
            self._context.destroy(linger=0)
            raise

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def ask(self, commands: Mapping[Peer, wire.Command], timeout_s: float) -> dict[Peer, wire.Reply]:
        """Send each peer its command and return the replies that come in time; peers refuse commands after that."""
        poller = zmq.Poller()
        waiting: dict[zmq.Socket[bytes], tuple[Peer, int]] = {}
        for peer, command in commands.items():
            socket = self._sockets[peer]
            socket.send(wire.encode(deadline.limited(command, timeout_s)))
            waiting[socket] = (peer, command.id)
            poller.register(socket, zmq.POLLIN)
        replies: dict[Peer, wire.Reply] = {}
        give_up = time.monotonic() + timeout_s
        while waiting and (left := give_up - time.monotonic()) > 0:
            for socket, _ in poller.poll(int(left * 1000) + 1):
                peer, number = waiting[socket]
                answer = readable(socket.recv())
                if isinstance(answer, wire.Reply) and answer.id == number:
                    replies[peer] = answer
                    del waiting[socket]
                    poller.unregister(socket)
        return replies


class Relayed:
    """Commands to several ranks at once, by one socket to the observer of their run; for use from one thread."""

    def __init__(self, directory: RunDir) -> None:
        """Connect; raises `Refused` where the observer's socket belongs to another user or is open to others."""
        self._context = zmq.Context()
        try:
            self._socket = connect(self._context, zmq.DEALER, directory.address("observer", "cmd"))
        except Refused:
            self._context.destroy(linger=0)
            raise

    def __enter__(self) -> Relayed:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def ask(self, commands: Mapping[int, wire.Command], timeout_s: float) -> dict[int, wire.Reply]:
        """Send each rank its command and return the replies that come in time; ranks refuse commands after that.

        A rank that does not answer is left out, also where the observer says so in its place.
        """
        give_up = time.monotonic() + timeout_s
        self._socket.sndtimeo = int(timeout_s * 1000)
        waiting: dict[int, int] = {}
        for rank, command in commands.items():
            try:
                self._socket.send_multipart([b"%d" % rank, wire.encode(deadline.limited(command, timeout_s))])
            except zmq.Again:
                break
            waiting[rank] = command.id
        replies: dict[int, wire.Reply] = {}
        while waiting and (left := give_up - time.monotonic()) > 0:
            if not self._socket.poll(int(left * 1000) + 1):
                continue
            rank, answer = of_rank(self._socket.recv_multipart())
            if rank in waiting and isinstance(answer, wire.Reply) and answer.id == waiting[rank]:
                del waiting[rank]
                if answer.done or answer.text != silence(rank):
                    replies[rank] = answer
        return replies


def silence(rank: int) -> str:
    """Return the refusal with which the observer answers in place of a rank that does not."""
    return f"rank {rank} does not answer"


def of_rank(frames: list[bytes]) -> tuple[int, wire.Answer | None]:
    """Return the number of the rank that has answered, -1 for none, and its answer, None where it is unreadable."""
    if len(frames) != 2 or not frames[0].isdigit() or len(frames[0]) > 5:
        return -1, None
    return int(frames[0]), readable(frames[1])


class Calls(Protocol):
    """The way to the ranks of a run."""

    def ask(self, commands: Mapping[int, wire.Command], timeout_s: float) -> dict[int, wire.Reply]:
        """Send each rank its command and return the replies that come in time."""
        ...

    def __exit__(self, *_: object) -> None: ...


class LiveGroup:
    """The live ranks of a run, for one action; a `controller.Group`."""

    def __init__(self, directory: RunDir, *, relayed: bool = True) -> None:
        """Connect to the ranks through the observer, or without it where they are not to be `relayed`.

        Raises:
            Refused: the run is in a state in which not all of its ranks can be asked.
        """
        run = directory.read()
        if run.state in ENDED_STATES:
            raise Refused(f"run {run.run} is over ({run.state})")
        members = directory.members()
        missing = [rank for rank in range(run.world) if rank not in members]
        if missing:
            raise Refused(f"still starting: rank {missing[0]} has not reported yet; try again in a moment")
        alive = {
            rank: directory.address(rank, "cmd")
            for rank, member in members.items()
            if member.ended is None and may_live(member.process)
        }
        if not alive:
            raise Refused(f"no rank of run {run.run} is alive; `ddptop status {run.run}` tells how it ended")
        self.ranks = sorted(alive)
        self._directory = directory
        self._decisions = Decisions(directory.path)
        self._caller: Calls = Relayed(directory) if relayed else Caller(alive)
        self.ask = self._caller.ask

    def __enter__(self) -> LiveGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self._caller.__exit__(None, None, None)

    def departed(self) -> set[int]:
        """Return the ranks whose script has ended or whose process is gone."""
        members = self._directory.members()
        return {rank for rank in self.ranks if rank not in members or members[rank].ended is not None} | {
            rank for rank, member in members.items() if not may_live(member.process)
        }

    def newest(self) -> int:
        """Return the number of the last decision."""
        return self._decisions.newest()

    def decide(self, serial: int, decision: wire.Command) -> bool:
        """Make decision `serial`; return False where another process has already made it.

        Raises:
            Refused: nothing can be written in the run directory.
        """
        try:
            return self._decisions.decide(serial, wire.encode(decision))
        except OSError as error:
            raise Refused(f"{self._directory.path}: {error.strerror}; nothing can be decided there") from error


def connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    """Return a socket that is connected to an `ipc://` address of this user.

    Raises:
        Refused: the socket there belongs to another user, or is open to others.
    """
    try:
        check_socket(address, os.getuid())
    except RunDirError as problem:
        raise Refused(str(problem)) from problem
    socket = context.socket(kind)
    socket.linger = 0
    socket.maxmsgsize = wire.MAX_MESSAGE_BYTES
    # The connection to a frozen peer stays open; heartbeats close it.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 500)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1500)
    socket.connect(address)
    return socket


def readable(payload: bytes) -> wire.Answer | None:
    """Return the answer in a payload, None where it is unreadable."""
    try:
        return wire.read_answer(payload)
    except wire.Unreadable:
        return None
