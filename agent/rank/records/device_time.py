"""Moments on a CUDA device's own time line, for the time that each phase takes there.

An event is recorded behind the work given to the device so far, and read by the agent's
thread once the device has passed it: nothing here waits.  What lies between two events
includes the time in which the device had nothing to do.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from ddptop.agent.rank.records.stamps import Moment, StepStamps

_T = TypeVar("_T")


class Event(Protocol):
    """What is needed of `torch.cuda.Event`."""

    def record(self, stream: Any) -> None:
        """Put the event behind the stream's work."""

    def query(self) -> bool:
        """Say whether the device has passed it."""

    def elapsed_time(self, later: Any) -> float:
        """Return the ms from this event to a later one, both passed."""


class Captures:
    """Knows when a CUDA graph is being captured, anywhere in the process.

    While one is, the driver forbids other threads to ask for an event, and ruins the capture
    of who asks: so the agent's thread asks under this lock, for which a capture waits at its
    beginning, a few microseconds, and not at all while one is under way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0

    @property
    def under_way(self) -> bool:
        """True from before a capture begins until after it ends."""
        return self._open > 0

    def begin(self) -> None:
        """Note that a capture is about to begin."""
        with self._lock:
            self._open += 1

    def end(self) -> None:
        """Note that a capture has ended."""
        with self._lock:
            self._open = max(0, self._open - 1)

    def ask(self, question: Callable[[], _T]) -> _T | None:
        """Return the answer to a question to the driver, None while it must not be asked."""
        with self._lock:
            return None if self._open else question()

    def renew(self) -> None:
        """In a forked child: let nobody wait for a thread that is not there."""
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

        graph.capture_begin, graph.capture_end = capture_begin, capture_end


CAPTURES: Final = Captures()
"""Those of this process: the driver's rule knows no smaller scope."""


class EventClock:
    """A device clock made of events on the stream that is current when a phase changes."""

    def __init__(self, event: Callable[[], Event], stream: Callable[[], Any], captures: Captures = CAPTURES) -> None:
        self._captures = captures
        self._event = event
        self._stream = stream

    def record(self) -> Moment | None:
        """Return an event on the current stream; None while a graph is captured, of which it would be a part."""
        if self._captures.under_way:
            return None
        event = self._event()
        event.record(self._stream())
        return event

    def spans(self, moments: list[Any]) -> list[int] | None:
        """Return the ns from each moment to the next, None while or where they are not known."""
        if any(moment is None for moment in moments):
            return None
        return self._captures.ask(functools.partial(_spans, moments))


def _spans(moments: list[Any]) -> list[int] | None:
    if not all(moment.query() for moment in reversed(moments)):
        return None
    # A stream changed in between can turn the order of two events around.
    return [max(0, round(before.elapsed_time(after) * 1e6)) for before, after in pairwise(moments)]


def clock_of(torch: Any, device: Any) -> EventClock:
    """Return the clock of a CUDA device."""
    event = functools.partial(torch.cuda.Event, enable_timing=True)
    return EventClock(event, functools.partial(torch.cuda.current_stream, device))


def is_ready(stamped: StepStamps) -> bool:
    """Say whether the device has come to the end of the step, as far as anybody will know."""
    clock, moments = stamped.clock, stamped.moments
    unknowable = clock is None or len(moments) != len(stamped.marks) + 1 or any(moment is None for moment in moments)
    return unknowable or (clock is not None and clock.spans(moments[-1:]) is not None)


def by_phase(stamped: StepStamps) -> tuple[int, ...] | None:
    """Return the device's ns in data, forward, backward, optimizer and other; None where they are not known."""
    if stamped.clock is None or len(stamped.moments) != len(stamped.marks) + 1:
        return None
    spans = stamped.clock.spans(stamped.moments)
    if spans is None:
        return None
    phases = [0, 0, 0, 0, 0]
    for (_, phase), span in zip(stamped.marks, spans, strict=True):
        phases[phase] += span
    return tuple(phases)
