"""Where the head listens gets from its host's directory through the store to those of other hosts, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bases import marked

from ddptop.agent.rank.process import rendezvous
from ddptop.agent.rank.process.rendezvous import KEY, STARTS, Exchange
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import Listen
from ddptop.agent.run.rundir import RunDir

SECRETS = tuple(letter * 40 for letter in "abcd")


def listens(port: int, keys: tuple[str, ...] = SECRETS) -> Listen:
    """Return the record of a head."""
    return Listen("run-1a2b", "f" * 32, "node1", (f"tcp://10.0.0.1:{port}",), keys[0], keys[1], keys[2])


class Place:
    """A listening port with values behind it, in the place of a `TCPStore`."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._accepted: list[socket.socket] = []
        self.where = ("127.0.0.1", int(self._socket.getsockname()[1]))
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._accepted.append(self._socket.accept()[0])

    def client(self, host: str, port: int, **options: Any) -> Place:
        """Stand for the constructor of the client."""
        assert (host, port) == self.where
        assert options["is_master"] is False
        assert options["wait_for_workers"] is False
        return self

    def check(self, keys: list[str]) -> bool:
        self.calls += 1
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        self.calls += 1
        return self.values[key]

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def close(self) -> None:
        """End as a store does whose process ends."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for each in self._accepted:
            each.close()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look fifty times as often."""
    monkeypatch.setattr(rendezvous, "_SOON_S", 0.01)
    monkeypatch.setattr(rendezvous, "_LATER_S", 0.02)
    monkeypatch.setattr(rendezvous, "_SETTLES_S", 0.05)


@pytest.fixture
def place() -> Iterator[Place]:
    """A store that lives."""
    place = Place()
    yield place
    with contextlib.suppress(OSError):
        place.close()


@pytest.fixture
def folders() -> Iterator[list[Path]]:
    """Return the run's directories on two hosts."""
    with tempfile.TemporaryDirectory(dir="/tmp") as one, tempfile.TemporaryDirectory(dir="/tmp") as two:
        yield [marked(Path(one)), marked(Path(two))]


@pytest.fixture
def begun(place: Place) -> Iterator[Callable[..., tuple[Exchange, list[str]]]]:
    """Start an exchange that is ended with the test; return it, and what it tells."""
    all_of_them = []

    def begin(folder: Path, *, head: bool, generation: int = 0) -> tuple[Exchange, list[str]]:
        told: list[str] = []
        directory = RunDir(folder)
        made = Exchange(
            directory, head=head, generation=generation, where=place.where, kind=place.client, tell=told.append
        )
        made.start()
        all_of_them.append(made)
        return made, told

    yield begin
    for each in all_of_them:
        each.stop()
        assert not each.runs


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_found(folder: Path, listen: Listen) -> bool:
    """Say whether a host has found this head."""
    return hosts.read_listen(folder, hosts.HEAD) == listen


def test_the_address_gets_from_the_head_to_another_host(place: Place, folders: list[Path], begun: Any) -> None:
    """Whichever of the two comes first, and again when another observer has taken over."""
    _, told = begun(folders[1], head=False)
    _, told_at_head = begun(folders[0], head=True)
    for listen in (listens(1), listens(2)):
        hosts.write_listen(folders[0], hosts.LISTEN, listen)
        until(functools.partial(has_found, folders[1], listen))
    assert (folders[1] / "hosts" / hosts.HEAD).stat().st_mode & 0o777 == 0o600
    assert told == told_at_head == []


def test_what_a_later_head_says_replaces_what_an_earlier_one_has_left(
    place: Place, folders: list[Path], begun: Any
) -> None:
    """After an elastic restart the store may still have the address of a host that is gone."""
    place.values[KEY] = msgspec.json.encode(listens(1))
    begun(folders[1], head=False)
    until(lambda: hosts.read_listen(folders[1], hosts.HEAD) == listens(1))
    hosts.write_listen(folders[0], hosts.LISTEN, listens(2))
    begun(folders[0], head=True)
    until(lambda: hosts.read_listen(folders[1], hosts.HEAD) == listens(2))


def test_a_rank_beside_rank_0_does_not_link_its_host_with_itself(place: Place, folders: list[Path], begun: Any) -> None:
    """Two of a job's nodes may be on one host, with one run directory."""
    hosts.write_listen(folders[0], hosts.LISTEN, listens(1))
    begun(folders[0], head=True)
    begun(folders[0], head=False)
    until(lambda: KEY in place.values)
    calls = place.calls
    until(lambda: place.calls > calls + 6)
    assert hosts.read_listen(folders[0], hosts.HEAD) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[" * 10_000,
        b"x" * 1_000_000,
        msgspec.json.encode(listens(1)).replace(b"tcp://10.0.0.1:1", b"ipc:///run/x"),
        msgspec.json.encode(listens(1)).replace(b"a" * 40, b"a"),
    ],
)
def test_an_unsound_value_is_not_passed_on(place: Place, folders: list[Path], begun: Any, value: bytes) -> None:
    """It is told at most once, and a sound one that follows counts."""
    place.values[KEY] = value
    _, told = begun(folders[1], head=False)
    until(lambda: place.calls > 8)
    assert hosts.read_listen(folders[1], hosts.HEAD) is None
    assert len(told) <= 1
    place.values[KEY] = msgspec.json.encode(listens(1))
    until(lambda: hosts.read_listen(folders[1], hosts.HEAD) == listens(1))
    assert told[1:] in ([], [""])


