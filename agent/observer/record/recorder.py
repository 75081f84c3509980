"""The recorder of a run: a subscriber to every rank that writes the run's SQLite file.

The messages of ranks are stored unchanged but for events (`floods`), in one transaction a second and one for each
message of the supervisor.  A separate thread does it, so that a slow or failing disk does not affect supervision.  The
recorder asks each rank for the records that it published earlier.  The thread also bounds the bytes of the run
on disk: steps are thinned (`ring`), logs are cut (`logs`), and ended runs are removed (`retention`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.listening import Listener
from ddptop.agent.observer.record import recording, retention
from ddptop.agent.observer.record.floods import SUPERVISOR, Flood, Source, sound
from ddptop.agent.observer.record.logs import Logs
from ddptop.agent.observer.record.ring import BATCH_SHARE, Ring
from ddptop.agent.run import generations
from ddptop.agent.run.files.database import DAMAGE
from ddptop.agent.run.records import RUN_BYTES
from ddptop.agent.run.rundir import Member

BATCH_S: Final = 1.0
THIN_S: Final = 0.3
"""Seconds for thinning between two rounds of receiving at most; a piece that was begun is finished."""
LOGS_S: Final = 5.0
"""Seconds between two checks of the sizes of the logs."""
ALL_S: Final = 60.0
"""Seconds between two checks of the sizes of all runs."""

FILL_S: Final = 5.0
"""Seconds without an older record from a rank after which it is assumed to have no more of them."""

_MOST_A_BATCH: Final = 20_000
_MOST_BATCH_BYTES: Final = 8 << 20
_TOPICS: Final = (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_STEPS, wire.TOPIC_EVENT)
_HIGH_WATER: Final = 1000
"""Messages of a rank that may be queued while the disk is slow."""
_LARGEST_LATEST: Final = 16 << 10
"""Bytes of a `Hello` or a `Beat` at most; the file has one of each for every rank."""
_LOGS_SHARE: Final = 2
"""Logs may take one part in so many of the run's bytes."""
_LEAST_LOGS_SHARE: Final = 8
"""`_LOGS_SHARE` where the recording took the rest before there were logs."""
_EVENTS_SHARE: Final = 4
"""Events of ranks may take one part in so many of the recording's bytes, those of the supervisor twice as much."""
_MOST_OWED: Final = 10_000
"""Rows that wait for a failing disk at most; steps are dropped at once."""
_LARGEST: Final = 2**63 - 1
"""SQLite's largest integer; a message with a number beyond it is refused."""


@dataclass(slots=True)
class _Fill:
    """A request for the older records of one rank; records that the rank publishes meanwhile wait behind them."""

    socket: zmq.Socket[bytes]
    give_up: float
    waiting: list[tuple[wire.Steps, bytes]] = field(default_factory=list)


