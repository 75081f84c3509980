"""The request for an action: one message and one reply, and what it waits for from the frames of the run."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from support.fakes.observers import Observer, observed
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.control import caller
from ddptop.agent.observer.model.situation import Supervision
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire.vocabulary.refusals import (
    Awaiting,
    Busy,
    Cancelled,
    Hung,
    Refused,
    Unheard,
    Unholdable,
    Unsavable,
)

RUN = Run("calls", "id", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")


@pytest.fixture
def observer() -> Iterator[Observer]:
    """A fake observer."""
    with observed(RUN) as made:
        yield made


class Request(threading.Thread):
    """A request in a thread of its own, and what came of it."""

    def __init__(self, observer: Observer, until: float = math.inf) -> None:
        super().__init__()
        self.observer = observer
        self.lines: list[str] = []
        self.waiting = Waiting(self.lines.append, until)
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        """Ask for a pause."""
        command = wire.Act(7, "pause", "ada")
        try:
            self.outcome = caller.ask(
                self.observer.directory,
                command,
                lambda frame: self.waiting.tell(frame.waiting),
                self.waiting.is_cancelled,
            )
        except Refused as refusal:
            self.outcome = refusal

    def asked(self, number: int = 1) -> list[wire.Command]:
        """Return so many commands that the observer got."""
        until(lambda: self.observer.turn() and len(self.observer.asked) >= number, "the request")
        return [wire.read_command(payload) for _, (payload,) in self.observer.asked]

    def reply(self, reply: wire.Reply) -> Any:
        """Have the observer answer; return the outcome."""
        self.observer.cmd.send_multipart([self.observer.asked[0][0], wire.encode(reply)])
        self.join()
        return self.outcome


def test_an_action_is_one_message_and_one_reply(observer: Observer) -> None:
    """The message says by when it is to be read; a reply to another one is none."""
    request = Request(observer)
    (command,) = request.asked()
    assert isinstance(command, wire.Act)
    assert (command.action, command.who, command.until_ns is None) == ("pause", "ada", False)
    observer.cmd.send_multipart([observer.asked[0][0], b"\xff"])
    observer.cmd.send_multipart([observer.asked[0][0], wire.encode(wire.Reply(6, False, "another one"))])
    assert request.reply(wire.Reply(7, True, "held at step 3")).text == "held at step 3"
    assert len(observer.asked) == 1


@pytest.mark.parametrize("kind", [Refused, Unheard, Unholdable, Busy, Awaiting, Cancelled, Hung, Unsavable])
def test_a_refusal_is_of_the_kind_that_the_observer_says(observer: Observer, kind: type[Refused]) -> None:
    """What helps depends on it; the text is the observer's."""
    request = Request(observer)
    request.asked()
    outcome = request.reply(wire.Reply(7, False, "not so", refusal=kind.kind))
    assert (type(outcome), str(outcome)) == (kind, "not so")


def test_a_refusal_of_a_later_version_is_one_all_the_same(observer: Observer) -> None:
    """Its kind is not known here."""
    request = Request(observer)
    request.asked()
    assert type(request.reply(wire.Reply(7, False, "not so", refusal="weary"))) is Refused


def test_what_the_action_waits_for_comes_from_the_frames_of_the_run(observer: Observer) -> None:
    """Each line once."""
    request = Request(observer)
    request.asked()
    until(lambda: observer.turn() and wire.TOPIC_RUN in observer.topics, "the subscription")
    for line in ("pausing: waiting for rank 1", "pausing: waiting for rank 1", "pausing: waiting for rank 0"):
        observer.tell(Supervision("running", action="pause by ada", waiting=line))
    until(lambda: len(request.lines) == 2, "two lines")
    request.reply(wire.Reply(7, True, "held"))
    assert request.lines == ["pausing: waiting for rank 1", "pausing: waiting for rank 0"]


def test_a_wish_to_cancel_is_sent_once(observer: Observer) -> None:
    """And the reply to the action says what came of it."""
    request = Request(observer, until=0.0)
    assert [type(each) for each in request.asked(2)] == [wire.Act, wire.Cancel]
    outcome = request.reply(wire.Reply(7, False, "cancelled; the run goes on", refusal="cancelled"))
    assert isinstance(outcome, Cancelled)
    observer.turn()
    assert len(observer.asked) == 2


def test_an_observer_that_ends_without_a_reply_is_told(observer: Observer) -> None:
    """Nobody waits for ever; whether it was done is not known."""
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        process = rundir.identify(other.pid)
        observer.directory.update(observer=process)
        gone = Request(observer)
        gone.asked()
    finally:
        other.kill()
        other.communicate()
    gone.join()
    assert isinstance(gone.outcome, Unheard)
    assert "its observer ended meanwhile" in str(gone.outcome)


def test_a_question_keeps_its_connection_however_long_the_observer_stands(observer: Observer) -> None:
    """The reply comes on no other: with heartbeats, one that stood for two seconds would leave its asker waiting."""
    with zmq.Context() as context:
        address = observer.directory.address("observer", "cmd")
        with caller.connect(context, zmq.DEALER, address) as socket:
            assert socket.get(zmq.HEARTBEAT_IVL) == 0
