"""Events on a CUDA device's own time line, for the time that each phase takes there.

An event is recorded after the work enqueued so far, and the agent's
thread reads it once the device has passed it, without a wait.  The time between two events
includes that in which the device was idle.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from ddptop.agent.rank.hooks.around import replace
from ddptop.agent.rank.records.stamps import Moment, StepStamps
from ddptop.agent.wire import DEVICE_PHASES

_T = TypeVar("_T")


class Event(Protocol):
    """The methods of `torch.cuda.Event` that are used here."""

    def record(self, stream: Any) -> None:
        """Enqueue the event on the stream."""

    def query(self) -> bool:
        """Say whether the device has passed it."""

    def elapsed_time(self, later: Any) -> float:
        """Return the ms from this event to a later one, both passed."""


class Captures:
    """The CUDA graph captures in progress, anywhere in the process.

    During a capture the driver forbids queries of events, and a query invalidates the capture.
    So the agent's thread queries under this lock, and not during a capture; a capture waits for the lock at its
    beginning, for a few microseconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self.were = False
        """True once one has begun: torch calls no operators for what a graph replays."""

    @property
    def under_way(self) -> bool:
        """True from before a capture begins until after it ends."""
        return self._open > 0

    def begin(self) -> None:
        """Note that a capture is about to begin."""
        with self._lock:
            self._open += 1
            self.were = True

    def end(self) -> None:
        """Note that a capture has ended."""
        with self._lock:
            self._open = max(0, self._open - 1)

    def ask(self, question: Callable[[], _T]) -> _T | None:
        """Return the result of a query of the driver, None during a capture."""
        with self._lock:
            return None if self._open else question()

    def renew(self) -> None:
        """In a forked child: replace the lock, which a thread that does not exist there may hold."""
        self._lock = threading.Lock()

    def watch(self, graph: Any) -> None:
        """Follow the captures of `torch.cuda.CUDAGraph`."""
        begin, end = graph.capture_begin, graph.capture_end

        @functools.wraps(begin)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self.begin()
            try:
                return begin(*args, **kwargs)
            except BaseException:
                self.end()
                raise

        @functools.wraps(end)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return end(*args, **kwargs)
            finally:
                self.end()

        replace(graph, "capture_begin", capture_begin)
        replace(graph, "capture_end", capture_end)


CAPTURES: Final = Captures()
"""The captures of this process, to which the driver's rule applies."""


class EventClock:
    """A device clock that records events on the stream that is current when a phase changes."""

    def __init__(self, event: Callable[[], Event], stream: Callable[[], Any], captures: Captures = CAPTURES) -> None:
        self._captures = captures
        self._event = event
        self._stream = stream

    def record(self) -> Moment | None:
        """Return an event on the current stream; None during a capture, whose graph would contain it."""
        if self._captures.under_way:
            return None
        event = self._event()
        event.record(self._stream())
        return event

    def spans(self, moments: list[Any]) -> list[int] | None:
        """Return the ns from each moment to the next, None where they are not known, or not yet."""
        if any(moment is None for moment in moments):
            return None
        return self._captures.ask(functools.partial(_spans, moments))


def _spans(moments: list[Any]) -> list[int] | None:
    if not all(moment.query() for moment in reversed(moments)):
        return None
    # A change of the stream between two events can reverse their order.
    return [max(0, round(before.elapsed_time(after) * 1e6)) for before, after in pairwise(moments)]


def clock_of(torch: Any, device: Any) -> EventClock:
    """Return the clock of a CUDA device."""
    event = functools.partial(torch.cuda.Event, enable_timing=True)
    return EventClock(event, functools.partial(torch.cuda.current_stream, device))


def is_ready(stamped: StepStamps) -> bool:
    """Say whether the device has reached the end of the step, or will not report it."""
    clock, moments = stamped.clock, stamped.moments
    unknowable = clock is None or len(moments) != len(stamped.marks) + 1 or any(moment is None for moment in moments)
    return unknowable or (clock is not None and clock.spans(moments[-1:]) is not None)


def by_phase(stamped: StepStamps) -> tuple[int, ...] | None:
    """Return the device's ns by phase of `wire.DEVICE_PHASES`; None where they are not known."""
    if stamped.clock is None or len(stamped.moments) != len(stamped.marks) + 1:
        return None
    spans = stamped.clock.spans(stamped.moments)
    if spans is None:
        return None
    phases = [0] * len(DEVICE_PHASES)
    for (_, phase), span in zip(stamped.marks, spans, strict=True):
        phases[phase] += span
    return tuple(phases)
