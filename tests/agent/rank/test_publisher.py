"""The agent's thread at its border: stamps of steps in, messages out, whatever the device does."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from support.bases import marked
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.rank import publisher as module
from ddptop.agent.rank.publisher import Publisher
from ddptop.agent.rank.records import device_time
from ddptop.agent.rank.records.device_time import Captures
from ddptop.agent.rank.records.history import PIECE
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import RunDir

PERIOD_S = 0.02


class Rank:
    """A rank whose training is the test, and a subscriber to all that it publishes."""

    def __init__(self, folder: Path, context: zmq.Context[Any]) -> None:
        (folder / "ranks").mkdir()
        directory = RunDir(marked(folder))
        self.session = Session(directory, run_id="published", program="published", log=None)
        self.session.stamps.record_present()
        self.publisher = Publisher(self.session, directory.address(0, "pub"), directory.address(0, "cmd"))
        self.sub = context.socket(zmq.SUB)
        self.sub.linger = 0
        self.sub.connect(directory.address(0, "pub"))
        self.steps = 0
        self._heard: list[tuple[bytes, wire.Telemetry]] = []

    def subscribe(self, *topics: bytes) -> None:
        """Subscribe, and wait until that is known: each new subscriber is sent who the rank is."""
        before = len(self.heard(wire.TOPIC_HELLO))
        self.sub.subscribe(wire.TOPIC_HELLO)
        until(lambda: len(self.heard(wire.TOPIC_HELLO)) > before, "the rank")
        for topic in topics:
            before = len(self.heard(wire.TOPIC_HELLO))
            self.sub.subscribe(topic)
            until(lambda: len(self.heard(wire.TOPIC_HELLO)) > before, "the rank")  # noqa: B023 # used at once

    def heard(self, topic: bytes) -> list[Any]:
        """Return all messages of a topic so far."""
        while self.sub.poll(0):
            at, payload = self.sub.recv_multipart()
            self._heard.append((at, wire.read_telemetry(payload)))
        return [message for at, message in self._heard if at == topic]

    def records(self, topic: bytes = wire.TOPIC_STEPS) -> list[wire.Step]:
        """Return the records that came under a topic."""
        return [step for message in self.heard(topic) for step in message.steps]

    def step(self) -> int:
        """End the present step and return its number."""
        self.steps += 1
        self.session.stamps.cut(self.steps)
        return self.steps


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """A rank that publishes often."""
    monkeypatch.setattr(module, "PERIOD_S", PERIOD_S)
    folder = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    with zmq.Context() as context:
        made = Rank(folder, context)
        made.publisher.start()
        yield made
        made.publisher.stop()
        made.sub.close()
    shutil.rmtree(folder)


class Failed:
    """A number on a device that has failed."""

    def read(self) -> float | None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_step_of_a_failed_device_is_published_without_its_numbers(rank: Rank) -> None:
    """Times, samples and number of the last step are there, what would have to be asked for is not; with a fault."""
    rank.subscribe(wire.TOPIC_STEPS)
    stamps = rank.session.stamps
    stamps.draw(1, evaluation=False)
    stamps.drew(4)
    stamps.loss(Failed())
    stamps.gradient(Failed())
    rank.step()
    until(rank.records, "the record")
    (step,) = rank.records()
    assert (step.step, step.samples, step.loss, step.device_ns) == (1, 4, None, None)
    assert step.wall_ns > 0
    assert "illegal memory access" in (rank.session.faults.last or "")


def test_during_a_capture_nothing_of_a_step_is_freed(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """To free pinned memory records an event on the stream that used it, which may be the one that is captured."""

    class Pinned:
        def read(self) -> float:
            return 1.0

    captures = Captures()
    monkeypatch.setattr(device_time, "CAPTURES", captures)
    rank.subscribe(wire.TOPIC_STEPS)
    freed: list[int] = []

    def make_step() -> None:
        loss = Pinned()
        weakref.finalize(loss, freed.append, rank.steps + 1)
        rank.session.stamps.loss(loss)
        rank.step()

    make_step()
    until(lambda: freed == [1], "the first step to be let go")
    captures.begin()
    make_step()
    make_step()
    until(lambda: len(rank.records()) == 3, "the records")
    assert freed == [1]
    captures.end()
    until(lambda: freed == [1, 2, 3], "all of them to be let go")


def test_that_a_rank_is_held_is_published_at_once(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its training thread itself says that it has come to the step: nobody has to ask, and no turn has to be due."""
    gate = rank.session.gate
    rank.subscribe(wire.TOPIC_BEAT)

    def hold() -> wire.Holding | None:
        beats = rank.heard(wire.TOPIC_BEAT)
        found: wire.Holding | None = beats[-1].hold if beats else None
        return found

    assert gate.promise("t", 60.0) == 1
    until(lambda: hold() == wire.Holding(1, "t", False, False), "the promise")
    turned, tick = threading.Event(), rank.session.tick

    def turn() -> None:
        tick()
        turned.set()

    monkeypatch.setattr(rank.session, "tick", turn)
    monkeypatch.setattr(module, "PERIOD_S", 3600.0)
    until(turned.is_set, "the turn that was due before")

    def train() -> None:
        gate.completed += 1
        gate.wait()

    training = threading.Thread(target=train)
    training.start()
    until(lambda: hold() == wire.Holding(1, "t", True, False), "the hold")
    gate.resume()
    training.join()


