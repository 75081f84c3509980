"""The arithmetic of a timeline: one step of all ranks on one time axis. Pure.

Collectives are where they were measured, and with them the waits.  Of the phases a record
holds only durations: they are laid in the order of a step around the measured waits, so that
each is as long as it was, and where it stands is a reading.  Knows neither cells nor frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddptop.agent.wire import AlignedStep, Collective, Split, Step

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a rank's step, in ns from the beginning of the axis."""

    phase: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One collective on one rank, in ns from the beginning of the axis."""

    index: int
    """Its number among the collectives of this rank's step."""
    call: Collective
    entered: int
    begun: int | None
    """When the last rank had come; None where that is not known."""
    done: int | None
    """When it was complete; None where that was not seen."""
    last: int | None
    """The rank that came last, None where that is not known."""
    estimated: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's step."""

    rank: int
    begin: int
    end: int
    spans: tuple[Span, ...]
    bars: tuple[Bar, ...]
    compared: bool = True
    """True where its clock is that of the axis, or compared with it; else it begins at zero, wherever it stood."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of the ranks whose records of it are there."""

    number: int
    length: int
    """End of the axis, ns."""
    lanes: tuple[Lane, ...]
    aligned: bool
    """True where all lanes are on one clock, or on clocks that are compared; else some begin at zero and nobody knows
    when."""
    error: int = 0
    """By so many ns two moments on different machines may be further apart, or closer, than they are drawn."""

    def spread(self, bar: Bar) -> int | None:
        """Return the time between the first and the last rank that came to a collective, ns."""
        if bar.begun is None:
            return None
        met = (each for lane in self.lanes for each in lane.bars if (each.begun, each.last) == (bar.begun, bar.last))
        return max(bar.begun - each.entered for each in met)

    def latest(self) -> int | None:
        """Return the rank that the others waited for longest, None where no collective shows it."""
        bars = [bar for lane in self.lanes for bar in lane.bars if bar.begun is not None and bar.last is not None]
        return max(bars, key=lambda bar: (bar.begun or 0) - bar.entered).last if bars else None

    def lane(self, rank: int) -> Lane | None:
        return next((lane for lane in self.lanes if lane.rank == rank), None)


def timeline(number: int, steps: Mapping[int, AlignedStep]) -> Timeline:
    """Lay out one step of some ranks."""
    zero = min((each.begin_ns for each in steps.values() if each.is_compared), default=0)
    lanes = []
    for rank, aligned in sorted(steps.items()):
        step, begin = aligned.step, aligned.begin_ns - zero if aligned.is_compared else 0
        bars = tuple(
            _bar(index, call, begin, found)
            for index, (call, found) in enumerate(zip(step.collectives, aligned.splits, strict=True))
        )
        lanes.append(Lane(rank, begin, begin + step.wall_ns, lay_phases(step, begin), bars, aligned.is_compared))
    length = max((lane.end for lane in lanes), default=0)
    error = max((each.error_ns for each in steps.values()), default=0)
    return Timeline(number, length, tuple(lanes), all(lane.compared for lane in lanes), error)


def _bar(index: int, call: Collective, begin: int, found: Split | None) -> Bar:
    entered = begin + call.entered_ns
    done = None if call.duration_ns is None else entered + call.duration_ns
    if found is None:
        return Bar(index, call, entered, None, done, None, call.estimated or call.on_device)
    return Bar(index, call, entered, begin + found.begun_ns, done, found.last, found.estimated)


def lay_phases(step: Step, begin: int) -> tuple[Span, ...]:
    """Return the phases of a record in the order of a step, around the waits, from `begin` on.

    Blocking calls waited where they are. What else was waited is DDP's: at the end of backward, until
    the last bucket was done. What is left before it once data, copies, forward and backward are laid is `other`.
    """
    waits = _waits(step)
    drawn, copied, forward, backward = (
        span or 0 for span in (step.data_ns, step.copy_ns, step.forward_ns, step.backward_ns)
    )
    head = drawn + copied + forward + backward
    before = 0
    if waits:
        before = waits[-1][0] - sum(end - since for since, end in waits[:-1])
    lead = min(max(0, before - head), step.other_ns)
    parts = [
        ("other", lead),
        ("data", drawn),
        ("copy", copied),
        ("forward", forward),
        ("backward", backward),
        ("optimizer", step.optimizer_ns or 0),
        ("other", step.other_ns - lead),
    ]
    spans: list[Span] = []
    at = 0
    for phase, length in parts:
        while length > 0:
            if waits and waits[0][0] <= at:
                since, end = waits.pop(0)
                spans.append(Span("wait", begin + at, begin + at + end - since))
                at += end - since
                continue
            piece = min(length, waits[0][0] - at) if waits else length
            spans.append(Span(phase, begin + at, begin + at + piece))
            at += piece
            length -= piece
    for since, end in waits:
        spans.append(Span("wait", begin + at, begin + at + end - since))
        at += end - since
    return tuple(spans)


def _waits(step: Step) -> list[Interval]:
    """Return when the training thread waited, counted from the start of the step; together `wait_ns` long."""
    if not step.wait_ns:
        return []
    seen = [call for call in step.collectives if call.duration_ns is not None and not call.on_device]
    blocked = _merged((call.entered_ns, call.entered_ns + (call.duration_ns or 0)) for call in seen if call.blocking)
    rest = step.wait_ns - sum(end - since for since, end in blocked)
    if rest < 0:
        # Measured by other stamps than the record's sum, or calls from several threads: keep to the sum.
        return _cut(blocked, step.wait_ns)
    others = [call.entered_ns + (call.duration_ns or 0) for call in seen if not call.blocking]
    latest = step.wall_ns - (step.optimizer_ns or 0)
    end = min(max(others, default=latest), step.wall_ns)
    return _merged([*blocked, *_free(blocked, end, rest)])


def _free(taken: Sequence[Interval], end: int, length: int) -> list[Interval]:
    """Return intervals of a total length beside those taken: the last before `end`, then what has no room there."""
    found: list[Interval] = []
    for since, until in [*reversed(taken), (0, 0)]:
        piece = min(length, end - until)
        if piece > 0:
            found.append((end - piece, end))
            length -= piece
        end = min(end, since)
    latest = max((until for _, until in [*taken, *found]), default=0)
    return [*found, (latest, latest + length)] if length else found


def _cut(intervals: list[Interval], length: int) -> list[Interval]:
    """Return the intervals up to a total length."""
    kept = []
    for since, end in intervals:
        taken = min(end - since, length)
        if taken > 0:
            kept.append((since, since + taken))
        length -= taken
    return kept


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for since, end in sorted(intervals):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((since, end))
    return merged
