"""The folder of a profile before its traces are joined: a record by the observer, and a trace of each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from ddptop.agent.run.files import private
from ddptop.agent.text import Complaint

PARTS: Final = "parts.json"
TRACE: Final = "trace.json.gz"
SUMMARY: Final = "summary.json"
WAIT: Final = "wait"
"""The phase in which a rank waits in collectives."""
_LARGEST: Final = 64 << 20

# Not `wire`: this process needs no messages.
Rank = Annotated[int, msgspec.Meta(ge=0, lt=65_536)]
Step = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Phase = tuple[Nanoseconds, Nanoseconds, Annotated[str, msgspec.Meta(max_length=40)]]
"""Begin and end since the beginning of the step, and the name."""


class RankPart(msgspec.Struct, frozen=True):
    """One rank of a profile."""

    rank: Rank
    host: Annotated[str, msgspec.Meta(max_length=300)]
    file: Annotated[str, msgspec.Meta(pattern=r"\Arank-[0-9]{1,5}\.json\.gz\Z")]
    """Name of the trace that torch.profiler made in the rank."""
    offset_ns: Nanoseconds = 0
    """To be added to the times of the rank, so that they are on the clock of the first host."""
    error_ns: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] | None = None
    """By how much that may be wrong; None on the first host."""
    phases: list[tuple[Step, list[Phase]]] = []
    """Of each step, in the order of time."""


class Profile(msgspec.Struct, frozen=True):
    """A profile of some ranks over the same steps."""

    run: Annotated[str, msgspec.Meta(max_length=300)]
    steps: tuple[Step, Step]
    """The first and the last."""
    at: float
    """Seconds since the epoch."""
    ranks: Annotated[list[RankPart], msgspec.Meta(min_length=1)]
    asked: list[Rank] = []
    culprit: Rank | None = None
    """The rank that a verdict accuses."""
    peer: Rank | None = None
    """The rank with which it is compared."""
    unasked: bool = False
    """The observer has made it by itself."""


def read(folder: Path) -> Profile:
    """Return the record of the observer.

    Raises:
        Complaint: it is none.
        OSError: it cannot be read.
    """
    try:
        profile = msgspec.json.decode(private.read(folder / PARTS, _LARGEST), type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Complaint(f"{PARTS}: {problem}") from problem
    numbers = [part.rank for part in profile.ranks]
    if len(set(numbers)) < len(numbers) or len({part.file for part in profile.ranks}) < len(numbers):
        raise Complaint(f"{PARTS}: a rank is there twice")
    return profile
