"""Takes out of a step the time for which other ranks were held for some work of ours.

A rank that is held begins its present step anew afterwards.  Those that wait for it meanwhile, in a collective, are not
held: their records have that time as a wait of their own.  By the rank's own word it is taken out where records come
in, so that no verdict, no mean and no picture has it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

import msgspec

from ddptop.agent import wire
from ddptop.agent.wire import PHASES

_KEPT: Final = 4
"""Holds of a rank that are known: records come within moments of their end."""
_LONGEST_NS: Final = 600_000_000_000
"""Time after the end of all holds in which a step may come that began before, such as one that was asked for again."""
_Record = TypeVar("_Record", wire.Step, wire.Summary)


class Holds:
    """The newest holds of all ranks; for use from one thread."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._of: dict[int, deque[tuple[int, int | None]]] = {}
        """By rank, when each began and ended; None: it goes on."""
        self._open = set[int]()
        """Ranks whose newest hold goes on."""
        self._over_ns = 0
        """When the last hold ended."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def take(self, message: wire.Telemetry) -> wire.Telemetry:
        """Take in what a rank has said; return it without the time of holds of other ranks."""
        # Nearly always there are none.
        if type(message) is wire.Beat and (message.state == "held" or self._of):
            self._note(message)
        elif self._of and type(message) is wire.Steps:
            steps = tuple(self._step(message.rank, step) for step in message.steps)
            return message if steps == message.steps else msgspec.structs.replace(message, steps=steps)
        elif self._of and type(message) is wire.Summary:
            held = self._within(message.rank, message.end_at_ns - message.wall_ns * message.steps, message.end_at_ns)
            return _shortened(message, sum(end - begin for begin, end in held) // max(1, message.steps))[0]
        return message

    def _note(self, beat: wire.Beat) -> None:
        begin_ns = beat.held_at_ns if beat.state == "held" else None
        if beat.rank in self._open and begin_ns != self._of[beat.rank][-1][0]:
            # Where the heartbeat of its end is lost, the next hold began after that.
            since, _ = self._of[beat.rank].pop()
            until = max(since, beat.released_at_ns or begin_ns or beat.at_ns)
            self._of[beat.rank].append((since, until))
            self._open.remove(beat.rank)
            self._over_ns = max(self._over_ns, until)
        if begin_ns is not None and beat.rank not in self._open:
            self._of.setdefault(beat.rank, deque(maxlen=_KEPT)).append((begin_ns, None))
            self._open.add(beat.rank)
        elif not self._open and beat.at_ns - self._over_ns > _LONGEST_NS:
            self._of.clear()

    def _within(self, rank: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the stretches of a time of a rank in which others were held, which do not overlap."""
        if not self._open and begin >= self._over_ns:
            return []
        others = [each for other, known in self._of.items() if other != rank for each in known]
        found: list[tuple[int, int]] = []
        for since, until in sorted((since, end if until is None else until) for since, until in others):
            since, until = max(since, found[-1][1] if found else begin), min(until, end)
            if since < until:
                found.append((since, until))
        return found

    def _step(self, rank: int, step: wire.Step) -> wire.Step:
        begin = step.end_at_ns - step.wall_ns
        if step.counted and rank not in self._of:
            held = sum(until - since for since, until in self._within(rank, begin - step.counted_ns, begin))
            least = min(step.counted_ns, step.counted * step.wall_ns)
            step = msgspec.structs.replace(step, counted_ns=max(least, step.counted_ns - held)) if held else step
        found = self._within(rank, begin, step.end_at_ns)
        step, cut = _shortened(step, sum(until - since for since, until in found))
        if not cut:
            return step
        # It waited last, until they were let go.
        until = found[-1][1] - begin
        since = until - cut

        def moved(at: int) -> int:
            return at - cut if at >= until else min(at, max(0, since))

        calls = []
        for call in step.collectives:
            entered, took = moved(call.entered_ns), call.duration_ns
            ended = None if took is None else moved(call.entered_ns + took)
            took = None if ended is None else max(0, ended - entered)
            queued = call.queued_ns if took is None else min(call.queued_ns, took)
            calls.append(msgspec.structs.replace(call, entered_ns=entered, duration_ns=took, queued_ns=queued))
        return msgspec.structs.replace(step, collectives=tuple(calls), device_ns=None)


def _shortened(record: _Record, held_ns: int) -> tuple[_Record, int]:
    """Return a record without so much of its wait, or of its longest phase where waits are not known; and how much."""
    if held_ns <= 0:
        return record, 0
    phases = {f"{phase}_ns": getattr(record, f"{phase}_ns") or 0 for phase in PHASES}
    name = max(phases, key=phases.__getitem__) if record.wait_ns is None else "wait_ns"
    cut = min(held_ns, phases[name], record.wall_ns)
    left = {name: phases[name] - cut, "wall_ns": record.wall_ns - cut}
    return msgspec.structs.replace(record, **left), cut
