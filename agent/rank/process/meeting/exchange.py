"""The thread that passes on where the head listens: from its own host's directory to the store, or the other way."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ddptop.agent.rank.process.meeting.store import Gone, Store
from ddptop.agent.run import hosts, records
from ddptop.agent.run.hosts import Listen
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.text import clean_line

KEY: Final = "ddptop/head"
"""The key in the store. It is the same in all generations: hosts may count these differently, and the agent of the
present rank 0 writes over what an earlier one has left."""
STARTS: Final = "ddptop/starts"
"""The key with the number of restarts of the group. The largest that a host has counted is that of all: one that joins
an elastic training later, or was made anew, has not seen the earlier ones."""
_SOON_S: Final = 0.5
_LATER_S: Final = 2.0
"""Seconds between two looks, before and after the first success: the observer of rank 0's host may be replaced."""
_WATCHED_S: Final = 5.0
"""Seconds between two looks after the observer of this host."""
_AGREES_S: Final = 60.0
"""Seconds in which the hosts have agreed on the number of restarts: they begin together."""
_COMES_S: Final = 300.0
"""Seconds after which a store that cannot be reached is given up."""
_LATE_S: Final = 30.0
"""Seconds after which it is told that the head is not found; the look-out goes on."""
_SETTLES_S: Final = 10.0
"""Seconds that a rank may go on after the end of the store: at the end of a training its ranks end one by one."""
_ENDS_S: Final = 3.0
"""Seconds for which the end of a script waits for the thread at most, where a call into the store hangs.

A call takes a millisecond; one that returns while the interpreter ends aborts the process, because Python ends the
thread inside of torch."""

_Tell = Callable[[str], None]


class Exchange:
    """Passes on where the head listens, as long as the store and the script live."""

    def __init__(
        self,
        directory: RunDir,
        *,
        head: bool,
        generation: int = 0,
        where: tuple[str, int],
        kind: Any,
        tell: _Tell,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            directory: of the run.
            head: True in the agent of rank 0.
            generation: restarts of the group, as they were counted here.
            where: host and port of the store.
            kind: `torch.distributed.TCPStore`.
            tell: gets the reason, in one line, why there is no link; an empty one where there is one again.
            watch: is called in the thread every few seconds, and looks after the observer of this host.
        """
        self._directory = directory
        self._head = head
        self._generation = generation
        self.where = where
        self._kind = kind
        self._tell = tell
        self._watch = watch
        self._owner = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddptop-meeting", daemon=True)
        self._passed: bytes | None = None
        """What was passed on last."""
        self._began = time.monotonic()
        self._complained = False

    @property
    def runs(self) -> bool:
        """True while the thread lives."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; raises `RuntimeError` where there can be no more."""
        atexit.register(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which must not be in torch while the interpreter ends."""
        if os.getpid() != self._owner:
            # A fork of the script ends: it has no thread, and the event may have been in use when it was forked.
            return
        self._stop.set()
        atexit.unregister(self.stop)
        if self._thread.is_alive():
            self._thread.join(_ENDS_S)

    def _run(self) -> None:
        try:
            self._meet()
        except Gone:
            self._note_end()
        except Exception as error:  # torch's own, and any other: the training goes on
            self._complain(f"the training's store at {self._place} fails: {error}")

    @property
    def _place(self) -> str:
        return "{}:{}".format(*self.where)

    def _meet(self) -> None:
        pause_s = _SOON_S
        while True:
            try:
                store = Store(self._kind, *self.where)
                break
            except OSError as error:
                if time.monotonic() - self._began > _COMES_S:
                    self._complain(f"the training's store at {self._place} cannot be reached: {error}")
                    return
            if self._stop.wait(pause_s):
                return
            pause_s = min(2 * pause_s, 10.0)
        with store:
            follow = self._publish if self._head else self._look
            watched_at = met_at = time.monotonic()
            while True:
                follow(store)
                if time.monotonic() - met_at < _AGREES_S:
                    self._count(store)
                if time.monotonic() - watched_at > _WATCHED_S:
                    self._watch()
                    watched_at = time.monotonic()
                if self._stop.wait(_SOON_S if self._passed is None else _LATER_S):
                    return
                store.check()

    def _publish(self, store: Store) -> None:
        listen = hosts.read_listen(self._directory.path, hosts.LISTEN)
        if listen is None:
            return
        value = msgspec.json.encode(listen)
        if value != self._passed:
            store.write(KEY, value)
            self._passed = value

    def _look(self, store: Store) -> None:
        value = store.read(KEY)
        if value is None or value == self._passed:
            if self._passed is None and time.monotonic() - self._began > _LATE_S:
                self._complain("no observer of rank 0's host listens: does rank 0 run under ddptop.agent?")
            return
        listen: Listen | None = None
        with contextlib.suppress(ValueError):
            listen = records.decode(value, Listen)
        own = hosts.read_listen(self._directory.path, hosts.LISTEN)
        if listen is None:
            self._complain(f"the training's store at {self._place} has no sound address of rank 0's host")
        elif own is None or own.server != listen.server:
            # Where it is the same, rank 0 is on this host.
            hosts.write_listen(self._directory.path, hosts.HEAD, listen)
            if self._complained:
                self._complained = False
                self._tell("")
        self._passed = value

    def _count(self, store: Store) -> None:
        """Agree with the other hosts on the number of restarts."""
        value = store.read(STARTS) or b""
        told = int(value) if value.isdigit() and len(value) < 8 else -1
        if told < self._generation:
            store.write(STARTS, b"%d" % self._generation)
        elif self._generation < told <= hosts.MOST_STARTS:
            hosts.write_starts(self._directory.path, told)
            self._generation = told

    def _note_end(self) -> None:
        if not self._stop.wait(_SETTLES_S) and (self._passed is None or self._head):
            # Who has found the head stays linked without the store.
            self._complain(f"the training's store at {self._place} has ended")

    def _complain(self, text: str) -> None:
        if not self._complained and not self._stop.is_set():
            self._complained = True
            self._tell(clean_line(text, 200))
