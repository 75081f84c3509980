"""Censuses of the memory of ranks that are kept with a run, live or ended, for onlookers."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddptop.agent import wire
from ddptop.agent.run.files import private
from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire.incoming import Label, Line, cleaned

FILE: Final = "memory.json"
_LARGEST: Final = 16 << 20


class RankMemory(msgspec.Struct, frozen=True):
    """The census of one rank."""

    rank: int
    host: Label
    """Empty: not known."""
    cause: Line
    """What grew in a sentence, see `judge.growth`."""
    use: wire.MemoryUse


class Censused(msgspec.Struct, frozen=True):
    """The censuses of some ranks at the same steps."""

    run: Label
    at: float
    """Seconds since the epoch."""
    accused: int | None
    """The rank whose memory grew by a verdict. None: there was none."""
    ranks: tuple[RankMemory, ...]
    """The one that grew most first."""

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """What grew, the most first: ranks, and the sentence that they have in common."""
        by_cause: dict[str, list[int]] = {}
        for each in self.ranks:
            by_cause.setdefault(each.cause, []).append(each.rank)
        return [(ranks_in_spans(ranks), cause) for cause, ranks in by_cause.items()]

    @property
    def finding(self) -> str:
        """The first of these, with its ranks where there are others."""
        (grew, said), *others = self.sentences
        return f"{grew}: {said}" if others else said


class Kept(NamedTuple):
    """A census that is there."""

    number: str
    folder: Path
    census: Censused


def read(folder: Path) -> Kept | None:
    """Return the census in a folder, None where there is none that can be read."""
    try:
        census = msgspec.json.decode(private.read(folder / FILE, _LARGEST), type=Censused)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Kept(folder.name, folder, cleaned(census)) if census.ranks else None
