"""The verdicts of an observer: what the judge finds, published and recorded as intervals.

The judge stands behind a wall: an error of it costs verdicts, and never the relay.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.judge.finding import Finding

WRITE_S: Final = 10.0
"""Seconds between two writes of a verdict of which only the figures change."""
MOST_EARLY: Final = 4_096
"""Checksums that wait for the judge at most."""
MOST_FAULTS: Final = 1_000
"""Errors after which the judge is not asked any more: each of them costs time."""


class Judge(Protocol):
    """Finds what is wrong with a run; see `agent.observer.judge.judgement`."""

    def steps(self, rank: int, records: Iterable[wire.Step], generation: int) -> None:
        """Take in records of a rank."""

    def summary(self, message: wire.Summary) -> None:
        """Take in a summary of a rank."""

    def hosts(self, states: Sequence[wire.HostState]) -> None:
        """Take in what is known of the hosts of the run."""

    def beat(self, message: wire.Beat) -> None:
        """Take in a sign of life."""

    def checksums(self, message: wire.Checksums) -> None:
        """Take in the checksums of a rank's parameters."""

    def notes(self) -> list[str]:
        """Return lines for the list of events that were not returned before."""
        ...

    def restart(self, generation: int) -> None:
        """Begin anew with other processes."""

    def stand(self, finding: Finding | None, ceased_at_ns: int | None) -> None:
        """Take in what is known of a run that makes no steps."""

    def rivals(self, remarks: Mapping[int, str]) -> None:
        """Take in who takes the cores of ranks that wait for one."""

    def verdicts(self, now_ns: int) -> tuple[wire.Verdict, ...]:
        """Return the verdicts of this moment, the one that matters most first."""
        ...

    def ended(self) -> list[wire.Verdict]:
        """Return the verdicts that have ended since the last call."""
        ...

    def suspects(self) -> frozenset[int]:
        """Return the ranks of a large group whose records would decide now."""
        ...

    @property
    def missing_steps(self) -> int:
        """About how many more steps it takes until a rank can be told to be slow."""
        ...

    def conclude(self) -> None:
        """Wait for nobody any more with what was noticed, because the ranks have ended."""

    def close(self, at_ns: int) -> list[wire.Verdict]:
        """End what goes on, and return it with what has ended."""
        ...


Make = Callable[[int, int, Sequence[wire.Verdict]], Judge]
"""Makes the judge of a number of ranks and a generation, which continues recorded verdicts."""


def judge_of(world: int, generation: int, known: Sequence[wire.Verdict]) -> Judge:
    """Return the usual judge."""
    # It needs NumPy, which takes a tenth of a second to load; the observer starts the ranks meanwhile.
    from ddptop.agent.observer.judge.judgement import Judgement

    return Judgement(world, generation=generation, known=known)


