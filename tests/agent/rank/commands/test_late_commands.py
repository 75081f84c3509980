"""A rank does nothing that it was asked too long ago: its controller has given up, and the others went on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.publisher import Publisher

HELLO = wire.Hello(1, "run", "id", 3, 3, 4, 1, 1, "host", "x.py", "1", "3.12")


class Rank:
    """A publisher with a real gate, and a client at each of its sockets."""

    def __init__(self, folder: Path, context: zmq.Context[Any]) -> None:
        self.gate, self.saved = Gate(), 0
        self.gate.completed = 6
        session: Any = SimpleNamespace(
            rank=3,
            hello=HELLO,
            gate=self.gate,
            faults=Faults(),
            stamps=SimpleNamespace(finished=[], every=1),
            diagnoses=SimpleNamespace(looking=SimpleNamespace(pause_s=None, glance=lambda: None)),
            notices=(),
            records_bytes=1 << 20,
            record_ns=None,
            state="running",
            has_left=False,
            beat=lambda seq, refused: wire.Beat(3, 1, "running", "", 6, 1, seq, hold=self.gate.holding()),
            saving=SimpleNamespace(function=print, ask=self.save),
            tick=lambda: None,
        )
        pub, cmd = f"ipc://{folder}/3.pub", f"ipc://{folder}/3.cmd"
        self.publisher = Publisher(session, pub, cmd)
        self.news, self.asking = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.news.subscribe(wire.TOPIC_EVENT)
        for socket, address in ((self.news, pub), (self.asking, cmd)):
            socket.linger = 0
            socket.connect(address)
        self.publisher.start()

    def save(self, token: str) -> wire.Saved:
        """Stand for the script's checkpoint function."""
        self.saved += 1
        return wire.Saved(True, "here", 1)

    def ask(self, command: wire.Command) -> wire.Reply:
        """Send a command as it is and return the reply."""
        self.asking.send(wire.encode(command))
        assert self.asking.poll(60_000), "no reply"
        reply = wire.read_answer(self.asking.recv())
        assert isinstance(reply, wire.Reply)
        return reply

    def close(self) -> None:
        """End it."""
        self.publisher.stop()
        self.news.close()
        self.asking.close()


@pytest.fixture
def rank() -> Iterator[Rank]:
    """A rank that has done 6 steps and is free to go."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder, zmq.Context() as context:
        made = Rank(Path(folder), context)
        yield made
        made.close()


def late(command: wire.Command) -> wire.Command:
    """Return a command that was asked 34 s ago, by a controller that has waited for 2 s."""
    asked = deadline.now_ns() - 34 * 10**9
    return msgspec.structs.replace(command, asked_ns=asked, until_ns=asked + 2 * 10**9)


def test_what_is_late_is_refused_and_told(rank: Rank) -> None:
    """Neither hold nor checkpoint; each is an event of the rank."""
    for command in (late(wire.Hold(1, "t")), late(wire.Save(2, "t"))):
        reply = rank.ask(command)
        assert (reply.done, reply.text) == (False, "came too late: asked 34 s ago; nothing was done")
    assert (rank.gate.limit, rank.saved) == (None, 0)
    told: list[wire.Event] = []
    # Who subscribes late misses some: ask until each kind was heard.
    while len(told) < 2:
        rank.ask(late(wire.Hold(4, "t")))
        rank.ask(late(wire.Save(5, "t")))
        while rank.news.poll(50):
            message = wire.read_telemetry(rank.news.recv_multipart()[1])
            assert isinstance(message, wire.Event)
            told = [*told, message] if message.text not in [each.text for each in told] else told
    assert [(each.text, each.rank, each.action) for each in told] == [
        ("hold came too late: asked 34 s ago; nothing was done", 3, "hold"),
        ("save came too late: asked 34 s ago; nothing was done", 3, "save"),
    ]


def test_a_late_resume_leaves_a_hold_that_others_rely_on(rank: Rank) -> None:
    """A rank that went on alone would wait in a collective for ever: it stays at the step with the others."""
    assert rank.ask(wire.Hold(1, "t")).step == 7
    assert rank.ask(wire.Commit(2, "t", 7)).done
    assert rank.ask(wire.Keep(2, "t")).done
    assert not rank.ask(late(wire.Resume(3))).done
    assert not rank.ask(late(wire.Commit(4, "t", 9))).done
    assert (rank.gate.limit, rank.gate.is_paused) == (7, True)
    # In time, and from an onlooker that knows no deadline.
    assert rank.ask(deadline.limited(wire.Resume(5), 600)).done
    assert rank.gate.limit is None
    assert rank.ask(wire.Hold(6, "u")).done
    assert rank.ask(wire.Resume(7)).done
    assert rank.gate.limit is None
