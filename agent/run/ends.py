"""The ends of the ranks' processes as the observer saw them: time, status, and the kernel's count of kills for memory.

A rank that is killed reports nothing itself, and the status of a process is gone as soon as its parent has read it: the
observer writes both down at once, so that the report is the same after the observer has gone, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ddptop.agent.run import records
from ddptop.agent.run.files import marks, private
from ddptop.agent.wire import Rank
from ddptop.agent.wire.incoming import Line

LATE: Final = "counted as finished"
"""The last words of the warning that a process died after its script had finished."""
_FILE: Final = "ends.json"
_MOST: Final = 2000
"""Ends that are recorded at most, the earliest: a record has a bounded size."""


class Death(msgspec.Struct, frozen=True):
    """The end of the process of one rank, as it looks from outside."""

    rank: Rank
    at_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    status: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None = None
    """Exit code, negative for a signal. None: the system did not give it."""
    out_of_memory: bool | None = None
    """True where the kernel counted an out-of-memory kill. None: not known, or not killed."""
    evidence: Line = ""
    """On what that rests."""


class _Deaths(msgspec.Struct, frozen=True):
    generation: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    """Restart count of the group when these processes began."""
    deaths: tuple[Death, ...]


def encode(generation: int, deaths: Collection[Death]) -> bytes:
    """Return the ends of a generation's ranks as a record, the earliest of too many."""
    earliest = sorted(deaths, key=lambda death: death.at_ns)[:_MOST]
    return msgspec.json.encode(_Deaths(generation, tuple(earliest)))


def decode(content: bytes, generation: int) -> dict[int, Death]:
    """Return the ends in a record, by rank; none where it is unreadable, or of another generation."""
    with contextlib.suppress(ValueError):
        found = records.decode(content, _Deaths)
        if found.generation == generation:
            return {death.rank: death for death in found.deaths}
    return {}


def write(folder: Path, generation: int, deaths: Collection[Death]) -> None:
    """Write the ends of a generation's ranks in place of those recorded before.

    Raises:
        OSError: they cannot be written.
    """
    private.replace(marks.owned(folder / _FILE), encode(generation, deaths))


def read(folder: Path, generation: int) -> dict[int, Death]:
    """Return the recorded ends of a generation's ranks, by rank; none where there is no readable record of them."""
    with contextlib.suppress(OSError):
        return decode(private.read(folder / _FILE), generation)
    return {}
