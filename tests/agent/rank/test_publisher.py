"""The agent's thread, without a socket: what it does where the device fails, and how it waits."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import Any

import pytest
import zmq

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks.batches import Batches
from ddptop.agent.rank.publisher import PERIOD_S, Publisher
from ddptop.agent.rank.records.stamps import Stamps, StepStamps


class Session:
    """As much of a rank as the thread asks for."""

    def __init__(self) -> None:
        self.faults, self.health, self.gate = Faults(), self, self
        self.limit = None

    def check(self, *_: object) -> None: ...


class Failed:
    """A number on a device that has failed."""

    def read(self) -> float | None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def bare() -> Any:
    found: Any = Publisher.__new__(Publisher)
    found._session, found._batches = Session(), Batches()
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
