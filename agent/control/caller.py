"""The connection of a controller to the ranks of a run, through its observer, and to the run's decisions.

A rank that acts on its own group, because its scheduler told it to, asks the others without the observer, unless some
are on other hosts.  Where decisions are made on another host, the observer passes on what is to be decided.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Hashable, Mapping
from itertools import count
from typing import Final, Protocol, TypeVar

import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.controller import Refused
from ddptop.agent.control.polled import named
from ddptop.agent.run import hosts
from ddptop.agent.run.decisions import Decisions, are_made_elsewhere
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.identity import may_live
from ddptop.agent.run.rundir import ENDED_STATES, Member, Run, RunDir, RunDirError
from ddptop.agent.text import clean_line

Peer = TypeVar("Peer", bound=Hashable)


_DECIDE_S: Final = 3.0
"""Seconds for a decision that is made on another host."""
_RECORDED_S: Final = 2.0
"""Seconds to wait for the record of a rank on a linked host: the observer writes them once a second."""


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
        # In one order, so that what is said of the same refusals is the same text.
        return dict(sorted(replies.items()))

    def decide(self, serial: int, content: bytes, timeout_s: float) -> bool:
        """Have decision `serial` made where this run decides; return False where another was made with that number.

        Raises:
            Refused: nobody answered in time, so that it is not known whether it was made; or it was refused.
        """
        number = next(_ids)
        self._socket.sndtimeo = int(timeout_s * 1000)
        give_up = time.monotonic() + timeout_s
        with contextlib.suppress(zmq.Again):
            self._socket.send(wire.encode(wire.Decide(number, serial, content)))
            while (left := give_up - time.monotonic()) > 0:
                if not self._socket.poll(int(left * 1000) + 1):
                    continue
                frames = self._socket.recv_multipart()
                answer = readable(frames[0]) if len(frames) == 1 else None
                if isinstance(answer, wire.Reply) and answer.id == number:
                    if not answer.done and answer.text != DECIDED_ALREADY:
                        raise Refused(answer.text)
                    return answer.done
        raise Refused(
            f"the host of rank 0, which decides for all hosts, did not answer within {timeout_s:.0f} s; "
            "look whether it was done, and try again"
        )


DECIDED_ALREADY: Final = "another decision was made with that number"
"""The answer to a `Decide` that came too late."""

_ids = count(1 << 32)
"""Numbers that no command to a rank has."""


def silence(rank: int) -> str:
    """Return the refusal with which the observer answers in place of a rank that does not."""
    return f"rank {rank} does not answer"


def of_rank(frames: list[bytes]) -> tuple[int, wire.Answer | None]:
    """Return the number of the rank that has answered, -1 for none, and its answer, None where it is unreadable."""
    if len(frames) != 2 or not frames[0].isdigit() or len(frames[0]) > 5:
        return -1, None
    return int(frames[0]), readable(frames[1])


class Asking(Protocol):
    """Sends each rank its command, and returns the replies that come in time."""

    def __call__(self, commands: Mapping[int, wire.Command], timeout_s: float) -> dict[int, wire.Reply]:
        """Ask."""
        ...


def _departed(directory: RunDir, members: Mapping[int, Member], here: Collection[int]) -> set[int]:
    """Return the ranks whose script has ended or whose process is gone, here or on another host."""
    known = hosts.read_hosts(directory.path) if len(here) < len(members) else ()
    with contextlib.suppress(RunDirError):
        if directory.read().state in ENDED_STATES:
            return set(members)

    def lives(rank: int, member: Member) -> bool:
        return may_live(member.process) if rank in here else hosts.may_train(member, known)

    return {rank for rank, member in members.items() if member.ended is not None or not lives(rank, member)}


def _records(directory: RunDir, run: Run) -> tuple[dict[int, Member], dict[int, Member]]:
    """Return the records of the ranks on this host, and those of all ranks.

    Raises:
        Refused: a rank has no record, nor gets one in time where its host is linked.
    """
    give_up = time.monotonic() + _RECORDED_S
    while True:
        here = directory.members()
        members = {**hosts.far_members(directory.path), **here}
        missing = {rank for rank in range(run.world) if rank not in members}
        if not missing:
            return here, members
        linked = {rank for host in hosts.read_hosts(directory.path) if host.state == "linked" for rank in host.ranks}
        if unheard := sorted(missing - linked):
            raise Refused(_missing(run, unheard, len(here)))
        if time.monotonic() > give_up:
            raise Refused(_starting(min(missing)))
        time.sleep(0.05)


def _missing(run: Run, ranks: list[int], here: int) -> str:
    if run.local_world is not None and here >= run.local_world < run.world:
        return (
            f"{named(ranks)}: on another host, of which nothing is heard here; an action is for all ranks or none; "
            f"`ddptop status {run.run}` tells which hosts are linked"
        )
    return _starting(ranks[0])


def _starting(rank: int) -> str:
    return f"still starting: rank {rank} has not reported yet; try again in a moment"


class LiveGroup:
    """The live ranks of a run, for one action; a `controller.Group`."""

    def __init__(self, directory: RunDir, *, relayed: bool = True) -> None:
        """Connect to the ranks through the observer, or without it where they are here and not to be `relayed`.

        Raises:
            Refused: the run is in a state in which not all of its ranks can be asked.
        """
        run = directory.read()
        if run.state in ENDED_STATES:
            raise Refused(f"run {run.run} is over ({run.state})")
        here, members = _records(directory, run)
        alive = sorted(members.keys() - _departed(directory, members, here))
        if not alive:
            raise Refused(f"no rank of run {run.run} is alive; `ddptop status {run.run}` tells how it ended")
        self.ranks = alive
        self._directory = directory
        self._decisions = Decisions(directory.path)
        self._elsewhere = are_made_elsewhere(directory)
        self._caller: Relayed | Caller
        if relayed or self._elsewhere or any(rank not in here for rank in alive):
            self._caller = Relayed(directory)
        else:
            self._caller = Caller({rank: directory.address(rank, "cmd") for rank in alive})
        self.ask: Asking = self._caller.ask

    def __enter__(self) -> LiveGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self._caller.__exit__(None, None, None)

    def departed(self) -> set[int]:
        """Return the ranks whose script has ended or whose process is gone."""
        here = self._directory.members()
        members = {**hosts.far_members(self._directory.path), **here}
        return {rank for rank in self.ranks if rank not in members} | _departed(self._directory, members, here)

    def unheard(self, ranks: Collection[int]) -> str:
        """Say that nothing is heard of the hosts of these ranks; empty where that is not so of all of them."""
        silent = [host for host in hosts.read_hosts(self._directory.path) if host.state in ("silent", "gone")]
        blamed = [host for host in silent if not set(host.ranks).isdisjoint(ranks)]
        if not set(ranks) <= {rank for host in blamed for rank in host.ranks}:
            return ""
        return f"{', '.join(clean_line(host.host, 60) for host in blamed[:3])} is not heard ({named(ranks)})"

    def newest(self) -> int:
        """Return the number of the last decision."""
        return self._decisions.newest()

    def decide(self, serial: int, decision: wire.Command) -> bool:
        """Make decision `serial`; return False where another process has already made it.

        Raises:
            Refused: nothing can be written in the run directory, or the host that decides cannot be reached.
        """
        if isinstance(self._caller, Relayed) and self._elsewhere:
            return self._caller.decide(serial, wire.encode(decision), _DECIDE_S)
        try:
            return self._decisions.decide(serial, wire.encode(decision))
        except OSError as error:
            raise Refused(self._decisions.refusal(error)) from error


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
