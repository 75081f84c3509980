"""What the ranks of this host publish: received once, checked, recorded, and taken into the model.

Steps go to the recorder in the order of their numbers and without gaps: earlier records are asked for when a rank is
found, and again whenever some are missing, and records that come meanwhile wait behind them.  The records of a large
group come once a second, and at once only from those ranks that somebody looks at.  All others that want a message, as
the watch for hangs, find it in `heard`.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.events import Events
from ddptop.agent.control.listening import Listener
from ddptop.agent.observer.model.store import Store
from ddptop.agent.observer.relay.holds import Holds
from ddptop.agent.observer.sampling.sampling import Sampling
from ddptop.agent.observer.service.fills import Fills
from ddptop.agent.record.recorder import Recorder
from ddptop.agent.record.recording import NOTHING
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.rundir import Member
from ddptop.agent.wire import EACH_RECORD

A_LOOK_S: Final = 0.5 / 1024
"""Seconds for each rank between two looks at what a large group has published: ZeroMQ wakes the reader for each
connection that was empty, which costs more than the message."""
LATEST_LOOK_S: Final = 0.5
GAP_S: Final = 1.0
"""Seconds between two questions to a rank for records that are missing."""
_EACH: Final = (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_SUMMARY, wire.TOPIC_EVENT, wire.TOPIC_CHECKSUMS)
_SMALL: Final = (*_EACH, wire.TOPIC_STEPS)
_LARGE: Final = (*_EACH, wire.TOPIC_BATCH)
LARGEST_LATEST: Final = 16 << 10
"""Bytes of a `Hello`, a `Beat` or a `Sampled` at most; the file has one of each for every rank."""
_UNREAD: Final = 1000
"""Messages of a rank that may be queued while this process is held up."""
_MOST_A_TURN: Final = 2_000
_MOST_TURN_BYTES: Final = 8 << 20
_LAST_S: Final = 2.0
"""Seconds for what is left at the end; a rank that goes on to publish is no longer heard."""
_QUIET_S: Final = 0.05
"""Seconds without a part of an answer after which, at the end, no more of it is waited for."""
_ANSWERS_S: Final = 1.0
"""Seconds that answers of ranks are waited for at the end, at most."""
MOST_BEHIND: Final = 1000
"""Messages of a rank that may wait behind its earlier records."""
_MOST_BEHIND_BYTES: Final = 64 << 20
"""Bytes of the messages of all ranks that may wait so."""

_ELSEWHERE: Final = "link:"
"""In place of the address of a rank on another host."""
Steps = wire.Steps | wire.NumberedSteps


@dataclass(slots=True)
class _Refill:
    """A question for the earlier records of one rank; those that it publishes meanwhile wait behind them."""

    intake: Intake
    rank: int
    asked: bool = False
    got: int = 0
    """Parts of the answer that brought something."""
    waiting: deque[tuple[Steps, bytes]] = field(default_factory=deque)

    def has_room(self) -> bool:
        return self.intake.recorder.inbox.has_room

    def take(self, payload: bytes) -> bool:
        return self.intake.take_earlier(self, payload)

    def end(self, reply: bytes | None) -> None:
        self.intake.end_refill(self, whole=reply is not None)


class Intake:
    """The subscription to all ranks, and what is missing of their records; for use from one thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        world: int,
        owner: int,
        recorder: Recorder,
        fills: Fills,
        store: Store,
        events: Events,
        sampling: Sampling | None = None,
    ) -> None:
        """Listen to nobody yet; `sampling` publishes in the place of ranks without an agent."""
        _allow_files(world)
        self.refused = 0
        """Messages that could not be read, or cannot be true."""
        self.generation = 0
        """The newest generation of which a rank was found."""
        self.recorder = recorder
        self._world = world
        self._owner = owner
        self._fills = fills
        self._store = store
        self._events = events
        self._sampling = sampling
        self.heard: deque[tuple[wire.Telemetry, bytes]] = deque()
        """What has come, for others than the recorder and the model; steps where somebody `wants_steps`."""
        self._is_large = world > EACH_RECORD
        self.wants_steps = self._is_large
        self._all = Listener(context, _LARGE if self._is_large else _SMALL, _UNREAD)
        self._near = Listener(context, (wire.TOPIC_STEPS,), _UNREAD)
        """Of a large group, for those ranks whose records are wanted at once."""
        self._look_s = min(LATEST_LOOK_S, A_LOOK_S * world)
        self._due = 0.0
        self._near_ranks: set[int] = set()
        self._addresses: dict[int, tuple[str, str]] = {}
        """By rank, where it publishes and where it answers."""
        self._next: dict[int, int] = {}
        """By rank, the number after that of the last record of this generation that was recorded."""
        self._holds = Holds()
        self._refills: dict[int, _Refill] = {}
        self._lacking: set[int] = set()
        """Ranks with a record that was dropped because the disk is slow, until they are asked for it."""
        self._asked_at: dict[int, float] = {}
        self._behind_bytes = 0
        self._reported: set[str] = set()

    def follow(self, member: Member) -> bool:
        """Listen to a rank whose process was found; return whether it takes the place of another process.

        Raises:
            RunDirError: its socket belongs to another user, or is open to others.
            zmq.ZMQError: there cannot be a socket.
        """
        if self._sampling is not None:
            self._sampling.follow(member)
        if not member.by_agent:
            anew = self._begin(member)
            self._unlisten(member.rank, "")
            return anew
        check_socket(member.pub, self._owner)
        anew = self._begin(member)
        # The ranks of a new generation have the addresses of the old ones.
        if self._addresses.get(member.rank, ("", ""))[0] != member.pub:
            self._all.connect(member.pub)
        self._addresses[member.rank] = member.pub, member.cmd
        if member.cmd:
            self._refills[member.rank] = _Refill(self, member.rank)
        return anew

    def follow_elsewhere(self, member: Member) -> bool:
        """Take in what the observer of another host repeats of a rank there; return as `follow`."""
        anew = self._begin(member)
        self._unlisten(member.rank, _ELSEWHERE)
        self._refills[member.rank] = _Refill(self, member.rank)
        return anew

    def lose(self, rank: int) -> None:
        """Take note of a rank whose process is gone; what it has published still comes."""
        if self._sampling is not None:
            self._sampling.lose(rank)

    def _unlisten(self, rank: int, answers: str) -> None:
        """Listen no more to a rank that was on this host before, or had an agent."""
        if address := self._addresses.get(rank, ("", ""))[0]:
            self._all.disconnect(address)
            if rank in self._near_ranks:
                self._near_ranks.discard(rank)
                self._near.disconnect(address)
        self._addresses[rank] = "", answers

    def look_for_gap(self, rank: int) -> None:
        """Ask a rank on another host for what it has published while that was not heard.

        A question under way may have been lost with the connection: it is put again.
        """
        if self._is_elsewhere(rank):
            self._asked_at.pop(rank, None)
            before = self._refills.get(rank)
            self._refills[rank] = _Refill(self, rank, waiting=deque() if before is None else before.waiting)
            self._fills.forget(rank, self)

    def _begin(self, member: Member) -> bool:
        begins = member.generation != self.generation
        anew = begins or member.rank in self._addresses
        if begins:
            self.generation = member.generation
            self._next.clear()
            self._holds = Holds()
            self._lacking.clear()
            self._asked_at.clear()
        self.recorder.follow(member.rank, member.generation, member.process)
        self._fills.forget(member.rank)
        if (refill := self._refills.get(member.rank)) is not None:
            self._release(refill)
        # After that: the records of the former process that have waited say nothing of this one's.
        self._next.pop(member.rank, None)
        self._asked_at.pop(member.rank, None)
        return anew

    def _is_elsewhere(self, rank: int) -> bool:
        return self._addresses.get(rank, ("", ""))[1] == _ELSEWHERE

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket on which all ranks publish."""
        return self._all.socket

    def hurry(self) -> None:
        """Have the next look take in what has come of a large group, too."""
        self._due = 0.0

    @property
    def found(self) -> bool:
        """Say whether a rank was found."""
        return bool(self._addresses)

    @property
    def is_asking(self) -> bool:
        """True while earlier records of a rank are asked for, or are to be."""
        return bool(self._refills)

    def look_at(self, ranks: frozenset[int]) -> None:
        """Receive the records of these ranks of a large group at once."""
        if not self._is_large:
            return
        wanted = {rank for rank in ranks if self._addresses.get(rank, ("", ""))[0]}
        for rank in self._near_ranks - wanted:
            self._near.disconnect(self._addresses[rank][0])
        for rank in wanted - self._near_ranks:
            self._near.connect(self._addresses[rank][0])
        self._near_ranks = wanted

    def drain(self) -> bool:
        """Take in the messages that have arrived; return whether there may be more."""
        self._ask()
        for message in () if self._sampling is None else self._sampling.take():
            self.take(message, wire.encode(message))
        rest, now = False, time.monotonic()
        if now >= self._due or not self._is_large:
            rest = self._drain(self._all.socket)
            self._due = now if rest else now + self._look_s
        if self._is_large:
            rest = self._drain(self._near.socket) or rest
        return rest

    def mend(self) -> None:
        """Make lost connections anew."""
        self._all.mend()
        self._near.mend()

    def _drain(self, socket: zmq.Socket[bytes]) -> bool:
        size = 0
        receive, at_once = socket.recv, zmq.NOBLOCK
        try:
            for _ in range(_MOST_A_TURN):
                # `recv_multipart` asks the socket after each frame whether there is one more, which takes longer than
                # all else. Of a message of one frame, the next one received begins another message and has more.
                topic = receive(at_once)
                frame = receive(at_once, copy=False)
                while frame.more:
                    self.refused += 1
                    topic, frame = frame.bytes, receive(at_once, copy=False)
                payload = frame.bytes
                size += len(payload)
                try:
                    if topic == wire.TOPIC_BATCH:
                        self._take_batch(payload)
                    else:
                        self.take(wire.read_telemetry(payload), payload)
                except wire.Unreadable:
                    self.refused += 1
                except Exception as error:  # a wall: no message may end the thread
                    self._leave_out(error)
                if size >= _MOST_TURN_BYTES:
                    break
        except zmq.Again:
            return False
        return True

    def _leave_out(self, error: Exception) -> None:
        self.refused += 1
        if (kind := type(error).__name__) not in self._reported:
            self._reported.add(kind)
            self._events.say(f"a message was left out: {error!r:.200}", "warning")

    def _take_batch(self, payload: bytes) -> None:
        """Have the records of a second recorded; of a large group nobody else needs all of them."""
        batch = wire.read_numbers(payload)
        if self._holds and (taken := self._holds.take(steps := wire.read_telemetry(payload))) is not steps:
            payload = wire.encode(taken)
        if self._is_sound(batch, payload):
            self._take_in_order(batch, payload)

    def take(self, message: wire.Telemetry, payload: bytes) -> None:
        """Take in one message of a rank, also as the observer of another host repeats it."""
        if not self._is_sound(message, payload):
            return
        if (taken := self._holds.take(message)) is not message:
            message, payload = taken, wire.encode(taken)
        if type(message) is not wire.Steps:
            self.heard.append((message, payload))
            if type(message) is not wire.Checksums and (type(message) is not wire.Summary or self._is_large):
                self.recorder.put(message, payload)
            self._store.apply(message, time.time())
            return
        if self.wants_steps:
            self.heard.append((message, payload))
        if self._is_large and message.generation <= self.generation:
            self._store.take_steps(message, time.time())
        # Of a rank of a large group on another host nothing else comes that could be recorded here.
        if not self._is_large or self._is_elsewhere(message.rank):
            self._take_in_order(message, payload)

    def _is_sound(self, message: wire.Telemetry | wire.NumberedSteps, payload: bytes) -> bool:
        if is_sound(message, len(payload), self._world, self.generation):
            return True
        self.refused += 1
        return False

    def _take_in_order(self, steps: Steps, payload: bytes) -> None:
        refill = self._refills.get(steps.rank)
        if refill is None and self._misses(steps):
            refill = self._refills[steps.rank] = _Refill(self, steps.rank)
        if refill is None:
            self._deliver(steps, payload)
            return
        refill.waiting.append((steps, payload))
        self._behind_bytes += len(payload)
        while refill.waiting and (len(refill.waiting) > MOST_BEHIND or self._behind_bytes > _MOST_BEHIND_BYTES):
            # The rank still has the oldest of them: it is asked for them after those before.
            self._behind_bytes -= len(refill.waiting.popleft()[1])

    def _misses(self, steps: Steps) -> bool:
        """Say whether records before these are missing, for which their rank can be asked."""
        if steps.generation != self.generation or not self._addresses.get(steps.rank, ("", ""))[1]:
            return False
        expected = self._next.get(steps.rank)
        # A rank counts its records from 1.
        return expected is not None and steps.steps[0].seq > max(expected, 1)

    def _deliver(self, steps: Steps, payload: bytes) -> None:
        if steps.rank in self._lacking and self._misses(steps):
            # After a record that was dropped no later one is recorded: all of them are asked for once there is room.
            return
        if not self.recorder.put(steps, payload):
            if steps.generation == self.generation:
                self._next.setdefault(steps.rank, steps.steps[0].seq)
                self._lacking.add(steps.rank)
            return
        if steps.generation == self.generation:
            newest = max([step.seq for step in steps.steps])
            self._next[steps.rank] = max(newest + 1, self._next.get(steps.rank, 0))
        # One rank may claim that the next generation has begun.
        if type(steps) is wire.Steps and not self._is_large and steps.generation <= self.generation:
            try:
                self._store.take_steps(steps, time.time())
            except Exception as error:  # a wall: it costs a verdict, and never the record of those that follow
                self._leave_out(error)

    def _ask(self) -> None:
        """Ask for the records before those that wait, once it is known which ones the file has."""
        before = self.recorder.recorded_before
        if before is None or not self.recorder.inbox.has_room:
            return
        now = time.monotonic()
        for rank, refill in list(self._refills.items()):
            if refill.asked or now < self._asked_at.get(rank, 0.0) + GAP_S:
                continue
            first = self._next.get(rank)
            if first is None:
                generation, seq = before.get(rank, NOTHING)
                first = seq + 1 if generation == self.generation else 0
                # Where the rank does not answer now, its next message shows that these are missing.
                self._next[rank] = first
            refill.asked = True
            self._lacking.discard(rank)
            self._asked_at[rank] = now
            fill = wire.Fill(1, first)
            if self._is_large and self._is_elsewhere(rank):
                # Its host has all of them recorded: here they are for who looks at single steps.
                fill = wire.Fill(1, first, wire.MOST_WHOLE)
            if not self._fills.ask(rank, self._addresses[rank][1], wire.encode(fill), self, refill):
                self.end_refill(refill)

    def take_earlier(self, refill: _Refill, payload: bytes) -> bool:
        """Take in a part of the answer of a rank; return whether more of it is wanted."""
        try:
            answer = wire.read_answer(payload)
        except wire.Unreadable:
            self.refused += 1
            return True
        if isinstance(answer, wire.Steps) and answer.rank == refill.rank and self._is_sound(answer, payload):
            refill.got += 1
            if (taken := self._holds.take(answer)) is not answer and isinstance(taken, wire.Steps):
                answer, payload = taken, wire.encode(taken)
            self._deliver(answer, payload)
        return self._refills.get(refill.rank) is refill

    def end_refill(self, refill: _Refill, *, whole: bool = False) -> None:
        """Hand on the records that have waited, or ask once more for those that are still missing before them.

        `whole` where all that the rank had before them has come. What brings nothing is not asked for twice.
        """
        if self._refills.get(refill.rank) is not refill:
            return
        moved = refill.got > 0
        asks_again = moved and not whole
        while refill.waiting and not asks_again:
            # Behind a gap: published between the answer and the first message that came by itself, or too many waited.
            asks_again = whole and moved and self._misses(refill.waiting[0][0])
            if not asks_again:
                self._hand_on_first(refill)
                moved = True
        if asks_again:
            self._refills[refill.rank] = _Refill(self, refill.rank, waiting=refill.waiting)
        else:
            del self._refills[refill.rank]

    def _release(self, refill: _Refill) -> None:
        """Hand on the records that have waited, and ask for no others."""
        del self._refills[refill.rank]
        while refill.waiting:
            self._hand_on_first(refill)

    def _hand_on_first(self, refill: _Refill) -> None:
        steps, payload = refill.waiting.popleft()
        self._behind_bytes -= len(payload)
        self._deliver(steps, payload)

    def finish(self) -> None:
        """Take in all that has arrived, and ask for nothing more."""
        give_up = time.monotonic() + _LAST_S
        self._due = 0.0
        while self.drain() and time.monotonic() < give_up:
            pass
        self._await_answers()
        for refill in list(self._refills.values()):
            self._release(refill)
        self._fills.forget_requester(self)

    def _await_answers(self) -> None:
        """Take the answers of ranks until nothing more of them comes."""
        now = time.monotonic()
        quiet, give_up = now + _QUIET_S, now + _ANSWERS_S
        while True:
            if self._fills.take():
                quiet = time.monotonic() + _QUIET_S
            if not self._refills or time.monotonic() >= min(quiet, give_up):
                return
            zmq.select(self._fills.sockets(), [], [], _QUIET_S / 5)

    def close(self) -> None:
        """Close the sockets, and end looks from outside; the ranks do not notice."""
        if self._sampling is not None:
            self._sampling.close()
        self._all.close()
        self._near.close()


def is_sound(message: wire.Telemetry | wire.NumberedSteps, size: int, world: int, generation: int) -> bool:
    """Say whether a rank may have sent a message.

    Args:
        message: the message.
        size: its bytes.
        world: number of ranks of the run.
        generation: the newest generation known. The ranks of the next one may speak before the observer has found them.
    """
    # In the order of their frequency. The decoder has checked that all numbers fit.
    # `isinstance` asks the metaclass of these classes, which takes ten times as long as to compare them.
    if type(message) is wire.Steps or type(message) is wire.NumberedSteps:
        return message.rank < world and message.generation <= generation + 1 and bool(message.steps)
    if type(message) is wire.Beat:
        return message.rank < world and size <= LARGEST_LATEST
    if type(message) is wire.Summary or type(message) is wire.Checksums:
        return message.rank < world and message.generation <= generation + 1
    if type(message) is wire.Event:
        return message.rank is None or message.rank < world
    if type(message) is wire.Hello or type(message) is wire.Sampled:
        return message.rank < world and message.generation <= generation + 1 and size <= LARGEST_LATEST
    return False


def _allow_files(world: int) -> None:
    """Raise the limit of open files to what connections to so many ranks take, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Three connections to each rank: what it publishes, its answers, and its records while somebody looks.
    needed = 512 + 3 * world
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
