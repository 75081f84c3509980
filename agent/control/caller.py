"""Sockets to the observer of a run, and the one way to have something done by it, from the request to its reply."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.silence import SILENT_S, Silence
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.run.identity import Process, may_live, wake
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.agent.wire.vocabulary.refusals import Cancelled, Refused, Unheard, refusal

READ_S: Final = 2.0
"""Seconds in which an observer has to read a request; later it refuses it."""
_MARGIN_S: Final = 0.5
"""How long after that its word may be under way."""
_LOOK_S: Final = 0.5
"""Seconds between two looks whether the observer still lives."""
_SILENT: Final = "its observer does not answer any more; `ddptop status` tells what became of it"
_CANCEL_S: Final = 3.0
"""Seconds in which a cancelled action has to end."""

Request = wire.Act | wire.Kill


class Unread(Unheard):
    """The observer has not read the request in time, so that nothing is done about it, now or later."""


class Gone(Unheard):
    """The observer has ended since it read the request."""


class Silent(Unheard):
    """The observer lives, and has not said a word for long since it read the request."""


def ask(
    directory: RunDir,
    request: Request,
    take: Callable[[wire.RunFrame], None] = lambda frame: None,
    is_cancelled: Callable[[], bool] = lambda: False,
    begin: Callable[[], bool] | None = None,
) -> wire.Reply:
    """Have the observer of a run do something, and return its reply.

    Args:
        directory: of the run, which has an observer.
        request: what is to be done.
        take: takes each frame of the run meanwhile.
        is_cancelled: says whether the observer is to cancel an action.
        begin: for what cannot be cancelled, is called once the observer is heard, and says whether to ask it; None: it
            is asked at once.

    Raises:
        Refused: it was not done.
        Cancelled: nor was it asked for.
        Unread: it was not done either, because nobody has read the request.
        Unheard: the observer does not answer any more, so that it is not known whether it was done.
        KeyboardInterrupt: the caller was interrupted, and what it asks for could not be cancelled.
    """
    observer = directory.read().observer
    with zmq.Context() as context:
        frames = connect(context, zmq.SUB, directory.address("observer", "pub"))
        asking = connect(context, zmq.DEALER, directory.address("observer", "cmd"))
        asked = _Asked(observer, frames, asking, request, take, is_cancelled, begin)
        try:
            frames.subscribe(wire.TOPIC_RUN)
            return asked.reply()
        finally:
            frames.close(linger=0)
            # The wish to cancel may still be on its way.
            asking.close(linger=int(READ_S * 1000) if asked.is_cancelling else 0)


class _Asked:
    """A request, from its sending to its reply."""

    def __init__(
        self,
        observer: Process | None,
        frames: zmq.Socket[bytes],
        asking: zmq.Socket[bytes],
        request: Request,
        take: Callable[[wire.RunFrame], None],
        is_cancelled: Callable[[], bool],
        begin: Callable[[], bool] | None,
    ) -> None:
        self._observer = observer
        self._frames = frames
        self._asking = asking
        self._request = request
        self._take = take
        self._is_cancelled = is_cancelled
        self._begin = begin
        self._is_sent = False
        self.is_cancelling = False

    def reply(self) -> wire.Reply:
        request = self._request
        # Longer than an ending takes, whose processes may be slow to die.
        until = math.inf if isinstance(request, wire.Act) else time.monotonic() + request.grace_s + SILENT_S
        if self._begin is None:
            self._send()
        try:
            reply = self._await(until)
        except KeyboardInterrupt:
            if self._begin is not None:
                raise
            self._cancel()
            reply = self._await(until=time.monotonic() + _CANCEL_S)
            if reply is None or reply.done:
                raise
        if reply is None:
            raise Silent(_SILENT)
        if not reply.done:
            raise refusal(reply.refusal, reply.text)
        return reply

    def _send(self) -> None:
        self._is_sent = True
        self._asking.send(wire.encode(deadline.limited(self._request, READ_S)))

    def _cancel(self) -> None:
        if not self.is_cancelling:
            self.is_cancelling = True
            number = self._request.id + 1
            self._asking.send(wire.encode(deadline.limited(wire.Cancel(number, self._request.who), READ_S)))

    def _await(self, until: float = math.inf) -> wire.Reply | None:
        """Return the reply, None where it has not come by then."""
        poller = zmq.Poller()
        for socket in (self._frames, self._asking):
            poller.register(socket, zmq.POLLIN)
        silence, is_heard = Silence(), False
        look_at, is_gone = time.monotonic() + _LOOK_S, False
        while time.monotonic() <= until:
            if self._is_cancelled():
                self._stop_waiting()
            ready = dict(poller.poll(50))
            self._take_frames()
            if self._asking in ready:
                answer = readable(self._asking.recv_multipart()[-1])
                if isinstance(answer, wire.Reply) and answer.id == self._request.id:
                    return answer
            is_heard |= bool(ready)
            silent_s = silence.listen(heard=bool(ready))
            if is_heard and not self._is_sent and self._begin is not None:
                if not self._begin():
                    raise Cancelled("cancelled; nothing was done")
                self._send()
            if ready:
                continue
            if is_gone:
                raise Gone("its observer ended meanwhile; `ddptop status` tells what became of it")
            if not is_heard and silent_s > READ_S + _MARGIN_S:
                raise Unread("its observer does not answer: nothing was done")
            if silent_s > SILENT_S:
                raise Silent(_SILENT)
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _LOOK_S
                if self._observer is not None:
                    wake(self._observer)
                # What it has said at last may still be on its way, so look once more.
                is_gone = not may_live(self._observer)
        return None

    def _stop_waiting(self) -> None:
        """Have the observer cancel what it was asked for; nothing that has begun to end."""
        if self._begin is None:
            self._cancel()
        elif not self._is_sent:
            raise Cancelled("cancelled; nothing was done")

    def _take_frames(self) -> None:
        while self._frames.poll(0):
            with contextlib.suppress(wire.Unreadable):
                frame = wire.read_frame(self._frames.recv_multipart()[-1])
                if isinstance(frame, wire.RunFrame):
                    self._take(frame)


def of_rank(frames: list[bytes]) -> tuple[int, wire.Answer | None]:
    """Return the number of the rank that has answered, -1 for none, and its answer, None where it is unreadable."""
    if len(frames) != 2 or not frames[0].isdigit() or len(frames[0]) > 5:
        return -1, None
    return int(frames[0]), readable(frames[1])


def connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    """Return a socket that is connected to an `ipc://` address of this user.

    Raises:
        Refused: the socket there belongs to another user, or is open to others; or no descriptor is left.
    """
    try:
        check_socket(address, os.getuid())
        socket = context.socket(kind)
    except RunDirError as problem:
        raise Refused(str(problem)) from problem
    except zmq.ZMQError as problem:
        raise Refused(f"the observer cannot be asked: {problem.strerror}") from problem
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
