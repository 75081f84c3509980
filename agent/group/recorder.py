"""The memory of a run: a subscriber to every rank that writes the run's SQLite file.

Payloads are stored as they came, one transaction a second and one for what the supervisor
adds, in a thread of its own: neither a slow nor a failing disk reaches supervision.  What a
rank published before anybody listened is asked for.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.group import recording
from ddptop.agent.rundir import Member

BATCH_S: Final = 1.0
MOST_BYTES: Final = 512 << 20
"""Size of the file at which no more steps and events of ranks are taken in."""

FILL_S: Final = 5.0
"""A rank that does not send its older records within this has none."""

_MOST_A_BATCH: Final = 20_000
_HIGH_WATER: Final = 10_000
_LARGEST: Final = 2**63 - 1
"""SQLite's largest integer; a hostile number beyond it is not a message of ours."""


@dataclass(slots=True)
class _Fill:
    """The older records of one rank, on their way; what it publishes meanwhile waits behind them."""

    socket: zmq.Socket[bytes]
    give_up: float
    waiting: list[tuple[wire.Steps, bytes]] = field(default_factory=list)


class Recorder:
    """Writes what the ranks publish and what the supervisor adds."""

    def __init__(
        self, context: zmq.Context[Any], database: Path, world: int, report: Callable[[str, str], None]
    ) -> None:
        """Prepare a recorder of `world` ranks; `report` takes text and level of what goes wrong, in any thread."""
        self.failures = 0
        """Batches that the disk did not take."""
        self.refused = 0
        """Messages that could not be read, or claimed to be from a rank that does not exist."""
        self._context = context
        self._database = database
        self._world = world
        self._report = report
        self._newcomers: queue.SimpleQueue[Member] = queue.SimpleQueue()
        self._own: queue.SimpleQueue[wire.Event | wire.RunState] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._heard: set[str] = set()
        """Addresses subscribed to; the rank of a new generation takes over that of the old one."""
        self._fills: dict[int, _Fill] = {}
        self._newest: dict[int, tuple[int, int]] = {}
        """Generation and number of the last record kept, by rank."""
        self._full = False
        # A daemon: a disk that hangs forever must not keep the supervisor from ending.
        self._thread = threading.Thread(target=self._guarded, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin to record."""
        self._thread.start()

    def follow(self, member: Member) -> None:
        """Record one more rank, from the first record on that is not there yet."""
        self._newcomers.put(member)

    def add(self, message: wire.Event | wire.RunState) -> None:
        """Record a message of the supervisor's own, at once: who has acted may look next what is known of it."""
        self._own.put(message)
        self._wake.set()

    def close(self, timeout_s: float = 3.0) -> bool:
        """Write what is left and close the file; False when the disk does not let go in time."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as error:  # a wall: a fault in here must be seen, and must not reach supervision
            self._report(f"recording has stopped: {error!r}", "error")

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        with self._context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.rcvhwm = _HIGH_WATER
            for topic in (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_STEPS, wire.TOPIC_EVENT):
                socket.subscribe(topic)
            ending = False
            while not ending:
                # Ranks appear within moments of each other; who is asked for records answers as quickly.
                hurry = self._fills or len(self._heard) < self._world
                self._wake.wait(0.1 if hurry else BATCH_S)
                self._wake.clear()
                ending = self._stop.is_set()
                self._welcome(socket)
                rest = True
                while rest:
                    rows, rest = self._take(socket)
                    rows += self._take_fills()
                    if rows:
                        connection = self._write(connection, rows)
        for fill in self._fills.values():
            fill.socket.close(linger=0)
        if connection is not None:
            recording.finish(connection)

    def _welcome(self, socket: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                member = self._newcomers.get_nowait()
                try:
                    if member.pub not in self._heard:
                        socket.connect(member.pub)
                        self._heard.add(member.pub)
                    self._ask(member)
                except zmq.ZMQError as error:
                    self._report(f"recording: {error} ({member.pub})", "warning")

    def _ask(self, member: Member) -> None:
        """Ask a rank for what it has published and is not kept yet."""
        if not member.cmd:
            return
        if member.rank not in self._newest:
            self._newest[member.rank] = recording.last_kept(self._database, member.rank)
        generation, seq = self._newest[member.rank]
        asking = self._context.socket(zmq.DEALER)
        asking.linger = 0
        asking.connect(member.cmd)
        asking.send(wire.encode(wire.Fill(1, seq + 1 if generation == member.generation else 0)))
        if (earlier := self._fills.pop(member.rank, None)) is not None:
            earlier.socket.close()
        self._fills[member.rank] = _Fill(asking, time.monotonic() + FILL_S)

    def _take_fills(self) -> list[recording.Row]:
        """Return the older records that have come, each rank's before what it has published since."""
        rows: list[recording.Row] = []
        for rank, fill in list(self._fills.items()):
            done = self._stop.is_set() or time.monotonic() > fill.give_up
            with contextlib.suppress(zmq.Again, wire.Unreadable):
                while not isinstance(answer := wire.read_answer(payload := fill.socket.recv(zmq.NOBLOCK)), wire.Reply):
                    if answer.rank == rank and self._is_sound(answer) and not self._full:
                        rows += self._fresh(answer, payload)
                done = True
            if done:
                del self._fills[rank]
                fill.socket.close(linger=0)
                for steps, payload in fill.waiting:
                    rows += self._fresh(steps, payload)
        return rows

    def _fresh(self, steps: wire.Steps, payload: bytes) -> list[recording.Row]:
        """Return the row of a batch, nothing where all of it is kept already."""
        newest = max(step.seq for step in steps.steps)
        if (steps.generation, newest) <= self._newest.get(steps.rank, recording.NOTHING):
            return []
        self._newest[steps.rank] = (steps.generation, newest)
        return [recording.row(steps, payload)]

    def _take(self, socket: zmq.Socket[bytes]) -> tuple[list[recording.Row], bool]:
        """Return what has come, and whether there may be more."""
        rows: list[recording.Row] = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._own.get_nowait()
                rows.append(recording.row(message, wire.encode(message)))
        try:
            for _ in range(_MOST_A_BATCH):
                rows += self._read(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return rows, False
        return rows, not self._stop.is_set()

    def _read(self, frames: list[bytes]) -> list[recording.Row]:
        payload = frames[-1]
        try:
            message = wire.read_telemetry(payload)
        except wire.Unreadable:
            self.refused += 1
            return []
        if not self._is_sound(message):
            self.refused += 1
            return []
        if self._full and isinstance(message, wire.Steps | wire.Event):
            return []
        if isinstance(message, wire.Steps):
            if message.rank in self._fills:
                self._fills[message.rank].waiting.append((message, payload))
                return []
            return self._fresh(message, payload)
        return [recording.row(message, payload)]

    def _is_sound(self, message: wire.Telemetry) -> bool:
        match message:
            case wire.RunState():
                return False  # the supervisor's alone
            case wire.Event():
                return 0 <= message.at_ns <= _LARGEST and (message.rank is None or 0 <= message.rank < self._world)
            case wire.Steps():
                numbers = [step.seq for step in message.steps]
                return (
                    0 <= message.rank < self._world
                    and 0 <= message.generation <= _LARGEST
                    and bool(numbers)
                    and 0 <= min(numbers) <= max(numbers) <= _LARGEST
                )
            case wire.Hello():
                return 0 <= message.rank < self._world and 0 <= message.generation <= _LARGEST
            case _:
                return 0 <= message.rank < self._world

    def _write(self, connection: sqlite3.Connection | None, rows: list[recording.Row]) -> sqlite3.Connection | None:
        try:
            connection = connection or recording.open_file(self._database)
            with connection:
                for statement, values in rows:
                    connection.execute(statement, values)
            pages, size = (connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
        except sqlite3.Error as error:
            self.failures += 1
            if self.failures == 1:
                self._report(f"recording fails, history will have gaps: {error}", "warning")
            return connection
        if pages * size > MOST_BYTES and not self._full:
            self._full = True
            self._report(f"recording has reached {MOST_BYTES >> 20} MiB: no more steps are kept", "warning")
        return connection
