"""Copies of the logs of ranks on other hosts, kept up to date as long as somebody looks at them.

A thread asks for them through the run's observer, over a socket of its own, because a ZeroMQ socket belongs to one
thread.  The copies are in a folder of this process alone, and begin near the ends of the logs.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.caller import connect, of_rank
from ddptop.agent.run.files import sparse
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.text import clean_line
from ddptop.agent.wire.vocabulary.refusals import Refused

TAIL: Final = 256 << 10
"""Bytes of the end of a log with which its copy begins."""
POLL_S: Final = 0.25
_POLL_MS: Final = 50
"""How soon it is noticed that a log is wanted, or none any more."""
_AGAIN_S: Final = 1.0
"""Seconds after which one that could not be read is asked for again."""
_PATIENCE_S: Final = 4.0
"""Seconds for an answer: the observer answers in the place of a host that does not."""
_WANTED_S: Final = 2.0
"""Seconds for which a log is read on after it was wanted last."""
_MOST: Final = 64
"""Logs that are asked for at a time."""
_EACH_S: Final = 1 / 128
"""Seconds between two questions for each log that is read: those of a thousand ranks have their turn in eight."""
_ROOM: Final = 32 << 20
"""Bytes of a copy; of a larger one the middle is left out."""


@dataclass
class _Copy:
    """The copy of one log, so far."""

    path: Path
    wanted_until: float = 0.0
    due: float = 0.0
    give_up: float | None = None
    """When a question that was put is given up; None where none is."""
    inode: int = 0
    offset: int = 0
    held: int = 0
    """Bytes written since the middle was left out last."""
    whole: bool = False
    """True once the end of the log was reached."""
    problem: str = ""


class CopiedLogs:
    """The copies of one run. All but what begins with `_` is for one thread."""

    def __init__(self, directory: RunDir, tail: int = TAIL, clock: Callable[[], float] = time.monotonic) -> None:
        """Copy nothing yet."""
        self._directory = directory
        self._tail = tail
        self._clock = clock
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._copies: dict[int, _Copy] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._changed = threading.Condition(self._lock)

    def path(self, rank: int) -> str:
        """Return the file of a copy, which may not be there yet."""
        with self._lock:
            return str(self._copy(rank).path)

    def _copy(self, rank: int) -> _Copy:
        if rank not in self._copies:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="ddptop-", ignore_cleanup_errors=True)
            self._copies[rank] = _Copy(Path(self._folder.name) / f"rank-{rank}.log")
        return self._copies[rank]

    def has(self, rank: int) -> bool:
        """Say whether anything of a log was copied."""
        with self._lock:
            return rank in self._copies and self._copies[rank].inode != 0

    def want(self, ranks: Collection[int]) -> None:
        """Keep the copies of these logs up to date for the next two seconds."""
        if not ranks or self._over.is_set():
            return
        now = self._clock()
        with self._lock:
            for rank in ranks:
                self._copy(rank).wanted_until = now + _WANTED_S
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddptop-logs", daemon=True)
            self._thread.start()

    def fetch(self, ranks: Collection[int], patience_s: float) -> dict[int, str]:
        """Copy these logs up to their ends; return why not, for those of which nothing came, by rank. Blocks."""
        until = self._clock() + patience_s
        while True:
            self.want(ranks)
            with self._changed:
                found = [self._copy(rank) for rank in ranks]
                if all(each.whole or each.problem for each in found) or self._clock() >= until:
                    return {
                        rank: each.problem or "no answer"
                        for rank, each in zip(ranks, found, strict=True)
                        if not each.whole
                    }
                self._changed.wait(POLL_S)

    def close(self) -> None:
        """End the thread, and remove the copies."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()

    # The thread

    def _run(self) -> None:
        with zmq.Context() as context:
            socket: zmq.Socket[bytes] | None = None
            while not self._over.is_set():
                if socket is None or socket.closed:
                    socket = self._connected(context)
                    if socket is None:
                        self._over.wait(_AGAIN_S)
                        continue
                self._ask(socket)
                if socket.poll(_POLL_MS):
                    self._take(*of_rank(socket.recv_multipart()))
                elif self._is_lost():
                    # Another observer may have taken the place of the one that was asked.
                    socket.close()
            if socket is not None:
                socket.close()

    def _connected(self, context: zmq.Context[Any]) -> zmq.Socket[bytes] | None:
        try:
            return connect(context, zmq.DEALER, self._directory.address("observer", "cmd"))
        except (Refused, zmq.ZMQError) as problem:
            with self._changed:
                for each in self._copies.values():
                    each.problem = each.problem or clean_line(str(problem))
                self._changed.notify_all()
            return None

    def _ask(self, socket: zmq.Socket[bytes]) -> None:
        now = self._clock()
        with self._lock:
            under_way = sum(each.give_up is not None for each in self._copies.values())
            for rank, each in self._copies.items():
                if each.give_up is None and each.due <= now <= each.wanted_until and under_way < _MOST:
                    command = wire.ReadLog(rank, each.inode, each.offset, self._tail)
                    socket.send_multipart([b"%d" % rank, wire.encode(command)])
                    each.give_up = now + _PATIENCE_S
                    under_way += 1

    def _is_lost(self) -> bool:
        """Give up what was not answered; say whether there was any."""
        now = self._clock()
        with self._changed:
            late = [each for each in self._copies.values() if each.give_up is not None and now > each.give_up]
            for each in late:
                each.give_up, each.due, each.problem = None, now + _AGAIN_S, "no answer"
            if late:
                for each in self._copies.values():
                    each.give_up = None
                self._changed.notify_all()
        return bool(late)

    def _take(self, rank: int, answer: wire.Answer | None) -> None:
        with self._changed:
            copy = self._copies.get(rank)
            if copy is None or copy.give_up is None or not isinstance(answer, wire.Reply) or answer.id != rank:
                return
            now = self._clock()
            wanted = sum(each.wanted_until >= now for each in self._copies.values())
            copy.give_up, copy.due, copy.problem = None, now + max(POLL_S, _EACH_S * wanted), ""
            if not answer.done:
                copy.due, copy.problem = now + _AGAIN_S, clean_line(answer.text) or "no answer"
            elif answer.log is None:
                copy.whole = True
            else:
                try:
                    self._write(copy, answer.log)
                except OSError as problem:
                    copy.due, copy.problem = now + _AGAIN_S, problem.strerror or type(problem).__name__
                else:
                    copy.whole = copy.offset >= answer.log.size
                    copy.due = copy.due if copy.whole else now
            self._changed.notify_all()

    def _write(self, copy: _Copy, piece: wire.LogPiece) -> None:
        """Write a piece where it stands in the log, so that what is missing is a hole."""
        if piece.anew:
            copy.path.unlink(missing_ok=True)
            copy.held = 0
        descriptor = os.open(copy.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, piece.content, piece.offset)
        finally:
            os.close(descriptor)
        copy.inode, copy.offset = piece.inode, piece.offset + len(piece.content)
        copy.held += len(piece.content)
        if copy.held > _ROOM:
            sparse.cut(copy.path, _ROOM // 2)
            copy.held = _ROOM // 2
