"""Makes `Step` records of stamps. Pure: no clock, no torch, no I/O.

The seven phases are exclusive and add up to the step's wall time by construction: the marks
divide the step into segments, and the time in which the training thread was blocked in a
collective is moved from its segment to `wait`, each nanosecond once.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.rank.records.stamps import ACTIVITIES, BACKWARD, COPY, DATA, FORWARD, OPTIMIZER, OTHER, StepStamps
from ddptop.agent.wire import Collective, Step

Interval = tuple[int, int]

EVERY_PHASE: Final = range(len(ACTIVITIES))
MAX_COLLECTIVES = 256
"""Collectives of one record at most; a step with more has the first ones."""


def record(stamped: StepStamps, seen: Container[int] = EVERY_PHASE) -> Step:
    """Turn the stamps of one step into its record; of phases that were never `seen` nothing is known."""
    segments = _segments(stamped)
    start = segments[0][0]
    _clip(stamped, segments)
    blocked = _merge(_blocked(stamped, segments))
    phases = [0, 0, 0, 0, 0, 0]
    wait = 0
    for begin, end, phase in segments:
        stolen = 0
        for since, until in blocked:
            if since < end and begin < until:
                stolen += min(end, until) - max(begin, since)
        phases[phase] += end - begin - stolen
        wait += stolen
    values = [value for value in (pending.read() for pending in stamped.losses) if value is not None]
    return Step(
        seq=stamped.seq,
        step=stamped.step,
        end_at_ns=stamped.end_at,
        wall_ns=stamped.end - start,
        data_ns=phases[DATA] if DATA in seen else None,
        forward_ns=phases[FORWARD] if FORWARD in seen else None,
        backward_ns=phases[BACKWARD] if BACKWARD in seen else None,
        optimizer_ns=phases[OPTIMIZER] if OPTIMIZER in seen else None,
        wait_ns=wait if stamped.observed else None,
        other_ns=phases[4],
        loss=_loss(stamped, values),
        samples=stamped.samples,
        collectives=tuple(_collectives(stamped, start)),
        metrics=stamped.metrics,
        lr=stamped.rate,
        # On the CPU nothing is copied to a device, which is not the same as a copy that takes no time.
        copy_ns=phases[COPY] if phases[COPY] or stamped.clock is not None else None,
        counted=stamped.counted,
        counted_ns=stamped.counted_ns,
        tokens=stamped.tokens,
    )


def _loss(stamped: StepStamps, values: list[float]) -> float | None:
    """Return the mean loss of the micro-batches; their sum where each was divided by the number of them."""
    if not values:
        return None
    return sum(values) / (1 if _were_divided(stamped) else len(values))


def _were_divided(stamped: StepStamps) -> bool:
    number = len(stamped.parts)
    return number > 1 and all(number in parts for parts in stamped.parts)


def is_loss_unsure(stamped: StepStamps) -> bool:
    """Say whether the losses of several micro-batches may have been divided for accumulation in a way not seen."""
    return len(stamped.parts) > 1 and not _were_divided(stamped) and any(parts - {1} for parts in stamped.parts)


def is_ready(stamped: StepStamps) -> bool:
    """Say whether all expected completions, losses and gradients of the step are there."""
    return all(call.duration is not None or not call.expected for call in stamped.calls) and all(
        pending.read() is not None
        for pending in (*stamped.losses, *stamped.gradients, *([stamped.skipped] if stamped.skipped else []))
    )


def _segments(stamped: StepStamps) -> list[tuple[int, int, int]]:
    """Return (begin, end, phase), gapless, in order."""
    marks = stamped.marks or [(stamped.end, OTHER)]
    ends = [stamp for stamp, _ in marks[1:]] + [stamped.end]
    return [(begin, end, phase) for (begin, phase), end in zip(marks, ends, strict=True)]


def intervals_of(stamped: StepStamps) -> Iterator[tuple[int, int, str]]:
    """Yield the exclusive phases of a step in their order: beginning and end in ns from that of the step, and name.

    A `record` has been made of these stamps before.
    """
    segments = _segments(stamped)
    start, blocked = segments[0][0], _merge(_blocked(stamped, segments))
    for begin, end, phase in segments:
        at = begin
        for since, until in blocked:
            since, until = max(since, at), min(until, end)
            if since < until:
                if at < since:
                    yield at - start, since - start, ACTIVITIES[phase]
                yield since - start, until - start, "wait"
                at = until
        if at < end:
            yield at - start, end - start, ACTIVITIES[phase]


def _clip(stamped: StepStamps, segments: list[tuple[int, int, int]]) -> None:
    """Correct late stamps of completion: on a busy machine their thread may be preempted before it writes them.

    A thread that waits for a call goes on after its completion, so the call was complete by then: by the end of the
    `Work.wait` of a blocking call, by the end of the backward pass for DDP's buckets.
    """
    waits = sorted(stamped.waits)
    ends = [end for _, end, phase in segments if phase == BACKWARD]
    for call in stamped.calls:
        if call.done is None:
            continue
        if call.deferred:
            index = bisect.bisect_right(ends, call.entered)
            call.done = min(call.done, ends[index]) if index < len(ends) else call.done
        elif call.blocking:
            index = bisect.bisect_left(waits, (call.entered, 0))
            # Where C++ waited for it, the next wait belongs to another call.
            if index < len(waits) and waits[index][0] < call.done:
                call.done = min(call.done, waits[index][1])


def _blocked(stamped: StepStamps, segments: list[tuple[int, int, int]]) -> Iterable[Interval]:
    """Yield the intervals in which the training thread was blocked in a collective.

    A blocking call blocks from its entry, and the waits are stamped. DDP
    waits at the end of backward for the all-reduces that it issued as gradients became ready:
    the thread computes until it has issued the last of them. Where they are not timed,
    it is assumed to wait until the end of the phase.

    Collectives that follow on others, in a communication hook, are called by a thread of the backend while the training
    thread computes, or waits already: the first to call one in a backward pass is the thread that computes it.
    """
    yield from stamped.waits
    followed: set[int] = set()
    since: int | None = None
    for index, (begin, end, phase) in enumerate(segments):
        if phase != BACKWARD:
            continue
        since = begin if since is None else since
        if [each[2] for each in segments[index + 1 : index + 3]] == [OPTIMIZER, BACKWARD]:
            # A step of an optimizer inside of the backward pass, which then goes on.
            continue
        inside = [call for call in stamped.calls if (call.deferred or call.blocking) and since <= call.entered < end]
        followed.update(id(call) for call in inside if call.thread != inside[0].thread)
        if any(call.deferred for call in inside):
            finished = max((call.done for call in inside if call.done is not None), default=end)
            computed = max(call.entered for call in inside if id(call) not in followed)
            yield max(begin, computed), max(begin, min(end, finished))
        since = None
    for call in stamped.calls:
        if call.done is not None and call.blocking and id(call) not in followed:
            yield call.entered, call.done


def _merge(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for since, until in sorted(intervals):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], until))
        else:
            merged.append((since, until))
    return merged


def _collectives(stamped: StepStamps, start: int) -> Iterable[Collective]:
    """Yield the calls as `wire.Collective`, with the time for which each waited for a worker.

    A backend with two workers begins a call when at most one earlier call of its
    group is unfinished.
    """
    earlier: dict[str, list[int]] = {}
    for call in stamped.calls[:MAX_COLLECTIVES]:
        queued = 0
        if call.workers:
            done = earlier.setdefault(call.group, [])
            if len(done) >= call.workers:
                queued = max(0, done[-call.workers] - call.entered)
            if call.done is not None:
                queued = min(queued, call.done - call.entered)
                bisect.insort(done, call.done)
        yield Collective(
            call.op,
            call.entered - start,
            call.duration,
            call.bytes,
            call.in_flight,
            group=call.group,
            blocking=call.blocking,
            queued_ns=queued,
            estimated=queued > 0 or call.estimated,
            on_device=call.device is not None,
        )


class Starvation:
    """The time in which the training thread was runnable but had no core, by a counter of the kernel.

    Without it a rank on a crowded core looks like one that has more work.  Linux counts it for each thread; elsewhere
    it is not known.  The count since the last batch of records is divided among the records of the next one.
    """

    def __init__(self, counters: Path | None = None) -> None:
        self._thread = threading.main_thread()
        self._counters = _of(self._thread) if counters is None else counters
        self._last: int | None = None
        self._begun = False

    def follow(self, ident: int | None) -> None:
        """Follow the training thread where it has become another one."""
        if ident != self._thread.ident:
            found = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
            if found is not None:
                self._thread, self._counters, self._last = found, _of(found), None

    def stamp(self, steps: list[Step]) -> list[Step]:
        """Return the records with their shares of the count, in proportion to their wall time.

        Steps that were only counted have a share as well, which is in no record.
        """
        now = self._read()
        if not steps:
            # Time before the first step belongs to none.
            if not self._begun:
                self._last = now
            return steps
        self._begun = True
        before, self._last = self._last, now
        wall = sum(step.wall_ns + step.counted_ns for step in steps)
        if now is None or before is None or wall <= 0:
            return steps
        return [
            msgspec.structs.replace(step, starved_ns=min(step.wall_ns, (now - before) * step.wall_ns // wall))
            for step in steps
        ]

    def _read(self) -> int | None:
        try:
            # The numbers are the ns on a core, the ns waiting for one, and the number of time slices.
            return int(self._counters.read_bytes().split()[1])
        except (OSError, IndexError, ValueError):
            return None


def _of(thread: threading.Thread) -> Path:
    return Path(f"/proc/self/task/{thread.native_id}/schedstat")
