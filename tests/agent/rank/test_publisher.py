"""The agent's thread, without a socket: what it does where the device fails, and how it waits."""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from support.values.messages import read_steps

from ddptop.agent import wire
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.commands.executing import Executing
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks.batches import Batches
from ddptop.agent.rank.inspection.diagnoses import Diagnoses
from ddptop.agent.rank.publisher import PERIOD_S, Publisher
from ddptop.agent.rank.records import device_time
from ddptop.agent.rank.records.device_time import Captures
from ddptop.agent.rank.records.history import PIECE
from ddptop.agent.rank.records.own_rate import OwnRate
from ddptop.agent.rank.records.stamps import Stamps, StepStamps
from ddptop.agent.run.rundir import RunDir


class Session:
    """As much of a rank as the thread asks for."""

    def __init__(self) -> None:
        self.faults, self.health, self.gate = Faults(), self, self
        self.limit = self.record_ns = None
        self.stamps = Stamps()
        faults, gate = Faults(), Gate()
        collectives = Collectives(self.stamps, faults)
        self.diagnoses = Diagnoses(0, RunDir(Path("run")), self.stamps, collectives, gate, faults, lambda *_: None)
        self.own_rate = OwnRate(self.stamps)
        self.own_rate.is_over = True
        self.announced = None, None

    def check(self, *_: object) -> None: ...


class Failed:
    """A number on a device that has failed."""

    def read(self) -> float | None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def bare() -> Any:
    found: Any = Publisher.__new__(Publisher)
    found._session, found._batches, found._seen = Session(), Batches(), set()
    found._records_measured = False
    found._taken, found._waited = deque(), 0
    return found


def failed_step() -> StepStamps:
    now = iter(range(10**6))
    stamps = Stamps(lambda: next(now), lambda: 7)
    stamps.draw(1, evaluation=False)
    stamps.drew(4)
    stamps.loss(Failed())
    stamps.gradient(Failed())
    stamps.cut(3)
    return stamps.finished.popleft()


def test_a_step_of_a_failed_device_is_told_without_its_numbers() -> None:
    """Times, samples and number of the last step are there, what would have to be asked for is not; one fault."""
    thread = bare()
    step = thread._record(failed_step())
    assert (step.step, step.samples, step.end_at_ns, step.loss, step.device_ns) == (3, 4, 7, None, None)
    assert step.wall_ns > 0
    assert thread._session.faults.count == 1
    assert "illegal memory access" in thread._session.faults.last


def test_during_a_capture_nothing_of_a_step_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To free pinned memory records an event on the stream that used it, which may be the one that is captured."""

    class Pinned:
        def read(self) -> float:
            return 1.0

    captures = Captures()
    monkeypatch.setattr(device_time, "CAPTURES", captures)
    thread = bare()
    thread._starvation = SimpleNamespace(stamp=lambda steps: steps, follow=lambda thread: None)
    thread._session.rank, thread._session.hello, thread._batching = 3, SimpleNamespace(generation=0), False
    thread._store = lambda step: None
    stamps = thread._session.stamps = Stamps()
    freed: list[int] = []

    def turn(step: int) -> None:
        loss = Pinned()
        weakref.finalize(loss, freed.append, step)
        stamps.loss(loss)
        stamps.cut(step)
        del loss
        thread._send_steps()

    turn(1)
    assert freed == [1]
    captures.begin()
    turn(2)
    turn(3)
    assert freed == [1]
    captures.end()
    thread._send_steps()
    assert freed == [1, 2, 3]


def test_a_failed_device_leaves_the_state_of_a_rank_known() -> None:
    """Its collectives in progress cannot be counted; whether the rank is held, and where, is answered."""

    class OfFailedDevice(Session):
        state, checkpoints, timeout_s, follower = "paused", True, 30.0, None
        held, is_paused, completed, doing, untold = True, True, 7, "", None

        @property
        def outstanding(self) -> int:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    session: Any = OfFailedDevice()
    unused: Any = None
    reply = Executing(session, unused, unused, unused, unused).carry_out(b"", wire.Query(5))
    assert reply is not None
    assert (reply.done, reply.kept, reply.step, reply.timeout_s, reply.outstanding) == (True, True, 7, 30.0, 0)
    assert "illegal memory access" in session.faults.last


def test_it_never_asks_again_within_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a period is waited for in whole milliseconds, rounded up: no wait of 0 polls it away."""
    thread, clock, waits = bare(), [0.0], []

    class Poller:
        def register(self, *_: object) -> None: ...

        def poll(self, wait_ms: int) -> list[tuple[object, int]]:
            waits.append(wait_ms)
            # The system wakes a little early.
            clock[0] += wait_ms / 1000 - 0.0003 if wait_ms > 1 else wait_ms / 1000 + 1e-6
            if len(waits) > 20:
                thread._stop.set()
            return []

    class Answers:
        pause_s = None

        def send_more(self) -> None: ...

    published: list[float] = []
    monkeypatch.setattr(zmq, "Poller", Poller)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    thread._pub = thread._cmd = None
    thread._answers, thread._stop = Answers(), threading.Event()
    thread._publish = lambda: published.append(clock[0])
    thread._publish_end = lambda: None
    thread._run()
    assert thread._session.faults.count == 0
    assert all(type(wait) is int for wait in waits)
    assert 0 not in waits[1:]
    gaps = [after - before for before, after in itertools.pairwise(published)]
    assert gaps
    assert all(math.isclose(gap, PERIOD_S, abs_tol=0.002) for gap in gaps)


