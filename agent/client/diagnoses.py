"""The diagnoses that are made on request and kept with a run, and the ranks and steps of one where nobody says them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ddptop.agent.text import ranks_in_spans

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.agent.wire.diagnoses.kept import Kept


MOST_RANKS: Final = 8
"""Ranks that are diagnosed at most, where nobody says which."""
HELD_MS: Final = (3_000, 5_000)
"""`wire.CENSUS_MS`: this page does without the messages, which take long to load, because `--help` needs it."""


class Kind(NamedTuple):
    """A kind of diagnosis, where nobody says more than its name."""

    none: str
    """The line where none is kept with a run."""
    steps: int = 1
    """Steps over which it is made."""
    most_steps: int = 50
    """Steps at most, where somebody says how many."""
    culprit: str = "the accused rank and an ordinary one"
    """The ranks that a verdict points to, in words."""


KINDS: Final[Mapping[str, Kind]] = {
    "profile": Kind("no profile is kept with this run", steps=3),
    "probe": Kind("no probe is kept with this run"),
    "memory": Kind(
        "no look at the memory is kept with this run", steps=3, most_steps=1000, culprit="the rank whose memory grows"
    ),
}
"""By the name of its action, as keys, verbs and messages have it."""


def first_ranks(world: int) -> tuple[int, ...]:
    """Return the ranks that are diagnosed where none is accused and nobody says which."""
    return tuple(range(min(world, MOST_RANKS)))


def left_out(ranks: Iterable[int], world: int) -> str:
    """Say which ranks are left out because nobody has named them; empty where none is."""
    if world <= MOST_RANKS or tuple(sorted(ranks)) != first_ranks(world):
        return ""
    return f"{ranks_in_spans(range(MOST_RANKS, world))}: without --ranks at most {MOST_RANKS} are looked at"


def read(kind: str, folder: Path) -> Kept[Any] | None:
    """Return the diagnosis in a folder, None where it is not complete."""
    from ddptop.agent.record import diagnoses

    return diagnoses.read(kind, folder)
