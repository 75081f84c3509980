"""The only file of the dashboard with sockets: takes telemetry in, carries commands out.

`Link` is the `Source` of the screens, of `status` and of the plain output.  Draining is
bounded in time and never blocks; what controls a run opens sockets of its own, because it
runs in a thread and a ZeroMQ socket belongs to one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar

import zmq

from ddptop.agent import wire
from ddptop.agent.group import census, processes, recorder
from ddptop.agent.rundir import ENDED_STATES, RunDir, RunDirError, is_alive
from ddptop.tui import control
from ddptop.tui.frame import Frame
from ddptop.tui.settings import Thresholds
from ddptop.tui.source import Refused
from ddptop.tui.store import Liveness, Store

DEFAULT = Thresholds()
DRAIN_S = 0.004
"""Longest stay in one `poll`, so that a flood of messages never holds up a key."""
LOOK_S = 0.25
SURVEY_S = 1.0
FILL_S = 5.0
"""A gap that is not filled within this is given up and counted."""
KILL_REPLY_S = 30.0
"""Beyond the grace period: KILL, and processes that are slow to die."""

Peer = TypeVar("Peer", bound=Hashable)


class Caller:
    """Commands to several peers at once; for use from one thread."""

    def __init__(self, addresses: Mapping[Peer, str]) -> None:
        self._context = zmq.Context()
        self._sockets: dict[Hashable, zmq.Socket[bytes]] = {}
        for peer, address in addresses.items():
            self._sockets[peer] = _connect(self._context, zmq.DEALER, address)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def ask(self, commands: Mapping[Peer, wire.Command], timeout_s: float) -> dict[Peer, wire.Reply]:
        """Send each peer its command and return the replies that came in time."""
        poller = zmq.Poller()
        waiting: dict[zmq.Socket[bytes], tuple[Peer, int]] = {}
        for peer, command in commands.items():
            socket = self._sockets[peer]
            socket.send(wire.encode(command))
            waiting[socket] = (peer, command.id)
            poller.register(socket, zmq.POLLIN)
        replies: dict[Peer, wire.Reply] = {}
        deadline = time.monotonic() + timeout_s
        while waiting and (left := deadline - time.monotonic()) > 0:
            for socket, _ in poller.poll(int(left * 1000) + 1):
                peer, number = waiting[socket]
                answer = _readable(socket.recv())
                if isinstance(answer, wire.Reply) and answer.id == number:
                    replies[peer] = answer
                    del waiting[socket]
                    poller.unregister(socket)
        return replies


class Link:
    """One run, as seen and controlled from outside it."""

    def __init__(self, directory: RunDir, who: str, thresholds: Thresholds = DEFAULT) -> None:
        self.directory = directory
        self._who = who
        self._run = directory.read()
        logs = {rank: str(directory.rank_log(rank)) for rank in range(self._run.world)} if self._run.launched else {}
        self.store = Store(self._run, logs, thresholds)
        self._context = zmq.Context()
        self._sub: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._sub.linger = 0
        self._sub.subscribe(b"")
        _watch_peer(self._sub)
        self._connected: dict[int, tuple[str, int]] = {}
        self._fills: dict[int, tuple[zmq.Socket[bytes], int, float]] = {}
        """By rank: the socket that asks, the command's id, when to give up."""
        self._stamps: tuple[float, ...] = ()
        self._look_due = self._survey_due = 0.0
        self._replay: Iterator[wire.Telemetry] | None = None
        if self._run.launched:
            self._sub.connect(directory.address("supervisor", "pub"))
        self._replay = recorder.read_history(directory.database) if self._run.launched else None

    @property
    def settled(self) -> bool:
        """True once everything recorded of the past has been taken in."""
        return self._replay is None and not self._fills

    def poll(self) -> None:
        """Take in what has arrived; bounded in time, never blocks."""
        now = time.monotonic()
        if now >= self._look_due:
            self._look()
            self._look_due = now + LOOK_S
        if now >= self._survey_due:
            self._survey()
            self._survey_due = now + SURVEY_S
        deadline = now + DRAIN_S
        self._drain(deadline)
        self._take_replay(deadline)
        self._take_fills()
        self._ask_for_gaps()

    def _drain(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                _, payload = frames
                self.store.apply(wire.read_telemetry(payload), time.time())
            except (ValueError, wire.Unreadable):
                self.store.refused += 1

    def _take_replay(self, deadline: float) -> None:
        if self._replay is None:
            return
        over = self._run.state in ENDED_STATES
        for message in self._replay:
            # Of a live run the ranks themselves know better; what happened is known to the record alone.
            if over or isinstance(message, wire.Event):
                self.store.apply(message, message.at_ns / 1e9 if isinstance(message, wire.Beat) else time.time())
            if time.monotonic() > deadline:
                return
        self._replay = None

    def _look(self) -> None:
        """Read again what has changed in the run directory."""
        try:
            stamps = tuple((self.directory.path / name).stat().st_mtime for name in ("run.json", "ranks"))
            if stamps == self._stamps:
                return
            self._stamps = stamps
            self._run = self.directory.read()
        except (OSError, RunDirError):
            # Removed under our eyes, by a newer run of that name: the last picture stays.
            return
        members = self.directory.members()
        self.store.know_run(self._run)
        self.store.know_members(members)
        for rank, member in members.items():
            key = (member.pub, member.process.pid)
            if member.ended is None and self._connected.get(rank) != key:
                if rank not in self._connected:
                    self._sub.connect(member.pub)
                self._connected[rank] = key

    def _survey(self) -> None:
        try:
            self.store.know_liveness(_liveness(self.directory))
        except RunDirError:
            return

    def _ask_for_gaps(self) -> None:
        if self._run.state in ENDED_STATES:
            return
        for rank, first in self.store.gaps().items():
            if rank in self._fills or rank not in self._connected:
                continue
            socket = _connect(self._context, zmq.DEALER, self.directory.address(rank, "cmd"))
            socket.send(wire.encode(wire.Fill(1, first)))
            self._fills[rank] = (socket, 1, time.monotonic() + FILL_S)

    def _take_fills(self) -> None:
        for rank, (socket, number, give_up) in list(self._fills.items()):
            done = time.monotonic() > give_up
            while not done:
                try:
                    answer = _readable(socket.recv(zmq.NOBLOCK))
                except zmq.Again:
                    break
                if isinstance(answer, wire.Steps):
                    self.store.fill(rank, answer.steps, last=False)
                done = isinstance(answer, wire.Reply) and answer.id == number
            if done:
                self.store.fill(rank, (), last=True)
                socket.close(linger=0)
                del self._fills[rank]

    def frame(self, now: float) -> Frame:
        """Return the picture of this moment."""
        return self.store.frame(now)

    def pause(self) -> str:
        """Hold all ranks at the same step; see `control.pause`."""
        with self._ranks() as (caller, ranks):
            return control.pause(caller, ranks)

    def resume(self) -> str:
        """Let all ranks go on; see `control.resume`."""
        with self._ranks() as (caller, ranks):
            return control.resume(caller, ranks)

    def _ranks(self) -> _Ranks:
        run = self.directory.read()
        if run.state in ENDED_STATES:
            raise Refused(f"run {run.run} is over ({run.state})")
        members = self.directory.members()
        missing = [rank for rank in range(run.world) if rank not in members]
        if missing:
            raise Refused(f"still starting: rank {missing[0]} has not reported yet; try again in a moment")
        alive = {r: m.cmd for r, m in members.items() if m.ended is None and is_alive(m.process)}
        if not alive:
            raise Refused(f"no rank of run {run.run} is alive; `ddptop status {run.run}` tells how it ended")
        return _Ranks(alive)

    def victims(self, rank: int | None) -> str:
        """Say what `kill` would end, in one line for each thing there is to know."""
        run, members = self.directory.read(), self.directory.members()
        if rank is not None:
            others = run.world - 1
            effect = "the others fail at their next collective, and torchrun ends them" if others else "the run ends"
            pid = f" (pid {members[rank].process.pid})" if rank in members else ""
            return f"rank {rank}{pid} and its helpers: {effect}"
        counts = Counter(target.role for target in processes.find(run, members))
        torchrun = f"torchrun {run.torchrun.pid}, " if run.torchrun is not None and counts["torchrun"] else ""
        ranks = f"{counts['rank']} rank{'' if counts['rank'] == 1 else 's'}"
        return f"{torchrun}{ranks}, {counts['helper']} helper{'' if counts['helper'] == 1 else 's'}"

    def kill(self, grace_s: float, rank: int | None, progress: Callable[[str], None]) -> str:
        """End the run, or one rank of it, and say what was ended.

        Raises:
            Refused: there is nothing to end, or something would not die.
        """
        state = census.settle(self.directory)
        if state.state in ENDED_STATES:
            raise Refused(f"run {self.directory.name} is over already ({state.state})")
        if state.supervised:
            reply = self._ask_supervisor(wire.Kill(1, grace_s, rank, self._who), grace_s, progress)
            if reply is not None:
                if not reply.done:
                    raise Refused(reply.text)
                return reply.text
            progress("the supervisor does not answer; ending the run without it")
        try:
            return census.kill(self.directory, grace_s, self._who, rank=rank, progress=progress)
        except ValueError as refusal:
            raise Refused(str(refusal)) from refusal

    def _ask_supervisor(self, command: wire.Kill, grace_s: float, progress: Callable[[str], None]) -> wire.Reply | None:
        """Send a command, pass on what the supervisor tells meanwhile, and return its answer."""
        with zmq.Context() as context:
            events = _connect(context, zmq.SUB, self.directory.address("supervisor", "pub"))
            events.subscribe(wire.TOPIC_EVENT)
            asking = _connect(context, zmq.DEALER, self.directory.address("supervisor", "cmd"))
            try:
                asking.send(wire.encode(command))
                poller = zmq.Poller()
                poller.register(events, zmq.POLLIN)
                poller.register(asking, zmq.POLLIN)
                deadline = time.monotonic() + grace_s + KILL_REPLY_S
                while time.monotonic() < deadline:
                    ready = dict(poller.poll(500))
                    if events in ready:
                        message = wire.read_telemetry(events.recv_multipart()[-1])
                        if isinstance(message, wire.Event):
                            progress(message.text)
                    if asking in ready:
                        answer = _readable(asking.recv())
                        if isinstance(answer, wire.Reply):
                            return answer
                    if not ready and not census.survey(self.directory).supervised:
                        return None
                return None
            finally:
                events.close(linger=0)
                asking.close(linger=0)

    def close(self) -> None:
        """Close all sockets; the run does not notice."""
        self._context.destroy(linger=0)


class _Ranks:
    """A `Caller` to the live ranks, for one action."""

    def __init__(self, addresses: dict[int, str]) -> None:
        self._ranks = sorted(addresses)
        self._caller = Caller(addresses)

    def __enter__(self) -> tuple[Caller, list[int]]:
        return self._caller, self._ranks

    def __exit__(self, *_: object) -> None:
        self._caller.__exit__()


def _connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    _watch_peer(socket)
    socket.connect(address)
    return socket


def _watch_peer(socket: zmq.Socket[bytes]) -> None:
    # A frozen peer keeps its connection; only these find it out. MAXMSGSIZE is left alone on
    # purpose: on a connecting socket one oversized message would make it deaf for good.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 500)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1500)


def _readable(payload: bytes) -> wire.Answer | None:
    try:
        return wire.read_answer(payload)
    except wire.Unreadable:
        return None


def _liveness(directory: RunDir) -> Liveness:
    found = census.settle(directory)
    return Liveness(
        state=found.state,
        supervised=found.supervised,
        orphaned=found.orphaned,
        alive=frozenset(found.alive),
        cause=found.cause,
        cause_rank=found.cause_rank,
    )