class Judging:
    """The judge and the record of its verdicts; for use from one thread."""

    def __init__(
        self,
        world: int,
        record: Callable[[wire.Verdict], None],
        report: Callable[[str, str], None],
        make: Make = judge_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults = 0
        self.now: tuple[wire.Verdict, ...] = ()
        """The verdicts of this moment."""
        self.missing_steps = 0
        """About how many more steps it takes until there can be one of a slow rank; 0 where there can."""
        self.hang: wire.Verdict | None = None
        """The hang that was told last of these processes, also when it is over."""
        self._world = world
        self._record = record
        self._report = report
        self._make = make
        self._clock = clock
        self._judge: Judge | None = None
        self._early: deque[wire.Checksums] | None = deque(maxlen=MOST_EARLY)
        """Checksums that came before the judge: a rank sends those of its last checks once. None: it has begun."""
        self._open: dict[int, wire.Verdict] = {}
        """Verdicts that go on, as recorded last, by number."""
        self._due: dict[int, float] = {}
        self._reported: set[str] = set()

    def begin(self, generation: int, recorded: Sequence[wire.Verdict], now_ns: int) -> None:
        """Begin to judge, and continue the verdicts of an earlier observer of this run."""
        for verdict in recorded:
            if verdict.until_at_ns is None and verdict.generation != generation:
                # Its ranks had gone before this observer came.
                self._close(verdict, now_ns)
            elif verdict.until_at_ns is None:
                self._open[verdict.number] = verdict

        def begin() -> None:
            self._judge = self._make(self._world, generation, recorded)

        self._guarded(begin)
        early, self._early = self._early, None
        for message in early or ():
            self.note(message)

    def steps(self, message: wire.Steps) -> None:
        """Take in records of a rank, in order."""
        if (judge := self._judge) is not None:
            try:
                judge.steps(message.rank, message.steps, message.generation)
            except Exception as error:  # a wall, as below
                self._fault(error)

    def note(self, message: wire.Telemetry) -> None:
        """Take in a summary, a sign of life or checksums."""
        if self._early is not None and type(message) is wire.Checksums:
            self._early.append(message)
        if (judge := self._judge) is not None:
            try:
                if type(message) is wire.Summary:
                    judge.summary(message)
                elif type(message) is wire.Beat:
                    judge.beat(message)
                elif type(message) is wire.Checksums:
                    judge.checksums(message)
            except Exception as error:  # a wall, as below
                self._fault(error)

    def hosts(self, states: Sequence[wire.HostState]) -> None:
        """Take in what is known of the hosts of the run."""
        if (judge := self._judge) is not None:
            self._guarded(lambda: judge.hosts(states))

    def stand(self, finding: Finding | None, ceased_at_ns: int | None) -> None:
        """Take in what is known of a run that makes no steps, None where it makes some, and when it last began to."""
        if (judge := self._judge) is not None:
            self._guarded(lambda: judge.stand(finding, ceased_at_ns))

    def rivals(self, remarks: Mapping[int, str]) -> None:
        """Take in who takes the cores of ranks that wait for one, by rank."""
        if (judge := self._judge) is not None:
            self._guarded(lambda: judge.rivals(remarks))

    def restart(self, generation: int) -> None:
        """Begin anew with other processes."""
        if self.hang is not None and self.hang.generation != generation:
            self.hang = None
        if (judge := self._judge) is not None:
            self._guarded(lambda: judge.restart(generation))

    def suspects(self) -> frozenset[int]:
        """Return the ranks of a large group whose records would decide now."""
        found: list[frozenset[int]] = []
        if (judge := self._judge) is not None:
            self._guarded(lambda: found.append(judge.suspects()))
        return found[0] if found else frozenset()

    def turn(self, now_ns: int) -> bool:
        """Judge, and record what has changed; return whether the verdicts are others than before."""
        if (judge := self._judge) is None:
            # There is none yet, or it is not asked any more.
            for verdict in list(self._open.values()):
                self._close(verdict, now_ns)
            changed, self.now = self.now != (), ()
            return changed
        found: list[tuple[wire.Verdict, ...]] = []
        ended: list[wire.Verdict] = []
        self._guarded(lambda: found.append(judge.verdicts(now_ns)))
        self._guarded(lambda: ended.extend(judge.ended()))
        notes: list[str] = []
        self._guarded(lambda: notes.extend(judge.notes()))
        for line in notes:
            self._report(line, "info")
        self._guarded(lambda: setattr(self, "missing_steps", judge.missing_steps))
        present = found[0] if found else ()
        for verdict in ended:
            self._close(verdict, now_ns)
        numbers = {verdict.number for verdict in present}
        for number in [number for number in self._open if number not in numbers]:
            # The judge has failed.
            self._close(self._open[number], now_ns)
        for verdict in present:
            self._write(verdict)
            if verdict.kind == "hang":
                self.hang = verdict
        changed, self.now = present != self.now, present
        return changed

    def pause(self, generation: int, now_ns: int) -> None:
        """End all verdicts, because the observer of another host judges; begin anew when this one is asked again."""
        self.finish(now_ns)
        self.restart(generation)
        self.now = ()

    def finish(self, now_ns: int) -> None:
        """End all verdicts with the run."""
        judge = self._judge
        if judge is not None:
            self._guarded(judge.conclude)
        self.turn(now_ns)
        ended: list[wire.Verdict] = []
        if judge is not None:
            self._guarded(lambda: ended.extend(judge.close(now_ns)))
        for verdict in ended:
            self._close(verdict, now_ns)
        for verdict in list(self._open.values()):
            self._close(verdict, now_ns)

    def _write(self, verdict: wire.Verdict) -> None:
        before, now = self._open.get(verdict.number), self._clock()
        if before is not None and (before == verdict or now < self._due.get(verdict.number, 0.0)):
            return
        self._open[verdict.number] = verdict
        self._due[verdict.number] = now + WRITE_S
        self._record(verdict)

    def _close(self, verdict: wire.Verdict, now_ns: int) -> None:
        self._open.pop(verdict.number, None)
        self._due.pop(verdict.number, None)
        until = now_ns if verdict.until_at_ns is None else verdict.until_at_ns
        closed = msgspec.structs.replace(verdict, until_at_ns=max(until, verdict.since_at_ns))
        if self.hang is not None and self.hang.number == verdict.number:
            self.hang = closed
        self._record(closed)

    def _guarded(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:  # a wall: it costs a verdict
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        self.faults += 1
        if (kind := type(error).__name__) not in self._reported:
            self._reported.add(kind)
            self._report(f"judging: {error!r:.200}", "warning")
        if self.faults == MOST_FAULTS:
            self._judge = None
            self._report("judging has stopped: too many errors; the run and its record are not affected", "error")
