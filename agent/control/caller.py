"""Sockets to the observer of a run, and the one request for an action, from the question to its reply."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection
from typing import Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.identity import Process, is_stopped, may_live
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.agent.wire.refusals import Refused, Unheard, refusal

READ_S: Final = 2.0
"""Seconds in which an observer has to read a request; later it refuses it."""
_LOOK_S: Final = 0.5
"""Seconds between two looks whether the observer still lives."""
_CANCEL_S: Final = 3.0
"""Seconds in which a cancelled action has to end."""


def act(
    directory: RunDir,
    command: wire.Act,
    show: Callable[[str], None] = lambda line: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> wire.Reply:
    """Have the observer of a run carry out an action, and return its reply.

    Args:
        directory: of the run, which has an observer.
        command: the action.
        show: takes the line of the ranks that the action waits for, and an empty one once it waits no more.
        is_cancelled: says whether the observer is to cancel it.

    Raises:
        Refused: it was not carried out.
        Unheard: the observer does not answer, so that it is not known whether the action was carried out.
        KeyboardInterrupt: the caller was interrupted, and the action could not be cancelled.
    """
    observer = directory.read().observer
    with zmq.Context() as context:
        frames = connect(context, zmq.SUB, directory.address("observer", "pub"))
        asking = connect(context, zmq.DEALER, directory.address("observer", "cmd"))
        request = _Request(observer, frames, asking, command, show, is_cancelled)
        try:
            frames.subscribe(wire.TOPIC_RUN)
            asking.send(wire.encode(deadline.limited(command, READ_S)))
            return request.reply()
        finally:
            frames.close(linger=0)
            # The wish to cancel may still be on its way.
            asking.close(linger=int(READ_S * 1000) if request.is_cancelling else 0)


def note(directory: RunDir, event: wire.Event, seconds: float) -> bool:
    """Have the observer of a run publish and record an event; return False where it does not say so in time."""
    with zmq.Context() as context, connect(context, zmq.DEALER, directory.address("observer", "cmd")) as socket:
        socket.send(wire.encode(deadline.limited(wire.Note(1, event), seconds)))
        answer = readable(socket.recv()) if socket.poll(int(seconds * 1000)) else None
        return isinstance(answer, wire.Reply) and answer.done


def query(directory: RunDir, ranks: Collection[int], seconds: float) -> dict[int, wire.Reply]:
    """Ask ranks of a run for their state through its observer, and return the replies that come in time."""
    found: dict[int, wire.Reply] = {}
    give_up = time.monotonic() + seconds
    with zmq.Context() as context, connect(context, zmq.DEALER, directory.address("observer", "cmd")) as socket:
        for rank in ranks:
            socket.send_multipart([b"%d" % rank, wire.encode(wire.Query(rank))])
        while len(found) < len(ranks) and socket.poll(max(0, int((give_up - time.monotonic()) * 1000))):
            rank, answer = of_rank(socket.recv_multipart())
            if isinstance(answer, wire.Reply) and answer.id == rank:
                found[rank] = answer
    return found


class _Request:
    """A request that was sent."""

    def __init__(
        self,
        observer: Process | None,
        frames: zmq.Socket[bytes],
        asking: zmq.Socket[bytes],
        command: wire.Act,
        show: Callable[[str], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._observer = observer
        self._frames = frames
        self._asking = asking
        self._command = command
        self._show = show
        self._is_cancelled = is_cancelled
        self.is_cancelling = False

    def reply(self) -> wire.Reply:
        try:
            reply = self._await()
        except KeyboardInterrupt:
            self._cancel()
            reply = self._await(until=time.monotonic() + _CANCEL_S)
            if reply is None or reply.done:
                raise
        assert reply is not None
        self._show("")
        if not reply.done:
            raise refusal(reply.refusal, reply.text)
        return reply

    def _cancel(self) -> None:
        if not self.is_cancelling:
            self.is_cancelling = True
            number = self._command.id + 1
            self._asking.send(wire.encode(deadline.limited(wire.Cancel(number, self._command.who), READ_S)))

    def _await(self, until: float = math.inf) -> wire.Reply | None:
        """Return the reply, None where it has not come by then."""
        poller = zmq.Poller()
        for socket in (self._frames, self._asking):
            poller.register(socket, zmq.POLLIN)
        look_at, is_gone = time.monotonic() + _LOOK_S, False
        while time.monotonic() <= until:
            if self._is_cancelled():
                self._cancel()
            ready = dict(poller.poll(50))
            if self._frames in ready:
                self._take(self._frames.recv_multipart()[-1])
            if self._asking in ready:
                answer = readable(self._asking.recv_multipart()[-1])
                if isinstance(answer, wire.Reply) and answer.id == self._command.id:
                    return answer
                continue
            if is_gone:
                raise Unheard("its observer ended meanwhile; `ddptop status` tells what became of it")
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _LOOK_S
                if is_stopped(self._observer) and self._observer is not None:
                    raise Unheard(f"its observer is stopped (SIGSTOP); `kill -CONT {self._observer.pid}` lets it go on")
                # What it has said at last may still be on its way, so look once more.
                is_gone = not may_live(self._observer)
        return None

    def _take(self, payload: bytes) -> None:
        with contextlib.suppress(wire.Unreadable):
            frame = wire.read_frame(payload)
            if isinstance(frame, wire.RunFrame):
                self._show(frame.waiting)


def of_rank(frames: list[bytes]) -> tuple[int, wire.Answer | None]:
    """Return the number of the rank that has answered, -1 for none, and its answer, None where it is unreadable."""
    if len(frames) != 2 or not frames[0].isdigit() or len(frames[0]) > 5:
        return -1, None
    return int(frames[0]), readable(frames[1])


def connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    """Return a socket that is connected to an `ipc://` address of this user.

    Raises:
        Refused: the socket there belongs to another user, or is open to others.
    """
    try:
        check_socket(address, os.getuid())
    except RunDirError as problem:
        raise Refused(str(problem)) from problem
    socket = context.socket(kind)
    socket.linger = 0
    socket.maxmsgsize = wire.MAX_MESSAGE_BYTES
    if kind == zmq.SUB:
        # The connection to a frozen peer stays open; heartbeats close it. That of a question has to stay open, because
        # the reply to it comes on no other.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 500)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1500)
    socket.connect(address)
    return socket


def readable(payload: bytes) -> wire.Answer | None:
    """Return the answer in a payload, None where it is unreadable."""
    try:
        return wire.read_answer(payload)
    except wire.Unreadable:
        return None
