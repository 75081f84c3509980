"""Fake ranks in the process of the test: sockets and a member record each, and no thread."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import zmq

from ddptop.agent import wire
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import Member, RunDir
from support.harness import DEADLINE_S, until


def hello(rank: int, generation: int = 0) -> wire.Hello:
    """Return the identity of a rank."""
    return wire.Hello(wire.PROTOCOL, "r", "id", rank, rank, 2, 1, 0, "host", "p", "0", "3", generation)


def beat(rank: int, number: int) -> wire.Beat:
    """Return a sign of life after so many steps."""
    return wire.Beat(rank, number, "running", "forward", number, None, number)


def summary(rank: int, number: int) -> wire.Summary:
    """Return a summary."""
    return wire.Summary(rank, number, 1, number, number, 1, 10, 1, 2, 3, 4, 0, 0)


def step(seq: int) -> wire.Step:
    """Return the record of a step."""
    return wire.Step(seq, seq + 1, 0, 10, 1, 2, 3, 4, 0, 0, loss=0.5)


def steps(rank: int, *numbers: int, generation: int = 0) -> wire.Steps:
    """Return a message with records of these numbers."""
    return wire.Steps(rank, tuple(map(step, numbers)), generation)


class Rank:
    """The sockets of one rank."""

    def __init__(
        self, context: zmq.Context[Any], directory: RunDir, rank: int, *, generation: int = 0, host: str = "host"
    ) -> None:
        """Bind, and write the member record."""
        self.rank = rank
        self.subscribed: set[bytes] = set()
        self._waiting: deque[tuple[bytes, wire.Command]] = deque()
        """Commands that have come, with their senders, and were not returned."""
        self.pub, self.cmd = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self.pub.sndhwm = 0
        for socket, kind in ((self.pub, "pub"), (self.cmd, "cmd")):
            socket.linger = 0
            socket.bind(directory.address(rank, kind))
            seal(directory.address(rank, kind))
        me = rundir.identify(os.getpid())
        assert me is not None
        pub, cmd = directory.address(rank, "pub"), directory.address(rank, "cmd")
        world = directory.read().world
        directory.write_member(Member(rank, rank, world, me, host, generation, pub, cmd, None))

    def hear(self) -> set[bytes]:
        """Take in who has come and left, and return the topics subscribed to."""
        with contextlib.suppress(zmq.Again):
            while True:
                message = self.pub.recv(zmq.NOBLOCK)
                (self.subscribed.add if message[:1] == b"\x01" else self.subscribed.discard)(message[1:])
        return self.subscribed

    def meet(self, topic: bytes = wire.TOPIC_STEPS) -> None:
        """Wait for the subscription to a topic."""
        until(lambda: topic in self.hear(), f"a subscriber to {topic!r}")

    def publish(self, topic: bytes, *messages: wire.Telemetry | bytes) -> list[bytes]:
        """Send messages or garbage, and return their bytes."""
        payloads = [message if isinstance(message, bytes) else wire.encode(message) for message in messages]
        for payload in payloads:
            self.pub.send_multipart([topic, payload])
        return payloads

    def asked(self) -> tuple[bytes, wire.Command]:
        """Wait for a command, and return its sender and it."""
        assert self.is_asked(DEADLINE_S), f"rank {self.rank} was not asked"
        return self._waiting.popleft()

    def is_asked(self, within_s: float = 0.0) -> bool:
        """Say whether a command comes within so many seconds, which `asked` will return.

        Not where the rank stands: an observer asks that whenever its rank was silent for seconds, as on a busy machine.
        """
        deadline = time.monotonic() + within_s
        while not self._waiting and self.cmd.poll(max(0, math.ceil(1000 * (deadline - time.monotonic())))):
            peer, command = self._received()
            if isinstance(command, wire.Inspect):
                self.answer(peer, wire.Reply(command.id, True))
            else:
                self._waiting.append((peer, command))
        return bool(self._waiting)

    def _received(self) -> tuple[bytes, wire.Command]:
        peer, payload = self.cmd.recv_multipart()
        return peer, wire.read_command(payload)

    def answer(self, peer: bytes, *answers: wire.Answer) -> None:
        """Send answers."""
        for answer in answers:
            self.cmd.send_multipart([peer, wire.encode(answer)])

    def fill(self, *numbers: int) -> wire.Fill:
        """Wait for the question for earlier records, answer it with these, and return it."""
        peer, command = self.asked()
        assert isinstance(command, wire.Fill), command
        if numbers:
            self.answer(peer, steps(self.rank, *numbers))
        self.answer(peer, wire.Reply(command.id, True))
        return command

    def inspect(self, inspection: wire.Inspection) -> wire.Inspect:
        """Wait for the question where the rank stands, answer it with this, and return it; others get an empty one."""
        while True:
            assert self.cmd.poll(int(1000 * DEADLINE_S)), f"rank {self.rank} was not asked where it stands"
            peer, command = self._received()
            if isinstance(command, wire.Inspect):
                self.answer(peer, wire.Reply(command.id, True, inspection=inspection))
                return command
            self.answer(peer, wire.Reply(command.id, True))

    def close(self) -> None:
        """Close the sockets."""
        self.pub.close()
        self.cmd.close()


@contextlib.contextmanager
def ranks(directory: RunDir, world: int) -> Iterator[list[Rank]]:
    """Be all ranks of a run, until the block ends."""
    with zmq.Context() as context:
        made = [Rank(context, directory, rank) for rank in range(world)]
        try:
            yield made
        finally:
            for rank in made:
                rank.close()
