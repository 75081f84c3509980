"""Device time per phase, by events that nobody waits for; no device needed."""

from __future__ import annotations

from ddptop.agent.rank.records import device_time
from ddptop.agent.rank.records.device_time import Captures, EventClock
from ddptop.agent.rank.records.stamps import BACKWARD, COPY, DATA, FORWARD, OPTIMIZER, Stamps


class Device:
    """A stream that works off what it is given, at its own pace: `given` ms of work, `done` ms of it."""

    def __init__(self) -> None:
        self.given = 0.0
        self.done = 0.0


class FakeEvent:
    """Remembers how much work was before it, as `torch.cuda.Event` does; knows no waiting."""

    def __init__(self) -> None:
        self.stream: Device | None = None
        self.at = 0.0

    def record(self, stream: Device) -> None:
        self.stream, self.at = stream, stream.given

    def query(self) -> bool:
        return self.stream is not None and self.stream.done >= self.at

    def elapsed_time(self, later: FakeEvent) -> float:
        assert self.query()
        assert later.query(), "asked for an event that the device has not reached"
        return later.at - self.at


def a_step(stamps: Stamps, stream: Device) -> None:
    """A step whose host is far ahead of the device, which gets 1, 3, 5 and 2 ms of work."""
    for phase, work in ((DATA, 1), (FORWARD, 3), (BACKWARD, 5), (OPTIMIZER, 2)):
        stamps.enter(phase)
        stream.given += work
        stamps.leave()
    stamps.cut(1)


def new_stamps(captures: Captures) -> tuple[Stamps, Device]:
    stream, now = Device(), iter(range(10**6))
    stamps = Stamps(lambda: next(now), lambda: 0)
    stamps.device = EventClock(FakeEvent, lambda: stream, captures)
    stamps.cut(0)
    stamps.finished.clear()
    return stamps, stream


def test_phases_have_the_devices_own_time():
    """What the device works on in each phase, whenever the host gave it; known only once it is done."""
    stamps, stream = new_stamps(Captures())
    a_step(stamps, stream)
    stamped = stamps.finished[0]
    stream.done = 10.9
    assert not device_time.is_ready(stamped)
    assert device_time.by_phase(stamped) is None
    stream.done = 11
    assert device_time.is_ready(stamped)
    assert device_time.by_phase(stamped) == (1_000_000, 3_000_000, 5_000_000, 2_000_000, 0, 0)


def test_a_copy_has_its_own_time_on_the_device():
    """What the device works off before a copy, as a copy of pageable memory must wait for, is not the copy's."""
    stamps, stream = new_stamps(Captures())
    stamps.enter(DATA)
    stream.given += 4
    stamps.leave()
    stamps.enter(COPY)
    stream.given += 2
    stamps.leave()
    stamps.cut(1)
    stream.done = stream.given
    assert device_time.by_phase(stamps.finished[0]) == (4_000_000, 0, 0, 0, 0, 2_000_000)


def test_a_step_that_captures_a_graph_has_no_device_time():
    """An event would become part of the graph; and no event is asked for while any thread captures."""
    captures = Captures()
    stamps, stream = new_stamps(captures)
    a_step(stamps, stream)
    stream.done = stream.given
    captures.begin()
    assert device_time.by_phase(stamps.finished[0]) is None
    a_step(stamps, stream)
    captures.end()
    stream.done = stream.given
    assert device_time.by_phase(stamps.finished[0]) is not None
    captured = stamps.finished[1]
    assert device_time.is_ready(captured), "nobody waits for what will never be known"
    assert device_time.by_phase(captured) is None


def test_captures_are_followed_and_failures_too():
    """Beginning and end of a capture are those of torch's own methods, whatever they raise."""

    class Graph:
        """Has the two methods of `torch.cuda.CUDAGraph`."""

        def capture_begin(self, fails: bool) -> None:
            assert captures.under_way
            if fails:
                raise RuntimeError("capture")

        def capture_end(self) -> str:
            assert captures.under_way
            return "done"

    captures = Captures()
    captures.watch(Graph)
    graph = Graph()
    graph.capture_begin(False)
    assert captures.ask(lambda: True) is None
    assert graph.capture_end() == "done"
    assert captures.ask(lambda: True) is True
    try:
        graph.capture_begin(True)
    except RuntimeError:
        assert not captures.under_way


def test_a_device_that_is_seen_in_the_middle_of_a_step_is_timed_from_the_next_one_on():
    """No record pairs marks with moments that are not theirs."""
    stream, now = Device(), iter(range(1000))
    stamps = Stamps(lambda: next(now), lambda: 0)
    stamps.enter(BACKWARD)
    stamps.device = EventClock(FakeEvent, lambda: stream, Captures())
    stamps.leave()
    stamps.cut(1)
    a_step(stamps, stream)
    stream.done = stream.given
    assert device_time.by_phase(stamps.finished[0]) is None
    assert device_time.by_phase(stamps.finished[1]) == (1_000_000, 3_000_000, 5_000_000, 2_000_000, 0, 0)