def test_the_records_of_a_second_are_joined_only_for_who_subscribes_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them once, in order, until the last subscriber has left; large ones do not wait for the second."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    numbers, size = itertools.count(), 10
    thread = bare()
    thread._refused = 0
    thread._batching, thread._batch, thread._batch_bytes, thread._batch_due = False, [], 0, 0.0
    thread._session.rank, thread._session.hello = 3, wire.Hello(1, "r", "i", 3, 3, 4, 1, 0, "h", "p", "0", "3", 2)
    thread._summary, thread._send_beat = None, lambda: None
    thread._collect = lambda: [next(numbers)]
    thread._starvation = SimpleNamespace(stamp=lambda steps: steps, follow=lambda thread: None)
    thread._store = lambda seq: wire.encode(wire.Step(seq, seq, 0, 10, 1, 2, 3, 4, 0, 0, metrics={"x" * size: 1.0}))
    heard: list[tuple[bytes, bytes]] = []
    waiting: list[bytes] = []

    class Pub:
        def recv(self, _: int) -> bytes:
            if not waiting:
                raise zmq.Again
            return waiting.pop(0)

        def send_multipart(self, frames: tuple[bytes, bytes]) -> None:
            heard.append((frames[0], frames[1]))

    def batches() -> list[list[int]]:
        found = [read_steps(payload) for topic, payload in heard if topic == wire.TOPIC_BATCH]
        return [[step.seq for step in steps] for steps in found]

    def turn(times: int) -> None:
        for _ in range(times):
            clock[0] += PERIOD_S
            thread._send_steps()

    thread._pub = Pub()
    turn(5)
    waiting.append(b"\x01" + wire.TOPIC_BATCH)
    thread._greet()
    turn(1)
    turn(25)
    waiting.append(b"\x00" + wire.TOPIC_BATCH)
    thread._greet()
    turn(20)
    joined = batches()
    assert joined[0][0] == 5
    assert [seq for batch in joined for seq in batch] == list(range(5, joined[-1][-1] + 1))
    assert 2 <= len(joined) <= 4
    assert len(joined[1]) == pytest.approx(10, abs=1)
    assert thread._batch == []
    heard.clear()
    size = PIECE // 2
    waiting.append(b"\x01" + wire.TOPIC_BATCH)
    thread._greet()
    turn(6)
    assert len([seq for batch in batches() for seq in batch]) >= 5


def test_how_many_steps_are_recorded_is_told_at_once_where_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the next sign of life; otherwise one is sent when it is due."""
    clock = [0.0]
    beats: list[object] = []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    thread = bare()
    session = thread._session
    session.notices, session.state, session.stamps = (), "running", SimpleNamespace(every=64)
    session.tick = lambda: None
    thread._published, thread._beat_due, thread._summary_due = None, 0.0, 1e9
    thread._try = lambda *_: None
    session.beat = lambda *_: wire.Beat(0, 0, "running", "", 0, 0, 0)
    thread._send, thread._seq, thread._refused = lambda *message: beats.append(message), 0, 0
    for _ in range(9):
        thread._publish()
        clock[0] += PERIOD_S
    assert len(beats) == 1
    session.stamps.every = 4
    thread._publish()
    assert len(beats) == 2


def test_a_rank_that_will_be_held_is_not_found_to_have_long_steps() -> None:
    """What the agent's thread sees of the gate comes to who watches the steps."""
    thread, told = bare(), []
    session = thread._session
    session.own_rate = SimpleNamespace(look=lambda record_ns, *, is_held: told.append((record_ns, is_held)))
    session.record_ns = 5
    for limit in (None, 7, None):
        session.limit = limit
        thread._choose()
    assert told == [(5, False), (5, True), (5, False)]
