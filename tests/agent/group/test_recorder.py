"""Recording a run and giving it back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from harness import DEADLINE_S, until

from ddptop.agent import wire
from ddptop.agent.group import recorder
from ddptop.agent.group.recorder import Recorder
from ddptop.agent.group.recording import read_history
from ddptop.agent.rundir import Member, Process

HELLO = wire.Hello(wire.PROTOCOL, "r", "id", 0, 0, 1, 1, 0, "host", "p", "0", "3")


def member(pub: str, cmd: str = "") -> Member:
    """Return the record of rank 0, which listens there."""
    return Member(0, 0, 1, Process(1, 0.0), "host", 0, pub, cmd, None)


def step(seq: int) -> wire.Step:
    """Return the record of a step."""
    return wire.Step(seq, seq + 1, 0, 10, 1, 2, 3, 4, 0, 0, loss=0.5)


def beat(number: int) -> wire.Beat:
    """Return a sign of life after `number` steps."""
    return wire.Beat(0, number, "running", "forward", number, None, number)


class Rank:
    """A rank's PUB socket; publishing waits until the recorder listens."""

    def __init__(self, context: zmq.Context, address: str) -> None:
        """Bind."""
        self.socket = context.socket(zmq.XPUB)
        self.socket.linger = 0
        self.socket.sndhwm = 0
        self.socket.bind(address)

    def meet(self) -> None:
        """Wait for the four subscriptions of the recorder."""
        for _ in range(4):
            assert self.socket.poll(1000 * DEADLINE_S)
            self.socket.recv()

    def farewell(self) -> None:
        """Wait until the recorder has left."""
        for _ in range(4):
            assert self.socket.poll(1000 * DEADLINE_S)
            self.socket.recv()

    def publish(self, topic: bytes, *messages: wire.Telemetry | bytes) -> None:
        """Send messages or garbage."""
        for message in messages:
            payload = message if isinstance(message, bytes) else wire.encode(message)
            self.socket.send_multipart([topic, payload])


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[zmq.Context]:
    """A context, and a recorder that does not wait long between batches."""
    monkeypatch.setattr(recorder, "BATCH_S", 0.05)
    with zmq.Context() as made:
        yield made


def test_round_trip_also_while_writing(context: zmq.Context, runtime: Path) -> None:
    """A reader sees what was recorded so far; at the end it all is there, in order, in one file."""
    database, address = runtime / "run.db", f"ipc://{runtime}/0.pub"
    rank = Rank(context, address)
    recording = Recorder(context, database, 1, lambda text, level: None)
    recording.start()
    recording.follow(member(address))
    rank.meet()
    rank.publish(wire.TOPIC_HELLO, HELLO)
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(0), step(1))))
    until(lambda: list(read_history(database)) == [HELLO, wire.Steps(0, (step(0), step(1)))], "the first batch")
    rank.publish(wire.TOPIC_STEPS, *(wire.Steps(0, (step(n),)) for n in range(2, 500)))
    rank.publish(wire.TOPIC_BEAT, beat(1), beat(500))
    event, last = wire.Event(7, "rank 0 finished", 0), wire.RunState(8, "finished", exit_code=0)
    recording.add(event)
    recording.add(last)
    until(lambda: beat(500) in list(read_history(database)), "the last batch")
    assert recording.close()
    rank.socket.close()
    history = list(read_history(database))
    assert history[0] == HELLO
    steps = [each for message in history if isinstance(message, wire.Steps) for each in message.steps]
    assert steps == [step(n) for n in range(500)]
    assert history[-3:] == [event, beat(500), last]
    assert sorted(path.name for path in runtime.glob("run.db*")) == ["run.db"]


def test_garbage_is_counted_and_left_out(context: zmq.Context, runtime: Path) -> None:
    """Noise, numbers beyond SQLite's, ranks that do not exist and a forged run state are refused."""
    database, address = runtime / "run.db", f"ipc://{runtime}/0.pub"
    rank = Rank(context, address)
    recording = Recorder(context, database, 1, lambda text, level: None)
    recording.start()
    recording.follow(member(address))
    rank.meet()
    rank.publish(wire.TOPIC_STEPS, *(bytes([n % 256]) * (n % 50) for n in range(1000)))
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(2**64 - 2),)), wire.Steps(9, (step(1),)), wire.Steps(0, ()))
    rank.publish(wire.TOPIC_EVENT, wire.RunState(0, "failed"), wire.Event(2**64 - 1, "late"))
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(3),)))
    until(lambda: list(read_history(database)) == [wire.Steps(0, (step(3),))], "the one good message")
    assert recording.close()
    rank.socket.close()
    assert recording.refused == 1005


def test_a_file_that_cannot_be_written_is_said_once(context: zmq.Context, runtime: Path) -> None:
    """It makes one event, however many batches fail, and hurts nobody."""
    said: list[str] = []
    (runtime / "folder.db").mkdir()
    broken = Recorder(context, runtime / "folder.db", 1, lambda text, level: said.append(text))
    broken.start()
    broken.add(wire.Event(1, "a"))
    until(lambda: broken.failures == 1, "the first failure")
    broken.add(wire.Event(2, "b"))
    until(lambda: broken.failures == 2, "the second failure")
    assert broken.close()
    assert said == ["recording fails, history will have gaps: unable to open database file"]


def test_damage_and_absence_are_an_empty_history(runtime: Path) -> None:
    """Who attaches to a run without a usable recording sees nothing, not a traceback."""
    assert list(read_history(runtime / "none.db")) == []
    (runtime / "noise.db").write_bytes(b"noise" * 1000)
    assert list(read_history(runtime / "noise.db")) == []
    connection = sqlite3.connect(runtime / "old.db")
    connection.execute("CREATE TABLE other(a)")
    connection.close()
    assert list(read_history(runtime / "old.db")) == []


def test_what_was_published_before_anybody_listened_is_asked_for(context: zmq.Context, runtime: Path) -> None:
    """Older records come before newer ones in the file, none twice; a successor asks only for what is missing."""
    database, pub, cmd = runtime / "run.db", f"ipc://{runtime}/0.pub", f"ipc://{runtime}/0.cmd"
    rank = Rank(context, pub)
    with context.socket(zmq.ROUTER) as answering:
        answering.linger = 0
        answering.bind(cmd)
        for first, last in ((0, 3), (4, 9)):
            recording = Recorder(context, database, 1, lambda text, level: None)
            recording.start()
            recording.follow(member(pub, cmd))
            rank.meet()
            assert answering.poll(1000 * DEADLINE_S)
            peer, question = answering.recv_multipart()
            command = wire.read_command(question)
            assert isinstance(command, wire.Fill)
            assert command.first_seq == first
            rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(last),)))
            older = wire.Steps(0, tuple(step(number) for number in range(first, last)))
            answering.send_multipart([peer, wire.encode(older)])
            answering.send_multipart([peer, wire.encode(wire.Reply(command.id, True))])
            until(lambda: _numbers(database)[-1:] == [last], "the newest")  # noqa: B023 # used at once
            assert recording.close()
            rank.farewell()
    assert _numbers(database) == list(range(10))
    rank.socket.close()


def _numbers(database: Path) -> list[int]:
    return [each.seq for message in read_history(database) if isinstance(message, wire.Steps) for each in message.steps]
