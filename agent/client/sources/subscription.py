"""A subscription to the frames of a run's observer, and questions to it; used by one thread.

Where it listens follows from the run directory; what a record names is nobody's word.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.caller import connect
from ddptop.agent.control.listening import Listener
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.agent.wire import EACH_RECORD, RankFrame, RunFrame
from ddptop.agent.wire.vocabulary.refusals import Refused

if TYPE_CHECKING:
    from ddptop.agent.client.history.history import History

MOST_WATCHED: Final = 64
"""Ranks of which all is subscribed to one by one."""
REST_S: Final = 0.25
"""Seconds that ranks have to stay in sight before they are subscribed to."""
ANSWERS_S: Final = 0.012
"""Seconds within which answers are taken in at a time."""
UNREAD: Final = 1_000
"""Messages of an observer that may wait here."""
_TOGETHER: Final = 16
"""Messages that are received before any of them is taken in: a look at the run directory is for all of them."""


class Subscription:
    """The two sockets to one observer, and the newest frames that came by them."""

    def __init__(
        self,
        directory: RunDir,
        world: int,
        history: History | None,
        is_same: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        ranks: bool = True,
    ) -> None:
        """Connect to the observer of a run, who may come later: ZeroMQ connects as soon as it listens.

        Args:
            directory: that of the run.
            world: its ranks.
            history: what views look back at, where somebody does; its first questions are sent with the connection.
            is_same: says whether the directory is still that of the run.
            clock: seconds, for what is due.
            ranks: False: of the run alone, of which the observer then makes no frame of a rank.
        """
        self._world = world
        self._shows_ranks = ranks
        self._history = history
        self._is_same = is_same
        self._clock = clock
        self.run: RunFrame | None = None
        """The newest frame of the run; None: none has come yet."""
        self.ranks: dict[int, RankFrame] = {}
        """The frame of each rank that has come, of the same moment as that of the run."""
        self._coming: dict[int, RankFrame] = {}
        """Those of the moment of which the frame of the run is still to come."""
        self.received = 0
        """Messages that have come, also those that could not be read: a sign of life of whoever sends them."""
        self.refused = 0
        """Messages that could not be read."""
        self.problem = ""
        """Why nobody is listened to."""
        self._wanted: frozenset[int] = frozenset()
        self._watched: frozenset[int] = frozenset()
        self._watch_due = 0.0
        self._sub: Listener | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._breaks = 0
        self._open(directory)

    def _open(self, directory: RunDir) -> None:
        publications = directory.address("observer", "pub")
        try:
            check_socket(publications, directory.owner)
        except RunDirError as problem:
            self.problem = f"not listened to: {problem}"
            return
        self._context = zmq.Context()
        try:
            self._connect(directory, publications)
        except zmq.ZMQError as problem:
            # No descriptor is left.
            self.problem = f"not listened to: {problem.strerror}"
            self.close()

    def _connect(self, directory: RunDir, publications: str) -> None:
        assert self._context is not None
        # Of a large group the short rows of all ranks, and more of those in sight.
        ranks = wire.TOPIC_RANK + b"/" if self._world <= EACH_RECORD else wire.TOPIC_RANKS
        topics = (ranks, wire.TOPIC_RUN) if self._shows_ranks else (wire.TOPIC_RUN,)
        self._sub = Listener(self._context, topics, UNREAD)
        self._sub.connect(publications)
        # Another user's run is looked at, and asked nothing.
        with contextlib.suppress(Refused):
            self._dealer = connect(self._context, zmq.DEALER, directory.address("observer", "cmd"))
        self.ask_for_history()

    @property
    def is_whole(self) -> bool:
        """True once a frame of the run has come and, where they are shown, one of each rank."""
        return self.run is not None and (not self._shows_ranks or len(self.ranks) == self._world)

    def watch(self, ranks: frozenset[int]) -> None:
        """Say which ranks are looked at."""
        if ranks != self._wanted:
            self._wanted = ranks
            self._watch_due = self._clock() + REST_S

    def follow_watched(self) -> None:
        """Subscribe to the whole frames of the ranks that are watched now, and to those of no others."""
        known = frozenset(sorted(rank for rank in self._wanted if rank < self._world)[:MOST_WATCHED])
        if self._sub is None or self._world <= EACH_RECORD or self._clock() < self._watch_due:
            return
        for rank in self._watched - known:
            self._sub.socket.unsubscribe(wire.topic_of(wire.TOPIC_RANK, rank))
        for rank in known - self._watched:
            self._sub.socket.subscribe(wire.topic_of(wire.TOPIC_RANK, rank))
        self._watched = known

    def mend(self) -> None:
        """Make a lost connection anew."""
        if self._sub is not None:
            self._sub.mend()
            if self._sub.breaks != self._breaks:
                # Another observer may know nothing of what was asked of the one before.
                self._breaks = self._sub.breaks
                if self._history is not None:
                    self._history.asked.lose()

    def drain(self, deadline: float) -> bool:
        """Take in what was published, until a moment of the clock; return whether a frame has come."""
        is_heard = False
        while self._sub is not None and self._clock() < deadline:
            received = _received(self._sub.socket, _TOGETHER)
            if not received or not self._is_same():
                break
            self.received += len(received)
            for frames in received:
                try:
                    topic, payload = frames
                    is_heard |= self._take(topic, payload)
                except (ValueError, wire.Unreadable):
                    self.refused += 1
        return is_heard

    def _take(self, topic: bytes, payload: bytes) -> bool:
        """Take in a message; return whether it is a frame of the run."""
        frame = wire.read_frame(payload)
        match frame:
            case RunFrame():
                if frame.world != self._world:
                    raise ValueError(frame.world)
                # Its ranks come before it: only now are they those of one moment.
                self.run = frame
                self.ranks.update(self._coming)
                self._coming.clear()
                return True
            case RankFrame():
                self._note(frame)
            case wire.Rows():
                for each in frame.ranks:
                    # Of a rank in sight there is more.
                    if each.rank not in self._watched or each.rank not in self.ranks:
                        self._note(each)
        return False

    def _note(self, frame: RankFrame) -> None:
        if frame.rank >= self._world:
            raise ValueError(frame.rank)
        self._coming[frame.rank] = frame

    def ask_for_history(self) -> None:
        """Ask the observer for what views look at."""
        if self._history is None or self._dealer is None:
            return
        for query in self._history.asked.wanted():
            # Where nothing more can be sent, the question is asked again.
            with contextlib.suppress(zmq.Again):
                self._dealer.send(wire.encode(query), zmq.NOBLOCK)

    def take_answers(self) -> None:
        """Take in what was asked for."""
        deadline = self._clock() + ANSWERS_S
        while self._dealer is not None and self._clock() < deadline:
            # One at a time: a part of an answer may be large.
            received = _received(self._dealer, 1)
            if not received or not self._is_same():
                return
            for frames in received:
                try:
                    (payload,) = frames
                    if self._history is not None:
                        self._history.asked.take(wire.read_history(payload))
                except (ValueError, wire.Unreadable):
                    self.refused += 1

    def close(self) -> None:
        """Close both; the run does not notice."""
        if self._sub is not None:
            self._sub.close()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._sub = self._dealer = self._context = None


def _received(socket: zmq.Socket[bytes], most: int) -> list[list[bytes]]:
    """Return what has arrived, at most `most` messages."""
    received: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while len(received) < most:
            received.append(socket.recv_multipart(zmq.NOBLOCK))
    return received
