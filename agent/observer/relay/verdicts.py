"""The verdicts of an observer: found by the judge once a second, counted where it fails, and noted for the record.

An error of the judge costs verdicts, and never the relay.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control.events import Events
from ddptop.agent.observer.hosts.common import CommonRecord
from ddptop.agent.observer.judge.intervals import Accusation, Finding, Reason
from ddptop.agent.observer.judge.kinds.memory_growth import KIND

if TYPE_CHECKING:
    from ddptop.agent.observer.judge.judge import Judge

WRITE_S: Final = 10.0
"""Seconds between two writes of a verdict of which only the figures change."""
_OF_A_RANK: Final = ("slow_rank", "unequal_work", "no_core")
"""Kinds of verdicts that accuse one rank of being slow."""
MOST_EARLY: Final = 4_096
"""Checksums that wait for the judge at most."""
MOST_FAULTS: Final = 1_000
"""Errors after which the judge is not asked any more: each of them costs time."""

Make = Callable[[int, int, Sequence[wire.Verdict]], "Judge"]
"""Makes the judge of a number of ranks and a generation, which continues recorded verdicts."""


def judge_of(world: int, generation: int, known: Sequence[wire.Verdict]) -> Judge:
    """Return the usual judge."""
    # It needs NumPy, which takes a tenth of a second to load; the observer starts the ranks meanwhile.
    from ddptop.agent.observer.judge.judge import Judge

    return Judge(world, generation=generation, known=known)


class RunVerdicts:
    """The verdicts of a run and their intervals; for use from one thread."""

    def __init__(
        self,
        world: int,
        common: CommonRecord,
        events: Events,
        make: Make = judge_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Judge nothing yet.

        Args:
            world: number of ranks.
            common: takes each verdict that is to be recorded.
            events: takes what is said of the judge itself.
            make: makes the judge.
            clock: in seconds.
        """
        self.faults = 0
        self.now: tuple[wire.Verdict, ...] = ()
        """The verdicts of this moment."""
        self.missing_steps = 0
        """Steps until there can be a verdict on a slow rank, about; 0 where there can."""
        self.named_from_ms: float | None = None
        """Milliseconds a step from which a delay of a rank would be told now; None where it would not, or one is."""
        self.suspects: frozenset[int] = frozenset()
        """The ranks of a large group whose records would decide now."""
        self.hang: wire.Verdict | None = None
        """The newest hang of the present processes, or wait for a rank that works, also when it is over."""
        self.hosts: Sequence[wire.HostFrame] = ()
        """The hosts of the run, as they are known for the next turn."""
        self.standstill: tuple[Finding | None, int | None] = None, None
        """The finding of a run that makes no steps, for the next turn, and the time at which the last one ceased."""
        self.reasons: Mapping[Accusation, Reason] = {}
        """Those that were found for the verdicts of this moment, for the next turn."""
        self.ordinary: Sequence[int] = ()
        """Ranks that are neither slow nor fast at this moment, the one nearest to the middle first."""
        self._common = common
        self._events = events
        self._world = world
        self._make = make
        self._clock = clock
        self._judge: Judge | None = None
        self._early: deque[wire.Checksums] | None = deque(maxlen=MOST_EARLY)
        """Checksums that came before the judge: a rank sends those of its last checks once. None: it has begun."""
        self._open: dict[int, wire.Verdict] = {}
        """Verdicts that go on, as recorded last, by number."""
        self._due: dict[int, float] = {}
        self._reported: set[str] = set()

    @property
    def blamed(self) -> tuple[int, int] | None:
        """The rank that is accused of being slow, and an ordinary one to compare it with; None where there are none."""
        slow = next((each.rank for each in self.now if each.kind in _OF_A_RANK and each.rank is not None), None)
        peer = next((rank for rank in self.ordinary if rank != slow), None)
        return None if slow is None or peer is None else (slow, peer)

    @property
    def growing(self) -> int | None:
        """The rank whose memory grows by a verdict; None where there is none, or it is all of them."""
        return next((each.rank for each in self.now if each.kind == KIND), None)

    def begin(self, generation: int, recorded: Sequence[wire.Verdict], now_ns: int) -> None:
        """Begin to judge, and continue the verdicts of an earlier observer of this run."""
        for verdict in recorded:
            if verdict.until_at_ns is None and verdict.generation != generation:
                # Its ranks had gone before this observer came.
                self._close(verdict, now_ns)
            elif verdict.until_at_ns is None:
                self._open[verdict.number] = verdict
        with self._guarded():
            self._judge = self._make(self._world, generation, recorded)
        early, self._early = self._early, None
        for message in early or ():
            self.take(message)

    def take(self, message: wire.Telemetry) -> None:
        """Take in a message of a rank; records come in order."""
        if self._early is not None and type(message) is wire.Checksums:
            self._early.append(message)
        if self._judge is not None:
            # Not within `_guarded`: of a large group thousands of messages come in a second.
            try:
                self._judge.take(message)
            except Exception as error:  # it costs a verdict
                self._fail(error)

    def restart(self, generation: int) -> None:
        """Begin anew with other processes."""
        if self.hang is not None and self.hang.generation != generation:
            self.hang = None
        if self._judge is not None:
            with self._guarded():
                self._judge.restart(generation)

    def turn(self, now_ns: int) -> None:
        """Judge, and note changes for the record."""
        present: tuple[wire.Verdict, ...] = ()
        if self._judge is not None:
            with self._guarded():
                present = self._ask(self._judge, now_ns)
        numbers = {verdict.number for verdict in present}
        for number in [number for number in self._open if number not in numbers]:
            # The judge has failed, or is not asked any more.
            self._close(self._open[number], now_ns)
        for verdict in present:
            self._write(verdict)
            if verdict.hang is not None and (verdict.kind == "hang" or verdict.hang.kind == "working"):
                self.hang = verdict
        self.now = present

    def _ask(self, judge: Judge, now_ns: int) -> tuple[wire.Verdict, ...]:
        judge.hosts(self.hosts)
        judge.stand(*self.standstill)
        judge.reasons(self.reasons)
        present = judge.verdicts(now_ns)
        for verdict in judge.ended():
            self._close(verdict, now_ns)
        for line in judge.notes():
            self._events.say(line)
        self.ordinary = judge.ordinary() if present else ()
        self.missing_steps, self.named_from_ms = judge.missing_steps, judge.named_from_ms
        self.suspects = judge.suspects()
        return present

    def pause(self, generation: int, now_ns: int) -> None:
        """End all verdicts, because the observer of another host judges; begin anew when this one is asked again."""
        self.finish(now_ns)
        self.restart(generation)
        self.now = ()

    def finish(self, now_ns: int) -> None:
        """End all verdicts with the run."""
        if self._judge is not None:
            with self._guarded():
                self._judge.conclude()
        self.turn(now_ns)
        if self._judge is not None:
            with self._guarded():
                for verdict in self._judge.close(now_ns):
                    self._close(verdict, now_ns)
        for verdict in list(self._open.values()):
            self._close(verdict, now_ns)

    def _write(self, verdict: wire.Verdict) -> None:
        before, now = self._open.get(verdict.number), self._clock()
        if before is not None and (before == verdict or now < self._due.get(verdict.number, 0.0)):
            return
        self._open[verdict.number] = verdict
        self._due[verdict.number] = now + WRITE_S
        self._common.judge(verdict)

    def _close(self, verdict: wire.Verdict, now_ns: int) -> None:
        self._open.pop(verdict.number, None)
        self._due.pop(verdict.number, None)
        until = now_ns if verdict.until_at_ns is None else verdict.until_at_ns
        closed = msgspec.structs.replace(verdict, until_at_ns=max(until, verdict.since_at_ns))
        if self.hang is not None and self.hang.number == verdict.number:
            self.hang = closed
        self._common.judge(closed)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # it costs a verdict
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.faults += 1
        if (kind := type(error).__name__) not in self._reported:
            self._reported.add(kind)
            self._events.say(f"judging: {error!r:.200}", "warning")
        if self.faults == MOST_FAULTS:
            self._judge = None
            stopped = "judging has stopped: too many errors; the run and its record are not affected"
            self._events.say(stopped, "error")
