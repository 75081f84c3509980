"""What the ranks and the supervisor of a run tell: listening to all, following those in sight, filling gaps.

Where they listen follows from the run directory; what a rank's record names is nobody's word.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from typing import Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.caller import connect, readable
from ddptop.agent.control.listening import Listener
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.rundir import Member, RunDir, RunDirError, is_alive
from ddptop.tui.link.source import Refused
from ddptop.tui.model.store import Store

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
SAMPLES: Final = 16_384
"""Of the records before those, so many of all ranks together stand for the others."""
MOST_SAMPLES: Final = 480
"""Asked for of each rank, however few there are: a plot has no more columns."""
MOST_WATCHED: Final = 64
REST_S: Final = 0.25
"""What is in sight has to stay so long before its records are asked for."""

_BRIEFLY: Final = (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_SUMMARY, wire.TOPIC_EVENT, wire.TOPIC_RUN)


class Sockets:
    """The sockets to one run, and what comes from them into its store; used by one thread."""

    def __init__(self, directory: RunDir, world: int, store: Store, clock: Callable[[], float], *, brief: bool) -> None:
        """Listen to nobody yet; `brief` where only the ranks that are watched send their records."""
        _allow_files(world)
        self._directory = directory
        self._world = world
        self._store = store
        self._clock = clock
        self._brief = brief
        self._context = zmq.Context()
        self._sub = Listener(self._context, _BRIEFLY if brief else (b"",))
        self._near = Listener(self._context, (wire.TOPIC_STEPS,))
        """For the records of watched ranks, connected to them alone."""
        self._listened: set[int] = set()
        """Ranks whose sockets are the owner's own."""
        self._wanted: frozenset[int] = frozenset()
        self._watched: dict[int, str] = {}
        """By rank, the address its records come from."""
        self._watch_due = 0.0
        self._connected: dict[int, tuple[str, int]] = {}
        self._doubted: dict[int, tuple[str, int]] = {}
        """Ranks whose processes outlive the end that is recorded of them."""
        self._fills: dict[int, tuple[zmq.Socket[bytes], int, float]] = {}
        """By rank: the socket that asks, the command's id, when to give up."""
        self._asked: set[int] = set()
        """Ranks whose history was asked for."""
        self._filled = brief
        """True once all that was asked for at first has come; a large group tells of now before that."""

    @property
    def fills(self) -> bool:
        """True while records that were asked for are under way."""
        return bool(self._fills)

    @property
    def is_whole(self) -> bool:
        """True where nothing was asked for at first, or all of that has come."""
        return self._filled or not self._asked

    def listen_to_supervisor(self) -> None:
        """Listen to the supervisor."""
        self._listen(None, self._directory.address("supervisor", "pub"))

    def listen_to(self, members: Mapping[int, Member]) -> None:
        """Listen to the ranks that have come."""
        for rank, member in members.items():
            address = self._directory.address(rank, "pub")
            key = (address, member.process.pid)
            known = self._connected if member.ended is None else self._doubted
            if known.get(rank) == key or (member.ended is not None and not is_alive(member.process)):
                continue
            if rank not in self._connected and rank not in self._doubted:
                self._listen(rank, address)
            known[rank] = key
            self._store.listen(rank, time.time())

    def _listen(self, rank: int | None, address: str) -> None:
        try:
            check_socket(address, self._directory.owner)
        except RunDirError as problem:
            self._store.apply(wire.Event(time.time_ns(), f"not listened to: {problem}", None, "error"), time.time())
        else:
            self._sub.connect(address)
            if rank is not None:
                self._listened.add(rank)

    def mend(self) -> None:
        """Make lost connections anew."""
        self._sub.mend()
        self._near.mend()

    def watch(self, ranks: frozenset[int]) -> None:
        """Say which ranks' records are looked at; those of a small group come anyway."""
        if ranks != self._wanted:
            self._wanted = ranks
            self._watch_due = self._clock() + REST_S

    def follow_watched(self) -> None:
        """Connect to the ranks that are watched now, and to no others."""
        known = sorted(self._wanted & self._listened)[:MOST_WATCHED]
        if not self._brief or self._clock() < self._watch_due or self._watched.keys() == set(known):
            return
        for rank in self._watched.keys() - set(known):
            self._near.disconnect(self._watched.pop(rank))
        self._store.watch(frozenset(known))
        for rank in known:
            if rank not in self._watched:
                self._watched[rank] = self._directory.address(rank, "pub")
                self._near.connect(self._watched[rank])

    def drain(self, deadline: float) -> None:
        """Take in what was sent by itself."""
        for listener in (self._sub, self._near):
            self._drain(listener.socket, deadline)

    def _drain(self, socket: zmq.Socket[bytes], deadline: float) -> None:
        while self._clock() < deadline:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                _, payload = frames
                self._store.apply(wire.read_telemetry(payload), time.time())
            except (ValueError, wire.Unreadable):
                self._store.refused += 1

    def ask_for_gaps(self) -> None:
        """Ask the ranks for the records that are missing."""
        gaps = self._store.gaps()
        if not self._brief:
            # What was before is asked for at once, not only when a record comes that shows that it is missing.
            gaps = dict.fromkeys(self._connected.keys() - self._asked, 1) | gaps
        for rank, first in gaps.items():
            if rank in self._fills or rank not in self._connected:
                continue
            try:
                socket = connect(self._context, zmq.DEALER, self._directory.address(rank, "cmd"))
            except Refused:
                continue
            asked = MOST_WATCHED if self._brief else self._world
            whole, samples = max(LEAST_RECORDS, WHOLE_RECORDS // asked), min(MOST_SAMPLES, SAMPLES // asked)
            socket.send(wire.encode(wire.Fill(1, first, whole, samples)))
            self._fills[rank] = (socket, 1, self._clock() + FILL_S)
            self._asked.add(rank)

    def take_fills(self) -> None:
        """Take in records that were asked for."""
        deadline = self._clock() + (FILL_SLICE_S if self._filled else FIRST_FILL_S)
        for rank, (socket, number, give_up) in list(self._fills.items()):
            done = self._clock() > give_up
            while not done:
                if self._clock() > deadline:
                    return
                try:
                    answer = readable(socket.recv(zmq.NOBLOCK))
                except zmq.Again:
                    break
                if isinstance(answer, wire.Steps):
                    self._store.fill(rank, answer.steps, last=False)
                    self._fills[rank] = (socket, number, self._clock() + FILL_S)
                done = isinstance(answer, wire.Reply) and answer.id == number
            if done:
                self._store.fill(rank, (), last=True)
                socket.close(linger=0)
                del self._fills[rank]
                self._filled = self._filled or not self._fills

    def close(self) -> None:
        """Close all; the run does not notice."""
        self._sub.close()
        self._near.close()
        self._context.destroy(linger=0)


def _allow_files(world: int) -> None:
    """Raise the limit of open files to what connections to so many ranks take, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 256 + 2 * world
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
