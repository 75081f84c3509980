"""The records of the other hosts in a run directory: the address of the head, the hosts, their ranks.

The files are in `<run>/hosts/`. What they say came from other hosts: no process that they name may get a signal, and no
path in them is one of this host.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from ddptop.agent.run import records
from ddptop.agent.run.files import marks, private
from ddptop.agent.run.records import Member
from ddptop.agent.wire import HostFrame
from ddptop.agent.wire.incoming import Label, Line, Name, Verbatim

LISTEN: Final = "listen.json"
"""Where the head on this host listens, written by it."""
HEAD: Final = "head.json"
"""Where the head on another host listens, written by an agent of this host that has found it."""
KEY_FILE_VARIABLE: Final = "DDPTOP_KEY_FILE"
"""Environment variable with a file of at least 32 bytes, alike on all hosts and readable by its owner only: the
observers make their keys from it where the ranks do not meet in a TCPStore."""
LISTEN_VARIABLE: Final = "DDPTOP_LISTEN"
"""Environment variable with `HOST:PORT` or `HOST`, where the observer of rank 0's host listens. With a store it counts
on that host only; with a key file all hosts need it, with a port."""
_RENDEZVOUS: Final = "meeting.json"
_FAR: Final = "far.json"
_HOSTS: Final = "hosts.json"
_STARTS: Final = "starts.json"
_FOLDER: Final = "hosts"

MOST_STARTS: Final = 1 << 20
"""Restarts of a group that are believed at most."""

_Key = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]
"""A CURVE key in Z85."""
_Address = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^tcp://[][0-9A-Za-z.:%_-]+:[0-9]{1,5}$")]


class Listen(msgspec.Struct, frozen=True):
    """Where the head of a run listens for the observers of other hosts, and with which keys."""

    run: Name
    run_id: Label
    host: Label
    addresses: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=16)]
    """Addresses of ZeroMQ; the most likely one first."""
    server: _Key
    """Public key of the head."""
    client_public: _Key
    client_secret: _Key
    """The key pair of all branches of this run: who has it may join."""


class FarRanks(msgspec.Struct, frozen=True):
    """The records of ranks on other hosts."""

    members: tuple[Member, ...] = ()


class Rendezvous(msgspec.Struct, frozen=True):
    """How the observers of the hosts are to find each other, by the environment of a rank here.

    The observer has another environment: it may have been started by anybody who looks on.
    """

    master: Label = ""
    """MASTER_ADDR: the host of rank 0, in the network of the training. Empty: not known."""
    listen: Label = ""
    """DDPTOP_LISTEN: `HOST:PORT` or `HOST` for the head. Empty: a free port, in the network of `master`."""
    key_file: Verbatim = ""
    """DDPTOP_KEY_FILE, an absolute path on this host. Empty: none."""
    why: Line = ""
    """The reason why this host has not found the head. Empty: none is known."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the rank that this record has, for what reads an environment."""
        told = {"MASTER_ADDR": self.master, LISTEN_VARIABLE: self.listen, KEY_FILE_VARIABLE: self.key_file}
        return {name: value for name, value in told.items() if value}


class _Starts(msgspec.Struct, frozen=True):
    generation: Annotated[int, msgspec.Meta(ge=0, le=MOST_STARTS)]


class _Hosts(msgspec.Struct, frozen=True):
    hosts: tuple[HostFrame, ...] = ()


_Kind = TypeVar("_Kind")


def read_listen(run: Path, name: str) -> Listen | None:
    """Return what `LISTEN` or `HEAD` says; None where there is no sound record."""
    return _read(run, name, Listen)


def write_listen(run: Path, name: str, listen: Listen) -> None:
    """Write `LISTEN` or `HEAD`; raises `OSError`."""
    _write(run, name, listen)


def read_rendezvous(run: Path) -> Rendezvous | None:
    """Return how the observers are to meet; None where no rank of a run on several hosts has written it."""
    return _read(run, _RENDEZVOUS, Rendezvous)


def write_rendezvous(run: Path, rendezvous: Rendezvous) -> None:
    """Record how the observers are to meet; raises `OSError`."""
    _write(run, _RENDEZVOUS, rendezvous)


def bare(member: Member) -> Member:
    """Return the record of a rank without the names of files on its host: of its log only whether there is one."""
    return msgspec.structs.replace(member, pub="", cmd="", log=None if member.log is None else "")


def far_file(run: Path) -> Path:
    """Return the file with the records of the ranks on other hosts, which only a run on several has."""
    return run / _FOLDER / _FAR


def far_members(run: Path) -> dict[int, Member]:
    """Return the records of the ranks on other hosts, by rank, without addresses and paths."""
    found = _read(run, _FAR, FarRanks)
    if found is None:
        return {}
    return {member.rank: bare(member) for member in found.members}


def write_far(run: Path, ranks: FarRanks) -> None:
    """Replace the records of the ranks on other hosts; raises `OSError`."""
    _write(run, _FAR, ranks)


def write_starts(run: Path, generation: int) -> None:
    """Record how often the group was started again, as a host counts it that has seen it all; raises `OSError`."""
    _write(run, _STARTS, _Starts(generation))


class Starts:
    """How often the group was started again, where another host has counted more starts than this one."""

    def __init__(self, run: Path) -> None:
        """Read nothing yet."""
        self._run = run
        self._file = run / _FOLDER / _STARTS
        self._seen: tuple[int, int] | None = None
        self._counted = 0

    def count(self) -> int:
        """Return that number, 0 where none was written; costs one call of the system where nothing has changed."""
        try:
            found = os.stat(self._file)
        except OSError:
            return self._counted
        seen = found.st_ino, found.st_mtime_ns
        if seen != self._seen:
            self._seen = seen
            told = _read(self._run, _STARTS, _Starts)
            self._counted = self._counted if told is None else told.generation
        return self._counted


def read_hosts(run: Path) -> tuple[HostFrame, ...]:
    """Return the hosts of a run as its observer has recorded them last; none of a run on one host."""
    found = _read(run, _HOSTS, _Hosts)
    return () if found is None else found.hosts


def write_hosts(run: Path, hosts: tuple[HostFrame, ...]) -> None:
    """Record the hosts of a run; raises `OSError`."""
    _write(run, _HOSTS, _Hosts(hosts))


def forget(run: Path) -> None:
    """Forget the other hosts and their ranks, as the group was started again without some of them; raises `OSError`."""
    if (run / _FOLDER).is_dir():
        write_hosts(run, ())
        write_far(run, FarRanks())


def may_train(member: Member, gone: Set[int]) -> bool:
    """Say whether a rank on another host may still train, by its record and by the ranks that are `gone`."""
    # One that was not reported to the observer yet is none of those.
    return member.ended is None and member.rank not in gone


def gone_ranks(known: Iterable[HostFrame]) -> frozenset[int]:
    """Return the ranks on other hosts that are gone, by what is known of the hosts."""
    return frozenset(rank for each in known for rank in (each.ranks if each.state == "gone" else each.gone))


def _read(run: Path, name: str, kind: type[_Kind]) -> _Kind | None:
    with contextlib.suppress(OSError, ValueError):
        return records.decode(private.read(run / _FOLDER / name), kind)
    return None


def _write(run: Path, name: str, record: object) -> None:
    file = marks.owned(run / _FOLDER / name)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    private.replace(file, msgspec.json.encode(record))


def next_id(run_id: str) -> str:
    """Return the id of a run that repeats another one, which is the same on all hosts."""
    return hashlib.sha256(f"{run_id} again".encode()).hexdigest()[:32]
