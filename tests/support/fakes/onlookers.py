"""An onlooker of an observer: the two sockets of a dashboard, and what came by them."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from ddptop.agent import wire
from ddptop.agent.run.rundir import RunDir
from support.harness import DEADLINE_S, until


class Onlooker:
    """The two sockets of an onlooker."""

    def __init__(self, context: zmq.Context[Any], directory: RunDir, *topics: bytes) -> None:
        self.sub, self.cmd = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.heard: list[tuple[bytes, bytes]] = []
        for topic in topics:
            self.sub.subscribe(topic)
        for socket, kind in ((self.sub, "pub"), (self.cmd, "cmd")):
            socket.linger = 0
            socket.connect(directory.address("observer", kind))

    def listen(self) -> list[tuple[bytes, bytes]]:
        """Return all that was heard so far."""
        with contextlib.suppress(zmq.Again):
            while True:
                topic, payload = self.sub.recv_multipart(zmq.NOBLOCK)
                self.heard.append((topic, payload))
        return self.heard

    def run_frame(self) -> wire.RunFrame:
        """Return the newest frame of the run, once there is one."""
        until(lambda: wire.TOPIC_RUN in dict(self.listen()), "a frame of the run")
        frame = wire.read_frame(dict(self.heard)[wire.TOPIC_RUN])
        assert isinstance(frame, wire.RunFrame)
        return frame

    def rank_frames(self) -> list[wire.RankFrame]:
        """Return the newest frame of each rank of which one was heard."""
        found: dict[int, wire.RankFrame] = {}
        for topic, payload in self.listen():
            if topic.startswith(wire.TOPIC_RANK):
                frame = wire.read_frame(payload)
                assert not isinstance(frame, wire.RunFrame)
                found |= {each.rank: each for each in (frame.ranks if isinstance(frame, wire.Rows) else (frame,))}
        return [found[rank] for rank in sorted(found)]

    def await_all(self, *expected: tuple[bytes, bytes]) -> None:
        """Wait until these were heard."""
        until(lambda: set(expected) <= set(self.listen()), "what was published")

    def ask(self, rank: int, command: wire.Command) -> None:
        """Send a command to a rank."""
        self.cmd.send_multipart([b"%d" % rank, wire.encode(command)])

    def look_back(self, query: wire.History | wire.WholeSteps) -> list[wire.HistoryAnswer]:
        """Return the answer to a question about the history."""
        self.cmd.send(wire.encode(query))
        found: list[wire.HistoryAnswer] = []
        while not found or not isinstance(found[-1], wire.Reply):
            assert self.cmd.poll(int(1000 * DEADLINE_S)), "no answer"
            found.append(wire.read_history(self.cmd.recv()))
        return found

    def answered(self) -> tuple[int, bytes]:
        """Wait for an answer of a rank."""
        assert self.cmd.poll(int(1000 * DEADLINE_S)), "no answer"
        number, payload = self.cmd.recv_multipart()
        return int(number), payload
