"""A fake observer in the process of the test: its two sockets, and the frames that its model makes."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.model.framer import Framer
from ddptop.agent.observer.model.situation import Supervision
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import Member, Run, RunDir

Published = wire.Telemetry | wire.RunFrame | wire.RankFrame | wire.Rows


def all_ranks(framer: Framer) -> tuple[wire.RankFrame, ...]:
    """Return the frames of all ranks at the moment of the last frame of the run, in order."""
    return tuple(map(framer.rank, framer._store.ranks))


@dataclass
class Observer:
    """The sockets of an observer and its model of the run, without a thread: `turn` does what is due."""

    directory: RunDir
    context: zmq.Context[Any]
    topics: set[bytes] = field(default_factory=set)
    """Those that somebody subscribes to."""
    asked: list[tuple[bytes, list[bytes]]] = field(default_factory=list)
    """Messages to the command socket, each with its sender."""

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Bind both sockets; the model knows nothing but the records, as that of any observer that has just come."""
        run = self.directory.read()
        self.store = Store(run, brief=run.world > wire.EACH_RECORD)
        self.framer = Framer(self.store)
        self.pub, self.cmd = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        self.pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        for socket, kind in ((self.pub, "pub"), (self.cmd, "cmd")):
            socket.linger = 0
            socket.bind(self.directory.address("observer", kind))
            seal(self.directory.address("observer", kind))

    def close(self) -> None:
        """Leave as a process does that is killed: the files of the sockets may stay."""
        self.pub.close()
        self.cmd.close()

    def turn(self) -> bool:
        """Tell newcomers all, and note what they subscribe to and ask; True, so that a condition may begin with it."""
        new = False
        while self.pub.poll(0):
            message = self.pub.recv()
            (self.topics.add if message[:1] == b"\x01" else self.topics.discard)(message[1:])
            new |= message[:1] == b"\x01"
        if new:
            self.tell()
        while self.cmd.poll(0):
            sender, *frames = self.cmd.recv_multipart()
            self.asked.append((sender, frames))
        return True

    def tell(self, *heard: wire.Telemetry | Supervision, verdicts: Sequence[wire.Verdict] | None = None) -> None:
        """Take in what is said of the run, and publish the frames of this moment, as `relay.frames` orders them."""
        now = time.time()
        self.store.know_run(self.directory.read())
        self.store.know_members(self.directory.members())
        for message in heard:
            if isinstance(message, Supervision):
                self.store.supervise(message, now)
            else:
                self.store.apply(message, now)
        if verdicts is not None:
            self.store.changes.note_verdicts(time.time_ns(), verdicts)
        self.store.advance(now)
        run, ranks = self.framer.frame(), all_ranks(self.framer)
        for rank in ranks:
            self.publish(wire.topic_of(wire.TOPIC_RANK, rank.rank), rank)
        for first in range(0, len(ranks), 128):
            self.publish(wire.TOPIC_RANKS, wire.Rows(now, ranks[first : first + 128]))
        self.publish(wire.TOPIC_RUN, run)

    def publish(self, topic: bytes, message: Published | bytes) -> None:
        """Send a message, or bytes that are none."""
        self.pub.send_multipart([topic, message if isinstance(message, bytes) else wire.encode(message)])

    def answer(self, sender: bytes, rank: int, *answers: wire.Answer) -> None:
        """Answer a question to a rank."""
        for answer in answers:
            self.cmd.send_multipart([sender, b"%d" % rank, wire.encode(answer)])


@contextlib.contextmanager
def observed(run: Run, present: int | None = None) -> Iterator[Observer]:
    """Make a run with a fake observer, and so many of its ranks on record; this process is all of them."""
    me = rundir.identify(os.getpid())
    assert me is not None
    directory = rundir.create(msgspec.structs.replace(run, observer=me, torchrun=me))
    for rank in range(run.world if present is None else present):
        addresses = directory.address(rank, "pub"), directory.address(rank, "cmd")
        directory.write_member(Member(rank, rank, run.world, me, "host", 0, *addresses, None))
    with zmq.Context() as context:
        observer = Observer(directory, context)
        try:
            yield observer
        finally:
            observer.close()
            # The record names this process as one to be ended with the run.
            shutil.rmtree(directory.path)


def connections(address: str) -> int:
    """Return how many processes are connected to a socket, by the kernel's own table."""
    path = str(Path(address.removeprefix("ipc://")))
    table = Path("/proc/self/net/unix").read_text().splitlines()
    # One of the lines is the socket that listens.
    return max(0, sum(line.endswith(f" {path}") for line in table) - 1)