def test_it_never_polls_a_wait_away(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a period is waited for in whole milliseconds, rounded up: polls without a wait would take a core."""
    waits: list[Any] = []
    turns: list[int] = []

    class Poller(zmq.Poller):
        def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
            waits.append(timeout)
            return super().poll(timeout)

    rank.publisher.stop()
    monkeypatch.setattr(zmq, "Poller", Poller)
    directory = rank.session.directory
    monkeypatch.setattr(rank.session, "tick", lambda: turns.append(len(waits)))
    again = Publisher(rank.session, directory.address(0, "pub"), directory.address(0, "cmd"))
    again.start()
    until(lambda: len(turns) > 20, "twenty turns")
    again.stop()
    assert all(type(wait) is int for wait in waits)
    # The system may wake a little early, so that some turns take two.
    assert len(waits) <= 3 * len(turns)


def test_the_records_of_a_second_are_joined_only_for_who_subscribes_to_them(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them once, in order, until the last subscriber has left; large ones do not wait for the second."""
    monkeypatch.setattr(module, "BATCH_S", 10 * PERIOD_S)
    rank.subscribe(wire.TOPIC_STEPS)

    def published(number: int) -> bool:
        return any(step.step == number for step in rank.records())

    def train(steps: int) -> None:
        for _ in range(steps):
            number = rank.step()
            until(lambda: published(number), "its record")  # noqa: B023 # used at once

    train(3)
    rank.subscribe(wire.TOPIC_BATCH)
    train(30)
    joined = [[step.step for step in message.steps] for message in rank.heard(wire.TOPIC_BATCH)]
    first = rank.records(wire.TOPIC_BATCH)[0].step
    assert first == 4
    assert [number for batch in joined for number in batch] == list(range(first, joined[-1][-1] + 1))
    assert len(joined) <= 10
    rank.sub.unsubscribe(wire.TOPIC_BATCH)
    until(lambda: not rank.publisher._batching, "the last subscriber to leave")
    before = len(rank.heard(wire.TOPIC_BATCH))
    train(15)
    assert len(rank.heard(wire.TOPIC_BATCH)) == before
    monkeypatch.setattr(module, "BATCH_S", 60.0)
    rank.subscribe(wire.TOPIC_BATCH)
    large = rank.steps + 1
    for _ in range(4):
        rank.session.stamps.metric("x" * (PIECE // 2), 1.0)
        rank.step()
    until(lambda: sum(step.step >= large for step in rank.records(wire.TOPIC_BATCH)) >= 3, "the large ones")


def test_how_many_steps_are_recorded_is_published_at_once_where_it_changes(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the next sign of life."""
    monkeypatch.setattr(module, "BEAT_S", 600.0)
    rank.subscribe(wire.TOPIC_BEAT)
    rank.session.stamps.every = 4
    until(lambda: any(beat.recorded_every == 4 for beat in rank.heard(wire.TOPIC_BEAT)), "the other number")


def test_a_rank_that_will_be_held_is_not_found_to_have_long_steps(rank: Rank) -> None:
    """What the agent's thread sees of the gate comes to who watches the steps."""
    seen: list[bool] = []
    rate: Any = SimpleNamespace(look=lambda record_ns, *, is_held: seen.append(is_held), begin=lambda *_: None)
    rank.session.own_rate = rate
    for limit, is_held in ((None, False), (7, True), (None, False)):
        rank.session.gate.limit = limit
        seen.clear()
        until(lambda: len(seen) > 1, "two turns")
        assert seen[-1] is is_held
