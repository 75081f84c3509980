"""Stamps in, `Step` records out. Pure: no clock, no torch, no I/O.

The six phases are exclusive and add up to the step's wall time by construction: the marks
cut the step into segments, and the time in which the training thread was blocked in a
collective is moved from the segment it fell in to `wait`, each nanosecond once.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddptop.agent.rank.tape import BACKWARD, FORWARD, OTHER, Call, Take
from ddptop.agent.wire import Collective, Step

Interval = tuple[int, int]

MAX_COLLECTIVES = 256
"""Collectives kept in one record; a step with more keeps the first ones."""


def record(take: Take) -> Step:
    """Turn the stamps of one step into its record."""
    segments = _segments(take)
    start = segments[0][0]
    blocked = _merge(_blocked(take, segments))
    phases = [0, 0, 0, 0, 0]
    wait = 0
    for begin, end, phase in segments:
        stolen = sum(max(0, min(end, until) - max(begin, since)) for since, until in blocked)
        phases[phase] += end - begin - stolen
        wait += stolen
    values = [value for value in (pending.read() for pending in take.losses) if value is not None]
    return Step(
        seq=take.seq,
        step=take.step,
        end_at_ns=take.end_at,
        wall_ns=take.end - start,
        data_ns=phases[0],
        forward_ns=phases[1],
        backward_ns=phases[2],
        optimizer_ns=phases[3],
        wait_ns=wait if take.observed else None,
        other_ns=phases[4],
        loss=sum(values) / len(values) if values else None,
        samples=take.samples,
        collectives=tuple(_collective(call, start) for call in take.calls[:MAX_COLLECTIVES]),
        metrics=take.metrics,
    )


def is_ready(take: Take) -> bool:
    """Say whether everything asynchronous in the step has come in."""
    return all(call.done is not None for call in take.calls) and all(
        pending.read() is not None for pending in take.losses
    )


def _segments(take: Take) -> list[tuple[int, int, int]]:
    """Return (begin, end, phase), gapless, in order."""
    marks = take.marks or [(take.end, OTHER)]
    ends = [stamp for stamp, _ in marks[1:]] + [take.end]
    return [(begin, end, phase) for (begin, phase), end in zip(marks, ends, strict=True)]


def _blocked(take: Take, segments: list[tuple[int, int, int]]) -> Iterable[Interval]:
    """Yield when the training thread stood in a collective.

    DDP waits at the end of backward for all-reduces that it issued as gradients became
    ready: there the thread computes until it has entered the last of them. The broadcasts
    of buffers at the start of forward, and every synchronous call, block from entry.
    """
    for call in take.calls:
        if call.done is not None and (call.blocking or _phase_at(segments, call.entered) == FORWARD):
            yield call.entered, call.done
    for begin, end, phase in segments:
        if phase == BACKWARD:
            inside = [c for c in take.calls if not c.blocking and begin <= c.entered < end]
            if inside:
                finished = max((c.done for c in inside if c.done is not None), default=end)
                yield max(c.entered for c in inside), min(end, finished)


def _phase_at(segments: list[tuple[int, int, int]], stamp: int) -> int:
    return next((phase for begin, end, phase in segments if begin <= stamp < end), OTHER)


def _merge(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for since, until in sorted(intervals):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], until))
        else:
            merged.append((since, until))
    return merged


def _collective(call: Call, start: int) -> Collective:
    duration = None if call.done is None else call.done - call.entered
    return Collective(call.op, call.entered - start, duration, call.bytes, call.in_flight)
