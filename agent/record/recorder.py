"""The recorder of a run: the thread that writes the run's SQLite file.

The messages of ranks are stored unchanged but for events (`floods`), in one transaction a second and one for each
message of the observer itself.  A separate thread does it, so that a slow or failing disk affects nothing else;
messages wait for it in a queue of bounded size (`inbox`).  The thread also bounds the bytes of the run on disk: the
oldest steps are removed (`ring`), logs are cut (`logs`), and ended runs are removed (`retention`).  It answers
questions about the history, with all that has come before them.  It knows no socket.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.control.events import Events
from ddptop.agent.record import recording, retention
from ddptop.agent.record.floods import OBSERVER, Flood, Source, sound
from ddptop.agent.record.history.question import nothing
from ddptop.agent.record.inbox import Asked, Begin, Inbox, Item, Judged, LastFrames, Looked, Own, Renamed, Told
from ddptop.agent.record.logs import Logs
from ddptop.agent.record.recording import BATCH_S
from ddptop.agent.record.ring import BATCH_SHARE, Ring
from ddptop.agent.run.files.database import DAMAGE, Locked
from ddptop.agent.run.identity import Process
from ddptop.agent.run.records import RUN_BYTES

if TYPE_CHECKING:
    from ddptop.agent.record.history.rows import Rows

LIMIT_S: Final = 0.3
"""Seconds for the removal of what is old between two batches at most; a piece that was begun is finished."""
LOGS_S: Final = 5.0
"""Seconds between two checks of the sizes of the logs."""
ALL_S: Final = 60.0
"""Seconds between two checks of the sizes of all runs."""

MOST_BEFORE: Final = 1_000
"""Events of an earlier observer that are read."""
_LOCK_S: Final = 0.5
"""Seconds between two attempts to read a file that another process holds."""
_MOST_BATCH_BYTES: Final = 8 << 20
_LOGS_SHARE: Final = 2
"""Logs may take one part in so many of the run's bytes."""
_LEAST_LOGS_SHARE: Final = 8
"""`_LOGS_SHARE` where the recording took the rest before there were logs."""
_MOST_OWED: Final = 10_000
"""Rows that wait for a failing disk at most; steps are dropped at once."""


