"""The publisher: the agent's thread in a rank, which owns the sockets, publishes, and answers commands.

It wakes ten times a second, for a command or a subscriber, and more often while a peer receives an answer of many
records: its cost to the training, the interpreter lock, depends on the number of wake-ups and not on the volume.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.rank.commands import answers
from ddptop.agent.rank.commands.executing import Executing
from ddptop.agent.rank.hooks.batches import Batches
from ddptop.agent.rank.process import scarcity
from ddptop.agent.rank.records import device_time, history, meter
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.rank.records.meter import Starvation
from ddptop.agent.rank.records.stamps import StepStamps
from ddptop.agent.run.files import marks
from ddptop.agent.run.files.private import seal

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

PERIOD_S = 0.1
BEAT_S = 1.0
AWAITED_S = 0.2
"""Seconds between two signs of life of a rank that is on its way to a hold: which collectives it waits in is shown."""
SUMMARY_S = 1.0
BATCH_S = 1.0
_ENOUGH = 8
"""Records that a turn has to have for its time to be theirs; of fewer each has so small a part of it."""
_MOST_TAKEN = 1024
"""Steps whose stamps are kept while a CUDA graph is captured."""
PATIENCE_TICKS = 2
"""Ticks that a record waits for its collectives and loss before it is sent without them."""


class Publisher:
    """Publishes a rank's records and carries out its commands, on a separate thread."""

    def __init__(self, session: Session, pub: str, cmd: str) -> None:
        """Bind the sockets.

        Raises:
            OSError: there are too few descriptors, or the folder of the sockets is gone.
            zmq.ZMQError: they cannot be bound.
            RuntimeError: no more threads can be started.
        """
        scarcity.check_room()
        self._session = session
        self._history = history.History(session.rank, session.records_bytes, session.hello.generation)
        self._digest = Digest(session.rank, session.hello.generation)
        self._batches = Batches()
        self._seen: set[int] = set()
        """Phases of `stamps` that this rank has had in any step."""
        self._starvation = Starvation()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddptop-agent", daemon=True)
        self._owner = os.getpid()
        self._refused = 0
        self._seq = 0
        self._waited = 0
        self._taken: deque[StepStamps] = deque(maxlen=_MOST_TAKEN)
        """Steps whose records are made, until no graph is captured.

        To free their pinned memory records an event on the stream that used it. If that one is captured, every later
        query of the event fails, and with it the script's own requests for pinned memory."""
        self._records_measured = False
        self._published: tuple[object, ...] | None = None
        self._beat_due = 0.0
        self._summary: bytes | None = None
        """The last summary, for new subscribers."""
        self._summary_due = 0.0
        self._batching = False
        """True while somebody subscribes to the records of a second in one message."""
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._batch_due = 0.0
        self._addresses = (pub, cmd)
        self._wake = WakeUp()
        """Set where the training thread has come to a hold, or has done its work there."""
        session.gate.news = self._wake.set
        self._context = zmq.Context()
        try:
            # XPUB announces each new subscriber, who gets `Hello` and `Beat` at once instead of a second later.
            self._pub = self._context.socket(zmq.XPUB)
            self._cmd = self._context.socket(zmq.ROUTER)
            self._pub.setsockopt(zmq.SNDHWM, wire.UNREAD)
            self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
            # Sending to a peer that does not read fails, instead of queueing without end.
            self._cmd.setsockopt(zmq.SNDHWM, answers.QUEUED)
            self._cmd.setsockopt(zmq.ROUTER_MANDATORY, 1)
            for bound, address in zip((self._pub, self._cmd), self._addresses, strict=True):
                bound.linger = 200
                bound.setsockopt(zmq.MAXMSGSIZE, wire.MAX_COMMAND_BYTES)
                bound.bind(address)
                seal(address)
        except BaseException:
            self._close()
            raise
        self._answers = answers.Answers(self._cmd)
        self._executing = Executing(session, self._history, self._answers, self._send, self._send_checksums)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: no more threads can be started; the sockets are closed.
        """
        try:
            self._thread.start()
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        """Publish the last records and end the thread; takes a fraction of a second, and 2 s at most."""
        if self._owner == os.getpid():
            self._stop.set()
            self._thread.join(timeout=2)

    def recount(self, generation: int) -> None:
        """Belong to another start of the group from now on, with all records; called in the thread, by `tick`."""
        self._history.generation = self._digest.generation = generation
        self._send(wire.TOPIC_HELLO, wire.encode(self._session.hello))
        self._beat_due = self._summary_due = 0.0

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._pub, zmq.POLLIN)
        poller.register(self._cmd, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        due = time.monotonic()
        while not (self._stop.is_set() or self._session.has_left):
            try:
                wait_s = due - time.monotonic()
                for pause_s in (self._answers.pause_s, self._session.diagnoses.looking.pause_s):
                    if pause_s is not None:
                        wait_s = min(wait_s, pause_s)
                # Rounded up: rounded down, the last millisecond would be spent in polls without a wait.
                ready = dict(poller.poll(max(0, math.ceil(wait_s * 1000))))
                with self._session.faults.noted("looking at the training thread"):
                    self._session.diagnoses.looking.glance()
                if self._cmd in ready:
                    self._obey()
                if self._wake.fileno() in ready:
                    self._wake.clear()
                    self._send_news()
                if self._pub in ready:
                    self._greet()
                self._answers.send_more()
                if time.monotonic() >= due:
                    self._publish()
                    due = time.monotonic() + PERIOD_S
            except Exception as error:
                self._session.faults.note("publishing", error)
                self._stop.wait(PERIOD_S)
        self._publish_end()
        if self._session.has_left:
            self._session.depart()

    def _publish_end(self) -> None:
        self._waited = PATIENCE_TICKS
        self._beat_due = 0.0
        self._summary_due = 0.0
        self._batch_due = 0.0
        with self._session.faults.noted("publishing the end"):
            self._publish()
        self._close()

    def _close(self) -> None:
        """Close the sockets, once the last message is sent or the linger is over, and remove their files."""
        with contextlib.suppress(Exception):
            self._context.destroy(linger=200)
        self._wake.close()
        for address in self._addresses:
            with contextlib.suppress(OSError):
                marks.owned(Path(address.removeprefix("ipc://"))).unlink(missing_ok=True)

    def _publish(self) -> None:
        # Errors of one part are counted, and do not prevent the others.
        session = self._session
        with session.faults.noted("publishing steps"):
            self._send_steps()
        with session.faults.noted("choosing what to record"):
            session.own_rate.look(session.record_ns, is_held=session.gate.limit is not None)
        self._send_checksums()
        with session.faults.noted("publishing an event"):
            while session.notices:
                self._send(wire.TOPIC_EVENT, wire.encode(session.notices.popleft()))
        if time.monotonic() >= self._summary_due:
            with session.faults.noted("publishing a summary"):
                self._send_summary()
        session.tick()
        self._send_news()
        if time.monotonic() >= self._beat_due:
            self._send_beat()

    def _send_steps(self) -> None:
        began, faults = time.thread_time_ns(), self._session.faults
        self._starvation.follow(self._session.stamps.thread)
        collected = self._starvation.stamp(self._collect())
        device_time.CAPTURES.ask(self._taken.clear)
        records = []
        for step in collected:
            try:
                records.append(self._history.add(step))
            except Exception as error:
                faults.note("keeping a record", error)
                step = msgspec.structs.replace(step, metrics={}, collectives=())
                try:
                    records.append(self._history.add(step))
                except Exception:
                    continue
            self._digest.add(step)
            self._seq = step.seq
        for payload in history.batches(self._session.rank, records, self._session.hello.generation):
            self._send(wire.TOPIC_STEPS, payload)
        if self._batching:
            self._batch += records
            self._batch_bytes += sum(map(len, records))
            if self._batch_bytes >= history.PIECE or time.monotonic() >= self._batch_due:
                self._send_batch()
        if collected and self._records_measured:
            # Where there are few, the turn itself would be taken for their cost.
            took = (time.thread_time_ns() - began) // max(len(collected), _ENOUGH)
            before = self._session.record_ns
            # Smoothed: what a single turn takes depends on what else runs.
            self._session.record_ns = took if before is None else (7 * before + took) // 8
        self._session.own_rate.begin(collected, self._session.record_ns)
        # The first ones take far longer than all others.
        self._records_measured = self._records_measured or bool(collected)

    def _send_checksums(self) -> None:
        with self._session.faults.noted("publishing checksums"):
            for message in self._session.checks.take():
                self._send(wire.TOPIC_CHECKSUMS, wire.encode(message))

    def _send_batch(self) -> None:
        records, self._batch, self._batch_bytes = self._batch, [], 0
        self._batch_due = time.monotonic() + BATCH_S
        for payload in history.batches(self._session.rank, records, self._session.hello.generation):
            self._send(wire.TOPIC_BATCH, payload)

    def _collect(self) -> list[wire.Step]:
        finished = self._session.stamps.finished
        steps = []
        while finished:
            if not self._is_ready(finished[0]) and self._waited < PATIENCE_TICKS:
                self._waited += 1
                break
            self._waited = 0
            stamped = finished.popleft()
            self._taken.append(stamped)
            with self._session.faults.noted("measuring a step"):
                steps.append(self._record(stamped))
                self._session.diagnoses.profiling.settle(stamped)
                self._session.diagnoses.looking.settle(stamped)
        return steps

    def _is_ready(self, stamped: StepStamps) -> bool:
        try:
            return meter.is_ready(stamped) and device_time.is_ready(stamped)
        except Exception as error:
            # A failed device raises its error in every call: the record is sent without values of the device.
            self._session.faults.note("waiting for the device", error)
            return True

    def _record(self, stamped: StepStamps) -> wire.Step:
        self._batches.sort(stamped)
        samples, tokens = self._session.announced
        stamped.samples = stamped.samples if samples is None else samples
        stamped.tokens = stamped.tokens if tokens is None else tokens
        self._seen.update(phase for _, phase in stamped.marks)
        try:
            step, device_ns = meter.record(stamped, self._seen), device_time.by_phase(stamped)
        except Exception as error:
            self._session.faults.note("measuring a step", error)
            # A failed device is not asked again; the record of its last steps matters most.
            for asked in (stamped.losses, stamped.gradients, stamped.calls):
                asked.clear()
            stamped.skipped = None
            step, device_ns = meter.record(stamped, self._seen), None
        self._session.is_loss_unsure = meter.is_loss_unsure(stamped)
        if device_ns is not None:
            step = msgspec.structs.replace(step, device_ns=device_ns)
        with self._session.faults.noted("looking at the numbers"):
            self._publish_health(stamped, step)
        return step

    def _publish_health(self, stamped: StepStamps, step: wire.Step) -> None:
        change = self._session.health.check(stamped, step)
        if change is not None:
            event = wire.Event(time.time_ns(), change.text, self._session.rank, change.level)
            self._send(wire.TOPIC_EVENT, wire.encode(event))

    def _send_news(self) -> None:
        """Publish at once that the state has changed, the hold, or how many steps are recorded."""
        if self._situation() != self._published:
            self._send_beat()

    def _situation(self) -> tuple[object, ...]:
        session, state = self._session, self._session.state
        step = session.gate.completed if state in wire.HELD else None
        return state, step, session.gate.holding(), session.stamps.every, session.saving.function is not None

    def _send_beat(self) -> None:
        self._published = self._situation()
        hold = self._session.gate.holding()
        self._beat_due = time.monotonic() + (BEAT_S if hold is None or hold.held else AWAITED_S)
        try:
            payload = wire.encode(self._session.beat(self._seq, self._refused))
        except Exception as error:
            # The sign of life matters more than its other values.
            self._session.faults.note("a sign of life", error)
            payload = wire.encode(self._session.bare_beat(self._seq, self._refused))
        self._send(wire.TOPIC_BEAT, payload)
        if self._published[0] == "held":
            self._session.gate.is_told.set()

    def _send_summary(self) -> None:
        summary = self._digest.close()
        if summary is not None:
            self._summary_due = time.monotonic() + SUMMARY_S
            self._summary = wire.encode(summary)
            self._send(wire.TOPIC_SUMMARY, self._summary)

    def _send(self, topic: bytes, payload: bytes) -> None:
        # XPUB does not block: a subscriber that does not read loses messages, and notices it by their numbers.
        self._pub.send_multipart([topic, payload])

    def _greet(self) -> None:
        newcomers = recalled = False
        for _ in range(100):
            try:
                message = self._pub.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            if message[1:] == wire.TOPIC_BATCH and message[:1] in (b"\x00", b"\x01"):
                # Of those that leave only the last one is announced.
                self._batching = message[:1] == b"\x01"
                if not self._batching:
                    self._batch, self._batch_bytes = [], 0
            recalled |= message == b"\x01" + wire.TOPIC_CHECKSUMS
            if message[:1] == b"\x01":
                newcomers = True
            elif message[:1] != b"\x00":
                self._refused += 1
        if newcomers:
            self._send(wire.TOPIC_HELLO, wire.encode(self._session.hello))
            self._send_beat()
            if self._summary is not None:
                self._send(wire.TOPIC_SUMMARY, self._summary)
        if recalled:
            for recent in self._session.checks.recall():
                self._send(wire.TOPIC_CHECKSUMS, wire.encode(recent))

    def _obey(self) -> None:
        for _ in range(100):
            try:
                peer, *frames = self._cmd.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                (payload,) = frames
                command = wire.read_command(payload)
            except (ValueError, wire.Unreadable):
                self._refused += 1
                continue
            reply = self._executing.carry_out(peer, command)
            # Before the reply: who asks for the state of the run next finds what was just reported here.
            with self._session.faults.noted("a sign of life"):
                self._send_news()
            if reply is not None:
                self._answers.reply(peer, wire.encode(reply))