@pytest.mark.parametrize("newcomer_is_head", [False, True])
def test_the_largest_count_of_starts_is_that_of_all(
    place: Place, folders: list[Path], begun: Any, newcomer_is_head: bool
) -> None:
    """A host that has joined later gets it, rank 0's host as well; one that has counted it is told nothing."""
    begun(folders[0], head=newcomer_is_head, generation=0)
    until(lambda: place.values.get(STARTS) == b"0")
    begun(folders[1], head=not newcomer_is_head, generation=2)
    newcomer, other = (hosts.Starts(folder) for folder in folders)
    until(lambda: newcomer.count() == 2)
    calls = place.calls
    until(lambda: place.calls > calls + 10)
    assert (newcomer.count(), other.count(), place.values[STARTS]) == (2, 0, b"2")


@pytest.mark.parametrize("value", [b"", b"-1", b"9" * 30, b"9999999", b"\xd9\xa3", b"nan", b"1 "])
def test_a_count_that_cannot_be_is_replaced_or_left(
    place: Place, folders: list[Path], begun: Any, value: bytes
) -> None:
    """Nothing but a plain number of a possible size is passed on."""
    place.values[STARTS] = value
    begun(folders[0], head=False, generation=1)
    until(lambda: place.calls > 10)
    assert hosts.Starts(folders[0]).count() == 0
    assert place.values[STARTS] in (b"1", b"9999999")


def test_a_store_that_dies_is_told_once(place: Place, folders: list[Path], begun: Any) -> None:
    """Where the head was not found before; the thread ends, and the store is not asked any more."""
    made, told = begun(folders[1], head=False)
    until(lambda: place.calls)
    place.close()
    until(lambda: not made.runs)
    assert told == [f"the training's store at 127.0.0.1:{place.where[1]} has ended"]


def test_the_end_of_a_training_is_not_told(place: Place, folders: list[Path], begun: Any) -> None:
    """The store goes with rank 0; a host that has found the head stays linked without it."""
    place.values[KEY] = msgspec.json.encode(listens(1))
    made, told = begun(folders[1], head=False)
    until(lambda: hosts.read_listen(folders[1], hosts.HEAD) is not None)
    place.close()
    until(lambda: not made.runs)
    assert told == []


def test_a_head_that_does_not_come_is_told(
    monkeypatch: pytest.MonkeyPatch, place: Place, folders: list[Path], begun: Any
) -> None:
    """The look-out goes on, and a late one is found."""
    monkeypatch.setattr(rendezvous, "_LATE_S", 0.05)
    _, told = begun(folders[1], head=False)
    until(lambda: told)
    place.values[KEY] = msgspec.json.encode(listens(1))
    until(lambda: len(told) == 2)
    assert told == ["no observer of rank 0's host listens: does rank 0 run under ddptop.agent?", ""]
    assert hosts.read_listen(folders[1], hosts.HEAD) == listens(1)


def test_a_store_that_never_comes_is_told(monkeypatch: pytest.MonkeyPatch, folders: list[Path], begun: Any) -> None:
    """Nothing listens at its port; after some minutes nobody tries any more."""
    monkeypatch.setattr(rendezvous, "_COMES_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = free.getsockname()
    told: list[str] = []
    made = Exchange(RunDir(folders[1]), head=False, where=where, kind=None, tell=told.append)
    made.start()
    until(lambda: not made.runs)
    assert told == [f"the training's store at 127.0.0.1:{where[1]} cannot be reached: [Errno 111] Connection refused"]


def test_a_store_that_hangs_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, place: Place, folders: list[Path]
) -> None:
    """A call into it may block for as long as its machine stands still."""
    hangs, goes_on, over = threading.Event(), threading.Event(), threading.Event()

    def check(keys: list[str]) -> bool:
        hangs.set()
        goes_on.wait()
        over.set()
        return False

    monkeypatch.setattr(place, "check", check)
    made = Exchange(RunDir(folders[1]), head=False, where=place.where, kind=place.client, tell=print)
    made.start()
    assert hangs.wait(30)
    made.stop()
    assert not over.is_set()
    goes_on.set()
    until(lambda: not made.runs)


def test_a_fork_of_the_script_ends_nothing(place: Place, folders: list[Path], begun: Any) -> None:
    """It may have been made while the thread held the lock of the event, for which it would wait for ever."""
    made, _ = begun(folders[1], head=False)
    with made._stop._cond:
        child = os.fork()
        if child == 0:
            made.stop()
            os._exit(0)
        until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
    assert made.runs


def test_the_observer_of_this_host_is_looked_after(
    monkeypatch: pytest.MonkeyPatch, place: Place, folders: list[Path]
) -> None:
    """As long as the store lives, on whichever host."""
    monkeypatch.setattr(rendezvous, "_WATCHED_S", 0.0)
    looked = threading.Event()
    made = Exchange(RunDir(folders[0]), head=True, where=place.where, kind=place.client, tell=print, watch=looked.set)
    made.start()
    assert looked.wait(30)
    made.stop()