class Recorder:
    """Writes the messages of the ranks and those that the observer adds."""

    def __init__(
        self,
        database: Path,
        world: int,
        events: Events,
        *,
        budget: int = RUN_BYTES,
        logs: Path | None = None,
        all_bytes: int | None = None,
    ) -> None:
        """Prepare a recorder of `world` ranks.

        Args:
            database: the file.
            world: number of ranks.
            events: takes each problem.
            budget: bytes that recording and logs may take together.
            logs: the folder of the run's logs, None where they are not to be cut.
            all_bytes: bytes that all runs of this user may take together, None for no bound.
        """
        self.failures = 0
        """Batches that could not be written."""
        self.refused = 0
        """Messages that could not be stored."""
        self.faults = 0
        """Errors of the recorder itself, each of which costs a message or a batch."""
        self.inbox = Inbox()
        self.recorded_before: dict[int, tuple[int, int]] | None = None
        """By rank, generation and number of the last record in the file before this recorder; None: not read yet."""
        self.verdicts_before: list[wire.Verdict] = []
        """The verdicts in the file before this recorder, once `recorded_before` is known."""
        self.events_before: list[wire.Event] = []
        """The newest events in the file before this recorder, likewise."""
        self._left_out = 0
        self._database = database
        self._world = world
        self._events = events
        self._budget = budget
        self._most_a_batch = min(_MOST_BATCH_BYTES, budget // BATCH_SHARE)
        self._logs = None if logs is None else Logs(logs, events)
        self._all_bytes = all_bytes
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._generation = 0
        """The newest generation followed; the observer announces it, not a rank."""
        self._newest: dict[int, tuple[int, int]] | None = None
        """Generation and number of the last record written, by rank."""
        self._ring = Ring(database, world)
        self._processes: dict[int, tuple[int, Process | None]] = {}
        """By rank, generation and process."""
        self._flood = Flood()
        self._owed: list[recording.Row] = []
        """Rows that could not be written and are written later."""
        self._held_up = False
        self._reported: set[str] = set()
        """Kinds of problems that were reported."""
        self._unremoved: set[str] = set()
        """Reports on runs that could not be removed."""
        self._logs_due = self._all_due = 0.0
        # A daemon: a disk that hangs forever must not prevent the observer from ending.
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin to record."""
        self._thread.start()

    @property
    def skipped(self) -> int:
        """Messages with steps that were dropped because disk or file had no room for them."""
        return self._left_out + self.inbox.dropped

    def follow(self, rank: int, generation: int, process: Process | None = None) -> None:
        """Expect the records of a rank whose process was found."""
        self.inbox.put(Begin(rank, generation, process))

    def put(self, message: wire.Telemetry | wire.NumberedSteps, payload: bytes) -> bool:
        """Record a sound message of a rank, steps in order, of a summary the numbers; return False where there is no
        room for it now.
        """
        taken = self.inbox.put(Told(message, payload))
        if self.inbox.bytes > self._most_a_batch:
            self._wake.set()
        return taken

    def add(self, event: wire.Event) -> None:
        """Record an event of the observer at once: the author of an action may read the record next."""
        self.inbox.put(Own(event))
        self._wake.set()

    def rename(self, before: wire.Event, after: wire.Event) -> None:
        """Write an event that was recorded here as the records of other hosts have it."""
        self.inbox.put(Renamed(before, after))

    def judge(self, verdict: wire.Verdict) -> None:
        """Record a verdict in place of what was recorded of it before."""
        self.inbox.put(Judged(verdict))

    def inspect(self, inspections: Iterable[wire.Inspection]) -> None:
        """Record where ranks stand at once, in place of all that was recorded of an earlier moment."""
        self.inbox.put(Looked(tuple(inspections)))
        self._wake.set()

    def keep(self, run: bytes, ranks: Sequence[bytes]) -> None:
        """Record the frames of the run and of all its ranks, encoded, in place of those recorded before."""
        self.inbox.put(LastFrames(run, ranks))

    def ask(self, asked: Asked) -> None:
        """Answer a question about the history, after all that has been put before; while the file cannot be read, at
        once.
        """
        query, answered = asked.query, asked.answered
        if self.recorded_before is None:
            for part in nothing(query, wire.Reply(query.id, True), complete=False):
                answered(part)
            return
        if self._stop.is_set() or not self.inbox.put(asked):
            answered(wire.Reply(query.id, False, "no answer now; ask again"))
        self._wake.set()

    def close(self, timeout_s: float = 3.0) -> bool:
        """Write the rest and close the file; return False when that takes longer than `timeout_s`."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._read_before()
            ending = False
            while not ending:
                self._wake.wait(BATCH_S)
                self._wake.clear()
                ending = self._stop.is_set()
                try:
                    self._record()
                except Exception as error:  # a wall: an error costs one round
                    self._fault(error)
        except Exception as error:  # a wall: an error must be reported, and must not reach the main thread
            self._events.say(f"recording has stopped: {error!r}", "error")
        self._ring.close()

    def _read_before(self) -> None:
        """Read what is recorded already; as long as another process holds the file, nothing is known or recorded."""
        locked = True
        while locked:
            try:
                # At the end there is no other attempt.
                last = self._stop.is_set()
                self.verdicts_before = recording.read_verdicts(self._database, or_locked=not last)
                self._newest = recording.last_recorded(self._database, or_locked=not last)
                self.events_before = recording.newest_events(self._database, MOST_BEFORE, or_locked=not last)
                locked = False
            except Locked:
                self._report_once(
                    "locked", "another process holds the file of the recording: it is read and continued after that"
                )
                self._stop.wait(_LOCK_S)
        self._reported.discard("locked")
        self.recorded_before = dict(self._recorded)

    def _record(self) -> None:
        rest = True
        while rest:
            # All of this in each round: under overload the rounds do not end.
            self._bound_sizes()
            items = self.inbox.take(self._most_a_batch)
            if items:
                with contextlib.suppress(*DAMAGE):  # the writing says so
                    self._ring.open(self._room)
            questions = [item for item in items if isinstance(item, Asked)]
            rows = [row for item in items if not isinstance(item, Asked) for row in self._guarded(item)]
            rows += self._flood.settle()
            if self._settle() or rows or self._owed:
                self._write(rows)
            for each in questions:
                for part in self._answer(each):
                    each.answered(part)
            rest = bool(self.inbox)

    def _fault(self, error: Exception) -> None:
        """Count an error of the recorder, and report the first one of each type."""
        self.faults += 1
        self._report_once(type(error).__name__, f"a message was not recorded: {error!r:.200}")

    def _report_once(self, kind: str, text: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._events.say(text, "warning")

    def _bound_sizes(self) -> None:
        now = time.monotonic()
        if self._logs is not None and now >= self._logs_due:
            self._logs_due = now + LOGS_S
            # The file does not become smaller: the logs cannot get back bytes that it took while they were small.
            left = self._budget - _on_disk(self._database)
            self._logs.limit_to(min(self._budget // _LOGS_SHARE, max(left, self._budget // _LEAST_LOGS_SHARE)))
        if self._all_bytes is not None and now >= self._all_due:
            self._all_due = now + ALL_S
            retention.make_room(self._all_bytes, self._events, reported=self._unremoved)

    @property
    def _room(self) -> int:
        """Bytes that the recording may take: the budget without the logs."""
        logs = 0 if self._logs is None else self._logs.bytes
        return max(self._budget - logs, self._budget // _LOGS_SHARE)

    @property
    def _recorded(self) -> dict[int, tuple[int, int]]:
        if self._newest is None:
            self._newest = recording.last_recorded(self._database)
        return self._newest

    def _guarded(self, item: Item) -> list[recording.Row]:
        """Return the rows of one item; an error costs only that item."""
        try:
            return self._rows_of(item)
        except Exception as error:  # a wall: no message may end the thread
            self.refused += 1
            self._fault(error)
            return []

    def _rows_of(self, item: Item) -> list[recording.Row]:
        # Most items are these.
        if isinstance(item, Told):
            message = item.message
            if type(message) is wire.Steps or type(message) is wire.NumberedSteps:
                return self._fresh(message, item.payload)
            if type(message) is wire.Summary:
                if self._numbers is not None and message.generation <= self._generation:
                    self._numbers.summary(message)
                return []
            if type(message) is wire.Beat and self._numbers is not None:
                self._numbers.memory(message.rank, message.at_ns, message.memory_bytes)
                self._numbers.work(message.rank, message.flops, message.peak)
            if type(message) is wire.Event:
                return self._event_rows(message, message.rank)
            return [recording.row(message, item.payload)]
        match item:
            case Begin():
                self._begin(item)
                return []
            case Renamed():
                before, after = (sound(each, self._world, time.time_ns()) for each in (item.before, item.after))
                return [recording.rewritten(wire.encode(before), wire.encode(after))]
            case Judged():
                return recording.verdict_rows(item.verdict)
            case Looked():
                return recording.inspection_rows(item.inspections)
            case LastFrames():
                return recording.frame_rows(item.run, item.ranks)
            case Asked():
                raise ValueError("a question is answered after what has come before it was written")
            case Own():
                return self._event_rows(item.message, OBSERVER)

    @property
    def _numbers(self) -> Rows | None:
        """The numbers that wait to be written; None while the file cannot be opened."""
        return None if self._ring.history is None else self._ring.history.rows

    def _begin(self, item: Begin) -> None:
        rank, generation = item.rank, item.generation
        if generation != self._generation:
            self._generation = generation
        before = self._processes.get(rank)
        self._processes[rank] = generation, item.process
        if before is not None and before[0] == generation and before[1] != item.process:
            if self._numbers is not None:
                self._numbers.forget(rank)
            self._recorded[rank] = recording.NOTHING
        if self._recorded.get(rank, recording.NOTHING)[0] > generation:
            # The file has records of a generation that the rank has not reached: they are invalid.
            self._recorded[rank] = recording.NOTHING

    def _fresh(self, steps: wire.Steps | wire.NumberedSteps, payload: bytes) -> list[recording.Row]:
        """Return the row of a batch; none where all of it is recorded already, or where the file has no room now."""
        numbers = [step.seq for step in steps.steps]
        newest = max(numbers)
        if steps.generation > self._generation:
            # A rank that has just restarted: it is asked for its records as soon as the observer has found it.
            return []
        if (steps.generation, newest) <= self._recorded.get(steps.rank, recording.NOTHING):
            return []
        self._recorded[steps.rank] = (steps.generation, newest)
        if self._held_up:
            self._left_out += 1
            return []
        if isinstance(steps, wire.Steps) and self._numbers is not None:
            self._numbers.steps(steps.rank, steps.steps, steps.generation)
        return [(recording.INSERT_STEPS, (steps.rank, steps.generation, min(numbers), newest, payload))]

    def _settle(self) -> bool:
        """Make a piece of the history of what has come; an error costs only that piece."""
        if (history := self._ring.history) is None or not history.rows:
            return False
        try:
            history.settle()
        except Exception as error:  # a wall: the record goes on
            self._fault(error)
        return True

    def _event_rows(self, event: wire.Event, source: Source) -> list[recording.Row]:
        return self._flood.rows_of(sound(event, self._world, time.time_ns()), source)

    def _write(self, rows: list[recording.Row]) -> None:
        new, rows = bool(rows), self._owed + rows
        try:
            odd = self._ring.write(rows, self._room)
        except DAMAGE as error:
            self.failures += new
            # The next frames are newer.
            self._owe([row for row in rows if row[0] not in (recording.INSERT_STEPS, recording.INSERT_FRAME)])
            self._report_once("failure", f"recording fails, history will have gaps: {error}")
            return
        self._owed = []
        if odd:
            self.refused += odd
            self._report_once("odd", "a message was not recorded: it holds what no file can store")
        if "failure" in self._reported:
            self._reported.discard("failure")
            self._events.say(f"recording goes on after {self.failures:,} failures", "info")
        self._limit_size()

    def _answer(self, asked: Asked) -> list[wire.HistoryAnswer]:
        """Return the answer to a question; an error costs only that answer."""
        try:
            from ddptop.agent.record.history.answers import answer

            _, history = self._ring.open(self._room)
            return list(answer(history, asked.query, asked.hosts))
        except Exception as error:  # a wall: the record goes on
            if not isinstance(error, DAMAGE):
                self._fault(error)
            return [wire.Reply(asked.query.id, False, f"the history cannot be read: {error!r:.200}")]

    def _owe(self, rows: list[recording.Row]) -> None:
        """Store rows for the next attempt; where there are too many, the oldest are dropped."""
        self._owed = rows[-_MOST_OWED:]
        self._left_out += max(0, len(rows) - _MOST_OWED)

    def _limit_size(self) -> None:
        try:
            self._held_up = self._ring.is_held_up()
            if self._held_up:
                self._report_once(
                    "held up", "somebody has been reading the recording for so long that steps are left out meanwhile"
                )
                return
            self._reported.discard("held up")
            fits = self._ring.limit_to(self._room, LIMIT_S)
        except DAMAGE as error:
            self.failures += 1
            # The file would grow beyond its bytes.
            self._held_up = True
            text = f"recording: older steps cannot be removed, and newer ones are left out: {error}"
            self._report_once("removal", text)
            return
        if not fits:
            self._wake.set()


def _on_disk(database: Path) -> int:
    """Return the bytes of the file and its journal on disk."""
    found = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            found += os.lstat(f"{database}{suffix}").st_blocks * 512
    return found