class Recorder:
    """Writes the messages of the ranks and those that the supervisor adds."""

    def __init__(
        self,
        context: zmq.Context[Any],
        database: Path,
        world: int,
        report: Callable[[str, str], None],
        *,
        budget: int = RUN_BYTES,
        logs: Path | None = None,
        all_bytes: int | None = None,
    ) -> None:
        """Prepare a recorder of `world` ranks.

        Args:
            context: of the sockets.
            database: the file.
            world: number of ranks.
            report: receives text and level of each problem, in any thread.
            budget: bytes that recording and logs may take together.
            logs: the folder of the run's logs, None where they are not to be cut.
            all_bytes: bytes that all runs of this user may take together, None for no bound.
        """
        self.failures = 0
        """Batches that could not be written."""
        self.refused = 0
        """Messages that could not be read or stored, or claimed to be from a rank that does not exist."""
        self.faults = 0
        """Errors of the recorder itself, each of which costs a message or a batch."""
        self.skipped = 0
        """Messages with steps that were dropped because the file had no room for them."""
        self._context = context
        self._database = database
        self._world = world
        self._report = report
        self._budget = budget
        self._logs = None if logs is None else Logs(logs, report)
        self._all_bytes = all_bytes
        self._newcomers: queue.SimpleQueue[Member] = queue.SimpleQueue()
        self._own: queue.SimpleQueue[wire.Event | wire.RunState] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._heard: set[str] = set()
        """Addresses subscribed to; the ranks of a new generation have the addresses of the old ones."""
        self._generation = 0
        """The newest generation followed; the supervisor announces it, not a rank."""
        self._reached: dict[int, tuple[int, float]] = {}
        """By rank, number and time of the last record accepted, which bound the number of the next one."""
        self._fills: dict[int, _Fill] = {}
        self._newest: dict[int, tuple[int, int]] | None = None
        """Generation and number of the last record written, by rank."""
        self._ring = Ring(database, world)
        self._flood = Flood()
        self._owed: list[recording.Row] = []
        """Rows that could not be written and are written later."""
        self._held_up = False
        self._reported: set[str] = set()
        """Kinds of problems that were reported."""
        self._unremoved: set[str] = set()
        """Reports on runs that could not be removed."""
        self._logs_due = self._all_due = 0.0
        # A daemon: a disk that hangs forever must not prevent the supervisor from ending.
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin to record."""
        self._thread.start()

    def follow(self, member: Member) -> None:
        """Record one more rank, from its first unrecorded step on."""
        self._newcomers.put(member)

    def add(self, message: wire.Event | wire.RunState) -> None:
        """Record a message of the supervisor at once: the author of an action may read the record next."""
        self._own.put(message)
        self._wake.set()

    def close(self, timeout_s: float = 3.0) -> bool:
        """Write the rest and close the file; return False when that takes longer than `timeout_s`."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            with contextlib.closing(Listener(self._context, _TOPICS, _HIGH_WATER)) as listener:
                ending = False
                while not ending:
                    # Ranks appear within moments of each other, and answer requests for records as quickly.
                    hurry = self._fills or len(self._heard) < self._world
                    self._wake.wait(0.1 if hurry else BATCH_S)
                    self._wake.clear()
                    ending = self._stop.is_set()
                    try:
                        self._record(listener)
                    except Exception as error:  # a wall: an error costs one round
                        self._fault(error)
        except Exception as error:  # a wall: an error must be reported, and must not reach supervision
            self._report(f"recording has stopped: {error!r}", "error")
        for fill in self._fills.values():
            fill.socket.close(linger=0)
        self._ring.close()

    def _record(self, listener: Listener) -> None:
        rest = True
        while rest:
            # All of this in each round: under overload the rounds do not end.
            self._welcome(listener)
            listener.mend()
            self._bound_sizes()
            rows, rest = self._receive(listener.socket)
            rows += self._receive_fills()
            rows += self._flood.settle(time.time_ns())
            if rows or self._owed:
                self._write(rows)

    def _fault(self, error: Exception) -> None:
        """Count an error of the recorder, and report the first one of each type."""
        self.faults += 1
        self._report_once(type(error).__name__, f"a message was not recorded: {error!r:.200}")

    def _report_once(self, kind: str, text: str, level: str = "warning") -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(text, level)

    def _bound_sizes(self) -> None:
        now = time.monotonic()
        if self._logs is not None and now >= self._logs_due:
            self._logs_due = now + LOGS_S
            # The file does not become smaller: the logs cannot get back bytes that it took while they were small.
            left = self._budget - _on_disk(self._database)
            self._logs.limit_to(min(self._budget // _LOGS_SHARE, max(left, self._budget // _LEAST_LOGS_SHARE)))
        if self._all_bytes is not None and now >= self._all_due:
            self._all_due = now + ALL_S
            retention.make_room(self._all_bytes, self._report, reported=self._unremoved)

    @property
    def _room(self) -> int:
        """Bytes that the recording may take: the budget without the logs."""
        logs = 0 if self._logs is None else self._logs.bytes
        return max(self._budget - logs, self._budget // _LOGS_SHARE)

    def _welcome(self, listener: Listener) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                member = self._newcomers.get_nowait()
                if member.generation != self._generation:
                    self._generation = member.generation
                    self._reached.clear()
                try:
                    if member.pub not in self._heard:
                        listener.connect(member.pub)
                        self._heard.add(member.pub)
                    self._ask(member)
                except zmq.ZMQError as error:
                    self._report(f"recording: {error} ({member.pub})", "warning")

    @property
    def _recorded(self) -> dict[int, tuple[int, int]]:
        if self._newest is None:
            self._newest = recording.last_recorded(self._database)
        return self._newest

    def _ask(self, member: Member) -> None:
        """Ask a rank for its published records that are not in the file."""
        if not member.cmd:
            return
        generation, seq = self._recorded.get(member.rank, recording.NOTHING)
        if generation > member.generation:
            # The file has records of a generation that the rank has not reached: they are invalid.
            self._recorded[member.rank] = generation, seq = recording.NOTHING
        asking = self._context.socket(zmq.DEALER)
        asking.linger = 0
        asking.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
        asking.connect(member.cmd)
        asking.send(wire.encode(wire.Fill(1, seq + 1 if generation == member.generation else 0)))
        if (earlier := self._fills.pop(member.rank, None)) is not None:
            earlier.socket.close()
        self._fills[member.rank] = _Fill(asking, time.monotonic() + FILL_S)

    def _receive_fills(self) -> list[recording.Row]:
        """Return the older records that have arrived, those of each rank before its newer ones."""
        rows: list[recording.Row] = []
        for rank, fill in list(self._fills.items()):
            done = self._stop.is_set() or time.monotonic() > fill.give_up
            with contextlib.suppress(zmq.Again, wire.Unreadable):
                size = 0
                while not isinstance(answer := wire.read_answer(payload := fill.socket.recv(zmq.NOBLOCK)), wire.Reply):
                    fill.give_up = time.monotonic() + FILL_S
                    if answer.rank == rank and self._is_sound(answer):
                        rows += self._fresh(answer, payload)
                    if (size := size + len(payload)) > _MOST_BATCH_BYTES or len(fill.waiting) > _HIGH_WATER:
                        break
                else:
                    done = True
                done = done or len(fill.waiting) > _HIGH_WATER
            if done:
                del self._fills[rank]
                fill.socket.close(linger=0)
                for steps, payload in fill.waiting:
                    rows += self._fresh(steps, payload)
        return rows

    def _fresh(self, steps: wire.Steps, payload: bytes) -> list[recording.Row]:
        """Return the row of a batch; none where all of it is recorded already, or where the file has no room now."""
        newest = max(step.seq for step in steps.steps)
        if steps.generation > self._generation:
            # A rank that has just restarted: it is asked for its records as soon as the supervisor has found it.
            return []
        if (steps.generation, newest) <= self._recorded.get(steps.rank, recording.NOTHING):
            return []
        now = time.monotonic()
        # Without an earlier record the bound is the age of the machine, which is that of no process.
        reached, at = self._reached.get(steps.rank, (0, 0.0))
        if not generations.can_reach(newest, now - at, reached):
            self.refused += 1
            return []
        self._reached[steps.rank] = newest, now
        self._recorded[steps.rank] = (steps.generation, newest)
        if self._held_up:
            self.skipped += 1
            return []
        return [recording.row(steps, payload)]

    def _receive(self, socket: zmq.Socket[bytes]) -> tuple[list[recording.Row], bool]:
        """Return the rows of the messages that have arrived, and whether there may be more."""
        rows: list[recording.Row] = []
        with contextlib.suppress(queue.Empty):
            while True:
                rows += self._guarded(self._own_rows, self._own.get_nowait())
        most = min(_MOST_BATCH_BYTES, self._budget // BATCH_SHARE)
        size = 0
        try:
            for _ in range(_MOST_A_BATCH):
                frames = socket.recv_multipart(zmq.NOBLOCK)
                rows += self._guarded(self._read, frames[-1])
                size += len(frames[-1])
                if size >= most:
                    break
        except zmq.Again:
            return rows, False
        return rows, not self._stop.is_set()

    def _guarded(self, read: Callable[[Any], list[recording.Row]], message: object) -> list[recording.Row]:
        """Return the rows of one message; an error costs only that message."""
        try:
            return read(message)
        except Exception as error:  # a wall: no message may end the thread
            self.refused += 1
            self._fault(error)
            return []

    def _own_rows(self, message: wire.Event | wire.RunState) -> list[recording.Row]:
        # The event may come from another process: the supervisor's socket accepts `wire.Note`.
        if isinstance(message, wire.Event):
            return self._event_rows(message, SUPERVISOR)
        return [recording.row(message, wire.encode(message))]

    def _event_rows(self, event: wire.Event, source: Source) -> list[recording.Row]:
        share = self._room // _EVENTS_SHARE * (2 if source == SUPERVISOR else 1)
        full = self._ring.event_bytes > share
        return self._flood.rows_of(sound(event, self._world, time.time_ns()), source, full=full)

    def _read(self, payload: bytes) -> list[recording.Row]:
        try:
            message = wire.read_telemetry(payload)
        except wire.Unreadable:
            self.refused += 1
            return []
        if not self._is_sound(message) or (
            isinstance(message, wire.Hello | wire.Beat) and len(payload) > _LARGEST_LATEST
        ):
            self.refused += 1
            return []
        if isinstance(message, wire.Steps):
            if message.rank in self._fills:
                self._fills[message.rank].waiting.append((message, payload))
                return []
            return self._fresh(message, payload)
        if isinstance(message, wire.Event):
            return self._event_rows(message, message.rank)
        return [recording.row(message, payload)]

    def _is_sound(self, message: wire.Telemetry) -> bool:
        match message:
            case wire.RunState() | wire.Summary():
                return False  # a `RunState` is for the supervisor to send; a `Summary` is not recorded
            case wire.Event():
                return 0 <= message.at_ns <= _LARGEST and (message.rank is None or 0 <= message.rank < self._world)
            case wire.Steps():
                numbers = [step.seq for step in message.steps]
                return (
                    0 <= message.rank < self._world
                    and 0 <= message.generation <= self._generation + 1
                    and bool(numbers)
                    and 0 <= min(numbers) <= max(numbers) <= _LARGEST
                )
            case wire.Hello():
                # It may arrive a moment before the supervisor notices the restart of the group.
                return 0 <= message.rank < self._world and 0 <= message.generation <= self._generation + 1
            case _:
                return 0 <= message.rank < self._world

    def _write(self, rows: list[recording.Row]) -> None:
        new, rows = bool(rows), self._owed + rows
        try:
            odd = self._ring.write(rows, self._room)
        except DAMAGE as error:
            self.failures += new
            self._owe([row for row in rows if not row[0].startswith("INSERT INTO steps")])
            self._report_once("failure", f"recording fails, history will have gaps: {error}")
            return
        self._owed = []
        if odd:
            self.refused += odd
            self._report_once("odd", "a message was not recorded: it holds what no file can store")
        if "failure" in self._reported:
            self._reported.discard("failure")
            self._report(f"recording goes on after {self.failures:,} failures", "info")
        self._limit_size()

    def _owe(self, rows: list[recording.Row]) -> None:
        """Store rows for the next attempt; where there are too many, the oldest are dropped."""
        self._owed = rows[-_MOST_OWED:]
        self.skipped += max(0, len(rows) - _MOST_OWED)

    def _limit_size(self) -> None:
        try:
            self._held_up = self._ring.is_held_up()
            if self._held_up:
                self._report_once(
                    "held up", "somebody has been reading the recording for so long that steps are left out meanwhile"
                )
                return
            self._reported.discard("held up")
            fits = self._ring.limit_to(self._room, THIN_S)
        except DAMAGE as error:
            self.failures += 1
            # Without thinning the file would grow beyond its bytes.
            self._held_up = True
            text = f"recording: older steps cannot be thinned, and newer ones are left out: {error}"
            self._report_once("thinning", text)
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
