"""The diagnoses that are kept with a run: what a profile, a probe and a census of the memory have found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Generic, TypeVar

import msgspec

from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire.diagnoses.memory import MemoryUse
from ddptop.agent.wire.diagnoses.probed import Probe
from ddptop.agent.wire.incoming import Label, Line

F = TypeVar("F")


@dataclass(frozen=True)
class Kept(Generic[F]):
    """A diagnosis that is complete."""

    number: str
    """Name of its folder: `0001`."""
    file: Path
    """The trace of a profile, else the file that has what was found."""
    size: int
    """Bytes of that file."""
    found: F
    """Of the type that `FORMS` has."""


class Difference(msgspec.Struct, frozen=True):
    """One operator on both ranks. Times and calls are those of a step, times those of the step in the middle."""

    name: str
    culprit_ms: float
    """Own time: without the operators that it calls."""
    peer_ms: float
    difference_ms: float
    """By how much it takes longer on the first rank."""
    culprit_calls: float
    peer_calls: float
    culprit_shapes: list[str]
    """The arguments on which it spends the most time; empty where both ranks have the same, or they are unknown."""
    peer_shapes: list[str]
    culprit_range_ms: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest of the steps."""
    peer_range_ms: tuple[float, float] = (0.0, 0.0)


class Summary(msgspec.Struct, frozen=True):
    """The finding of a profile."""

    run: str
    steps: tuple[int, int]
    ranks: list[int]
    culprit: int | None
    """The rank that is compared, for which no verdict accuses where `accused` is false."""
    peer: int | None
    at: float
    """Seconds since the epoch."""
    sentences: list[str]
    operators: list[Difference]
    """The largest difference first."""
    left_out: int
    """Number of further operators."""
    accused: bool = True
    compared: str = ""
    """Which ranks are compared, and why these."""
    unasked: bool = False
    """The observer has made the profile by itself."""


class RankMemory(msgspec.Struct, frozen=True):
    """The census of one rank."""

    rank: int
    host: Label
    """Empty: not known."""
    cause: Line
    """The growth in a sentence, see `judge.growth`."""
    use: MemoryUse


class Censused(msgspec.Struct, frozen=True):
    """The censuses of some ranks at the same steps."""

    run: Label
    at: float
    """Seconds since the epoch."""
    accused: int | None
    """The rank whose memory grew by a verdict. None: there was none."""
    ranks: Annotated[tuple[RankMemory, ...], msgspec.Meta(min_length=1)]
    """The one that grew most first."""

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """The growth, the largest first: ranks, and the sentence that they have in common."""
        by_cause: dict[str, list[int]] = {}
        for each in self.ranks:
            by_cause.setdefault(each.cause, []).append(each.rank)
        return [(ranks_in_spans(ranks), cause) for cause, ranks in by_cause.items()]

    @property
    def finding(self) -> str:
        """The first of these, with its ranks where there are others."""
        (grew, said), *others = self.sentences
        return f"{grew}: {said}" if others else said


FORMS: Final[Mapping[str, type]] = {"profile": Summary, "probe": Probe, "memory": Censused}
"""By kind of diagnosis, what is kept of one."""
