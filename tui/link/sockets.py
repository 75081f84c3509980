"""The two sockets of an onlooker: what the observer of a run publishes, and questions that it answers.

The observer repeats what the ranks publish, so that two sockets are enough for any number of them. Where it listens
follows from the run directory; what a record names is nobody's word.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.caller import connect, readable
from ddptop.agent.control.listening import Listener
from ddptop.agent.observer.model.hearing import OBSERVED_S
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.rundir import Member, RunDir, RunDirError, is_alive
from ddptop.tui.link.source import Refused

if TYPE_CHECKING:
    from ddptop.tui.model.history.history import History

FILL_S: Final = 5.0
"""A gap that nothing comes for within this is given up and counted."""
FILL_SLICE_S: Final = 0.012
"""How long one `take_fills` takes in records that were asked for."""
FIRST_FILL_S: Final = 0.06
"""The same for those of the first frame, for as long as it is not whole."""
WHOLE_RECORDS: Final = 8192
"""Earlier records that are asked for, of all ranks together."""
LEAST_RECORDS: Final = 128
"""Asked for of each rank, however many there are: what a panel shows."""
MOST_WATCHED: Final = 64
REST_S: Final = 0.25
"""What is in sight has to stay so long before its records are asked for."""
MOST_ASKED: Final = 16
"""Ranks whose earlier records are under way at a time: the first of them are there soon, however many there are."""
START_S: Final = 10.0
"""How long the observer of a run may take to come, before ranks that are not heard count as silent."""

_TOGETHER: Final = 16
"""Messages that are received before any of them is taken in: a look at the run directory is for all of them."""
_BRIEFLY: Final = (wire.TOPIC_RANKS, wire.TOPIC_EVENT, wire.TOPIC_RUN, wire.TOPIC_VERDICTS, wire.TOPIC_HOSTS)
_OF_EACH: Final = (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_SUMMARY, wire.TOPIC_STEPS)
"""What the ranks of a small group publish, until their observer says that it sends it together."""
_OF_RANK: Final = (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_SUMMARY)
"""What a rank publishes that says how it is."""
UNREAD: Final = 1_000
"""Messages of an observer of a small group that may wait here."""


@dataclass(slots=True)
class _Fill:
    """A question for earlier records that is under way."""

    number: int
    breaks: int
    """Connections to an observer that had ended by then."""
    give_up: float


class Sockets:
    """The sockets to the observer of one run, and what comes from them into its store; used by one thread."""

    def __init__(
        self,
        directory: RunDir,
        world: int,
        store: Store,
        clock: Callable[[], float],
        is_same: Callable[[], bool],
        history: History | None,
        *,
        brief: bool,
    ) -> None:
        """Listen to nobody yet.

        `is_same` says whether the directory is still that of the run, `history` takes what views look back at, `brief`
        says whether only the ranks that are watched send their records.
        """
        self._directory = directory
        self._store = store
        self._clock = clock
        self._is_same = is_same
        self._history = history
        self._brief = brief
        self._asked_together = MOST_WATCHED if brief else world
        self._unread = wire.UNREAD * MOST_WATCHED if brief else UNREAD
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._sub: Listener | None = None
        self._ranks: Listener | None = None
        """To the ranks of this host themselves, as long as their observer is gone."""
        self._dealer: zmq.Socket[bytes] | None = None
        self._open_at: float | None = None
        """When the observer was first listened to; None where nobody does."""
        self._patience_s = START_S
        self._heard_at: float | None = None
        """When something came from it last."""
        self._bundled = False
        """True where the messages of all ranks are subscribed to together."""
        self._told_ranks = False
        self._greeted = False
        self._wanted: frozenset[int] = frozenset()
        self._watched: set[int] = set()
        """Ranks whose records are subscribed to one by one."""
        self._watch_due = 0.0
        self._present: dict[int, int] = {}
        """Ranks that have come, with the process of each."""
        self._doubted: dict[int, int] = {}
        """Ranks whose processes outlive the end that is recorded of them."""
        self._unlistened: set[int] = set()
        """Ranks that nobody could hear yet, because the observer has not been heard."""
        self._numbers = count(1)
        self._queue: deque[int] = deque()
        """Ranks that are to be asked next."""
        self._fills: dict[int, _Fill] = {}
        self._asked: set[int] = set()
        """Ranks whose history was asked for."""
        self._filled = brief
        """True once all that was asked for at first has come; a large group tells of now before that."""

    @property
    def fills(self) -> bool:
        """True while records that were asked for are under way."""
        return bool(self._fills or self._queue)

    @property
    def greeted(self) -> bool:
        """True once the observer has told what it knows of all ranks."""
        return self._greeted

    def open(self, patience_s: float = START_S, first: wire.History | None = None) -> None:
        """Connect to the observer, who may come later: ZeroMQ connects as soon as it listens.

        After `patience_s` without a word it should have answered. The `first` question about the history is sent
        with the connection.
        """
        publications = self._directory.address("observer", "pub")
        try:
            check_socket(publications, self._directory.owner)
        except RunDirError as problem:
            self._store.apply(wire.Event(time.time_ns(), f"not listened to: {problem}", None, "error"), time.time())
            return
        self._open_at, self._patience_s = self._clock(), patience_s
        self._context = zmq.Context()
        self._bundled = False
        self._sub = Listener(self._context, _BRIEFLY if self._brief else (*_BRIEFLY, *_OF_EACH), self._unread)
        self._sub.connect(publications)
        try:
            self._dealer = connect(self._context, zmq.DEALER, self._directory.address("observer", "cmd"))
        except Refused:
            # Another user's run is looked at, and asked nothing.
            self._filled = True
            return
        if first is not None:
            with contextlib.suppress(zmq.Again):
                self._dealer.send(wire.encode(first), zmq.NOBLOCK)

    def hear_ranks(self, members: Mapping[int, Member]) -> None:
        """Hear the ranks of this host themselves from now on, until an observer tells of them again."""
        if self._ranks is not None or self._context is None or self._brief:
            return
        self._ranks = Listener(self._context, _OF_RANK, self._unread)
        for member in members.values():
            if member.ended is None and member.pub:
                with contextlib.suppress(RunDirError):
                    check_socket(member.pub, self._directory.owner)
                    self._ranks.connect(member.pub)

    def know(self, members: Mapping[int, Member], far: Collection[int] = frozenset()) -> None:
        """Take in which ranks have come, some of them on `far` hosts; they are heard as soon as their observer is."""
        for rank, member in members.items():
            known = self._present if member.ended is None else self._doubted
            if known.get(rank) == member.process.pid:
                continue
            if member.ended is not None and (rank in far or not is_alive(member.process)):
                continue
            known[rank] = member.process.pid
            self._unlistened.add(rank)
        self._listen()

    def _listen(self) -> None:
        """Expect the ranks to be heard from now on, unless their observer may still be starting."""
        waited_s = None if self._open_at is None else self._clock() - self._open_at
        patient = waited_s is not None and waited_s < self._patience_s
        if self._heard_at is None and waited_s is not None and not patient:
            self._store.hearing.expect(time.time() - waited_s)
        if self._unlistened and (self._heard_at is not None or not patient):
            for rank in self._unlistened:
                self._store.listen(rank, time.time())
            self._unlistened.clear()

    def mend(self) -> None:
        """Make a lost connection anew."""
        if self._sub is not None:
            self._sub.mend()
        self._listen()

    def watch(self, ranks: frozenset[int]) -> None:
        """Say which ranks' records are looked at; those of a small group come anyway."""
        if ranks != self._wanted:
            self._wanted = ranks
            self._watch_due = self._clock() + REST_S

    def follow_watched(self) -> None:
        """Subscribe to the records of the ranks that are watched now, and of no others."""
        known = set(sorted(self._wanted & self._present.keys())[:MOST_WATCHED])
        if self._sub is None or not self._brief or self._clock() < self._watch_due or self._watched == known:
            return
        for rank in self._watched - known:
            self._sub.socket.unsubscribe(wire.topic_of(wire.TOPIC_STEPS, rank))
        self._store.watch(frozenset(known))
        for rank in known - self._watched:
            self._sub.socket.subscribe(wire.topic_of(wire.TOPIC_STEPS, rank))
        self._watched = known

    def drain(self, deadline: float) -> None:
        """Take in what was sent by itself."""
        if self._ranks is not None:
            for frames in _received(self._ranks.socket, _TOGETHER):
                with contextlib.suppress(ValueError, wire.Unreadable):
                    _, payload = frames
                    self._store.apply(wire.read_telemetry(payload), time.time())
        while self._sub is not None and self._clock() < deadline:
            received = _received(self._sub.socket, _TOGETHER)
            if not received or not self._is_same():
                return
            at = time.time()
            for frames in received:
                try:
                    _, payload = frames
                    message = wire.read_telemetry(payload)
                except (ValueError, wire.Unreadable):
                    self._store.refused += 1
                    continue
                self._note(message)
                self._store.apply(message, at)
                if self._history is not None:
                    self._history.hear(message)

    def _note(self, message: wire.Telemetry) -> None:
        """Notice that the observer is there, and the end of its greeting: all ranks, and then the verdicts."""
        self._heard_at = self._clock()
        if self._unlistened:
            self._listen()
        # By type: `isinstance` asks the metaclass of these classes, and takes ten times as long.
        if type(message) is wire.Ranks:
            self._told_ranks = True
            if not self._brief and message.bundles != self._bundled:
                self._subscribe(bundled=message.bundles)
        elif type(message) is wire.Verdicts and self._told_ranks:
            self._greeted = True
            if self._ranks is not None:
                self._ranks.close()
                self._ranks = None

    def _subscribe(self, *, bundled: bool) -> None:
        """Subscribe to the messages of all ranks together, or to those of each, as another observer may send them."""
        assert self._sub is not None
        self._bundled = bundled
        together: tuple[bytes, ...] = (wire.TOPIC_BUNDLE,)
        # In this order none is missed, and what comes twice is taken in once.
        for topic in together if bundled else _OF_EACH:
            self._sub.socket.subscribe(topic)
        for topic in _OF_EACH if bundled else together:
            self._sub.socket.unsubscribe(topic)

    def ask_for_gaps(self) -> None:
        """Ask for the records that are missing, of some ranks at a time."""
        if self._dealer is None or not self._is_heard:
            # Without the observer nobody answers, and what is missing then is not given up.
            return
        if not self._queue:
            self._queue.extend(rank for rank in self._missing() if rank in self._present and rank not in self._fills)
        self._ask_next()

    @property
    def _is_heard(self) -> bool:
        """True while the observer is there."""
        return self._heard_at is not None and self._clock() - self._heard_at < OBSERVED_S

    def _missing(self) -> dict[int, int]:
        """Return, by rank, the number of the first record that is missing."""
        gaps = self._store.gaps()
        if self._brief:
            return gaps
        # What was before is asked for at once, not only when a record comes that shows that it is missing.
        return dict.fromkeys(sorted(self._present.keys() - self._asked), 1) | gaps

    def _ask_next(self) -> None:
        missing = self._missing() if self._queue else {}
        while self._queue and len(self._fills) < MOST_ASKED:
            rank = self._queue.popleft()
            if rank in missing and rank not in self._fills and not self._ask(rank, missing[rank]):
                return

    def _ask(self, rank: int, first: int) -> bool:
        """Ask a rank, through the observer; return False where that takes no more questions now."""
        assert self._dealer is not None
        assert self._sub is not None
        whole = max(LEAST_RECORDS, WHOLE_RECORDS // self._asked_together)
        fill = wire.Fill(next(self._numbers), first, whole)
        try:
            self._dealer.send_multipart([b"%d" % rank, wire.encode(fill)], zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._fills[rank] = _Fill(fill.id, self._sub.breaks, self._clock() + FILL_S)
        self._asked.add(rank)
        return True

    def ask_for_history(self) -> None:
        """Ask the observer for the numbers that views look at."""
        history = self._history
        if history is None or not history.begun or self._dealer is None or not self._is_heard:
            return
        for query in history.asked.wanted():
            # Where nothing more can be sent, the question is asked again.
            with contextlib.suppress(zmq.Again):
                self._dealer.send(wire.encode(query), zmq.NOBLOCK)

    def take_fills(self) -> None:
        """Take in records and numbers that were asked for, and give up what does not come."""
        self.drain_answers()
        self._give_up(self._clock())

    def drain_answers(self) -> None:
        """Take in records and numbers that were asked for."""
        deadline = self._clock() + (FILL_SLICE_S if self._filled else FIRST_FILL_S)
        while self._dealer is not None and self._clock() < deadline:
            # One at a time: an answer may have hundreds of records.
            received = _received(self._dealer, 1)
            if not received or not self._is_same():
                return
            for frames in received:
                self._take_answer(frames)

    def _take_answer(self, frames: list[bytes]) -> None:
        history = self._history
        if len(frames) == 1 and history is not None:
            try:
                history.take_answer(wire.read_history(frames[0]), len(frames[0]))
            except wire.Unreadable:
                self._store.refused += 1
            return
        try:
            number, payload = frames
            rank, answer = int(number), readable(payload)
        except ValueError:
            self._store.refused += 1
            return
        fill = self._fills.get(rank)
        if isinstance(answer, wire.Steps):
            if answer.rank == rank:
                self._store.fill(rank, answer.steps, last=False)
                if history is not None:
                    history.hear(answer)
            if fill is not None:
                fill.give_up = self._clock() + FILL_S
        elif isinstance(answer, wire.Reply) and fill is not None and answer.id == fill.number:
            if answer.pending:
                # The observer answers too many others now: it is asked again.
                del self._fills[rank]
                self._asked.discard(rank)
            else:
                self._finish(rank)

    def _give_up(self, now: float) -> None:
        """Give up what nothing comes for; of an observer that was lost meanwhile, another one is asked again."""
        for rank, fill in [(rank, fill) for rank, fill in self._fills.items() if now > fill.give_up]:
            if self._is_heard and self._sub is not None and self._sub.breaks == fill.breaks:
                self._finish(rank)
            else:
                del self._fills[rank]
                self._asked.discard(rank)

    def _finish(self, rank: int) -> None:
        del self._fills[rank]
        self._store.fill(rank, (), last=True)
        self._ask_next()
        self._filled = self._filled or not self.fills

    def close(self) -> None:
        """Close both; the run does not notice."""
        for listener in (self._sub, self._ranks):
            if listener is not None:
                listener.close()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._sub = self._ranks = self._dealer = self._context = None


def _received(socket: zmq.Socket[bytes], most: int) -> list[list[bytes]]:
    """Return what has arrived, at most `most` messages."""
    received: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while len(received) < most:
            received.append(socket.recv_multipart(zmq.NOBLOCK))
    return received
