"""The rendezvous of the observers of a run on several hosts, by the store that the training's own ranks use.

One rank of each host takes part: the agent of rank 0 writes the address of its host's observer into the store, the
others read it there.  The observer has not the environment of a rank, so that all that it needs of it is written down
(`hosts.Rendezvous`).

torch writes a warning with a stack trace to stderr, which is the user's output, where a connection cannot be made or
has ended.  So a second connection, on which nothing is said, is made first and looked at before each call: the
kernel ends it together with the other.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

import msgspec

from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import observing
from ddptop.agent.run import hosts, records
from ddptop.agent.run.hosts import KEY_FILE_VARIABLE, LISTEN_VARIABLE, Listen, Rendezvous
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.text import clean_line

_WRAPPED: Final = 16
"""Stores around a store at most."""


class Participant:
    """The part of one rank."""

    def __init__(
        self,
        directory: RunDir,
        position: Position,
        environment: Mapping[str, str],
        faults: Faults,
        tell: Callable[[str, str], None],
        generation: int = 0,
    ) -> None:
        """Prepare; nothing is read or written.

        Args:
            directory: of the run.
            position: of this rank.
            environment: of this process.
            faults: receives failures.
            tell: publishes a line and its level as an event of the rank.
            generation: restarts of its group, as they were counted on this host.
        """
        self._directory = directory
        self._position = position
        self._environment = environment
        self._faults = faults
        self._tell_event = tell
        self._generation = generation
        self._owner = os.getpid()
        self._due = 0 in (position.local_rank, position.rank) and position.may_spread(environment)
        self._record = Rendezvous(
            master=environment.get("MASTER_ADDR", ""),
            listen=environment.get(LISTEN_VARIABLE, ""),
            key_file=os.path.abspath(file) if (file := environment.get(KEY_FILE_VARIABLE, "")) else "",
        )
        self._exchange: Exchange | None = None
        self._starts = hosts.Starts(directory.path) if position.may_spread(environment) else None

    def begin(self) -> None:
        """Write down what the observer needs, before it starts; a failure is counted as a fault."""
        if self._due:
            self._write(self._record)

    def prepare(self, torch: Any) -> None:
        """Meet the others before the ranks do, where the store is that of torchrun and exists already."""
        if self._due and self._environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            port = self._environment.get("MASTER_PORT", "")
            if self._record.master and port.isdecimal():
                self._meet((self._record.master, int(port)), torch.distributed.TCPStore)

    def joined(self, torch: Any) -> None:
        """Meet the others in the store in which the ranks have just met."""
        if not self._due or os.getpid() != self._owner:
            return
        if self._position.local_world is None and len(self._directory.members()) >= self._position.world:
            # All have enrolled by now, and all are here.
            self._due = False
            return
        where = _place_of(torch.distributed.distributed_c10d._get_default_store())
        if where is not None:
            if not self._record.master:
                self._record = Rendezvous(where[0], self._record.listen, self._record.key_file)
                self._write(self._record)
            self._meet(where, torch.distributed.TCPStore)
        elif not self._record.key_file:
            self._tell(f"its ranks do not meet in a TCPStore, and there is no {KEY_FILE_VARIABLE}")

    def counted(self) -> int:
        """Return the number of restarts as another host counts them that has seen more of them; otherwise 0."""
        return 0 if self._starts is None else self._starts.count()

    def end(self) -> None:
        """Stop; where a call into the store hangs, that takes some seconds."""
        if self._exchange is not None and os.getpid() == self._owner:
            self._exchange.stop()

    def _meet(self, where: tuple[str, int], kind: Any) -> None:
        if self._exchange is not None and self._exchange.runs:
            # The script's group may have another store than torchrun, and the first serves as well.
            return
        self._exchange = Exchange(
            self._directory,
            head=self._position.rank == 0,
            generation=self._generation,
            where=where,
            kind=kind,
            tell=self._tell,
            watch=functools.partial(observing.replace_lost, self._directory, self._faults),
        )
        self._exchange.start()

    def _tell(self, why: str) -> None:
        """Note why the hosts are not linked, for all who read the run directory, and as an event."""
        record = Rendezvous(self._record.master, self._record.listen, self._record.key_file, why)
        self._write(record)
        if why:
            self._tell_event(f"the hosts of this run are not linked: {why}", "warning")

    def _write(self, record: Rendezvous) -> None:
        with self._faults.noted("writing down how the hosts meet"):
            hosts.write_rendezvous(self._directory.path, record)


def _place_of(store: Any) -> tuple[str, int] | None:
    """Return host and port of a store, or of the one inside it; None where that is no TCPStore."""
    for _ in range(_WRAPPED):
        host, port = getattr(store, "host", None), getattr(store, "port", None)
        if isinstance(host, str) and isinstance(port, int):
            return host, port
        store = getattr(store, "underlying_store", None)
    return None


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
"""Seconds after which the head is said not to be found; the look-out goes on."""
_SETTLES_S: Final = 10.0
"""Seconds that a rank may go on after the end of the store: at the end of a training its ranks end one by one."""
_ENDS_S: Final = 3.0
"""Seconds for which the end of a script waits for the thread at most, where a call into the store hangs.

A call takes a millisecond; one that returns while the interpreter ends aborts the process, because Python ends the
thread inside of torch."""


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
        tell: Callable[[str], None],
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
        self._thread = threading.Thread(target=self._run, name="ddptop-hosts", daemon=True)
        self._passed: bytes | None = None
        """The address that was passed on last."""
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


_CONNECTS_S: Final = 2.0
_ANSWERS_S: Final = 5.0
LONGEST: Final = 16 << 10
"""Bytes of a value that is read."""


class Gone(OSError):
    """The store has ended, or cannot be reached any more."""


class Store:
    """A client of a `TCPStore`; only the thread that has made it may use it.

    A call takes a round trip; it may block for longer where the machine of the store stands still.
    """

    def __init__(self, kind: Any, host: str, port: int) -> None:
        """Connect.

        Args:
            kind: `torch.distributed.TCPStore`, which must not be imported here: the script may be importing it.
            host: the machine of the store.
            port: its port.

        Raises:
            OSError: nothing listens there.
            RuntimeError: it is no such store.
        """
        self._witness = socket.create_connection((host, port), timeout=_CONNECTS_S)
        try:
            self._witness.setblocking(False)
            # Without waiting for workers it counts for none, and the ranks wait for as many as before.
            self._store = kind(
                host,
                port,
                is_master=False,
                timeout=datetime.timedelta(seconds=_ANSWERS_S),
                wait_for_workers=False,
            )
        except BaseException:
            self._witness.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._witness.close()
        self._store = None

    def check(self) -> None:
        """Raise `Gone` if the store has ended."""
        try:
            if not self._witness.recv(1, socket.MSG_PEEK):
                raise Gone("the store has ended")
        except BlockingIOError:
            return
        except Gone:
            raise
        except OSError as error:
            raise Gone(str(error)) from error

    def read(self, key: str) -> bytes | None:
        """Return the value of a key, None where it has none, or one that is too long; raises `Gone`."""
        self.check()
        # Without this question first, `get` would wait for the key.
        if not self._store.check([key]):
            return None
        value = self._store.get(key)
        return value if isinstance(value, bytes) and len(value) <= LONGEST else None

    def write(self, key: str, value: bytes) -> None:
        """Set a key; raises `Gone`."""
        self.check()
        self._store.set(key, value)
