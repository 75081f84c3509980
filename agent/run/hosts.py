"""What a run directory knows of the other hosts of its run: where the head listens, the hosts, their ranks.

The files are in `<run>/hosts/`. What they say came from other hosts: no process that they name may get a signal, and no
path in them is one of this host.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from ddptop.agent.run import records
from ddptop.agent.run.files import private
from ddptop.agent.run.records import Member
from ddptop.agent.wire import HostState
from ddptop.agent.wire.incoming import Label, Name

LISTEN: Final = "listen.json"
"""Where the head on this host listens, written by it."""
HEAD: Final = "head.json"
"""Where the head on another host listens, written by an agent of this host that has found it."""
_FAR: Final = "far.json"
_HOSTS: Final = "hosts.json"
_FOLDER: Final = "hosts"

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


class _Hosts(msgspec.Struct, frozen=True):
    hosts: tuple[HostState, ...] = ()


_Kind = TypeVar("_Kind")


def read_listen(run: Path, name: str) -> Listen | None:
    """Return what `LISTEN` or `HEAD` says; None where there is no sound record."""
    return _read(run, name, Listen)


def write_listen(run: Path, name: str, listen: Listen) -> None:
    """Write `LISTEN` or `HEAD`; raises `OSError`."""
    _write(run, name, listen)


def far_members(run: Path) -> dict[int, Member]:
    """Return the records of the ranks on other hosts, by rank, without addresses and paths."""
    found = _read(run, _FAR, FarRanks)
    if found is None:
        return {}
    return {member.rank: msgspec.structs.replace(member, pub="", cmd="", log=None) for member in found.members}


def write_far(run: Path, ranks: FarRanks) -> None:
    """Replace the records of the ranks on other hosts; raises `OSError`."""
    _write(run, _FAR, ranks)


def read_hosts(run: Path) -> tuple[HostState, ...]:
    """Return the hosts of a run as its observer has recorded them last; none of a run on one host."""
    found = _read(run, _HOSTS, _Hosts)
    return () if found is None else found.hosts


def write_hosts(run: Path, hosts: tuple[HostState, ...]) -> None:
    """Record the hosts of a run; raises `OSError`."""
    _write(run, _HOSTS, _Hosts(hosts))


def may_train(member: Member, known: tuple[HostState, ...]) -> bool:
    """Say whether a rank on another host may still train, by its record and by what is known of the hosts."""
    if member.ended is not None:
        return False
    # None of the hosts has a rank of which nobody has told the observer yet.
    return not any(member.rank in (each.ranks if each.state == "gone" else each.gone) for each in known)


def _read(run: Path, name: str, kind: type[_Kind]) -> _Kind | None:
    with contextlib.suppress(OSError, ValueError):
        return records.decode(private.read(run / _FOLDER / name), kind)
    return None


def _write(run: Path, name: str, record: object) -> None:
    (run / _FOLDER).mkdir(mode=0o700, exist_ok=True)
    private.replace(run / _FOLDER / name, msgspec.json.encode(record))
