"""The diagnoses that are made on request and kept with a run, and the ranks of one where nobody says them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent.run.diagnoses import DIAGNOSES as DIAGNOSES
from ddptop.agent.text import ranks_in_spans

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.agent.wire.diagnoses.kept import Kept


MOST_RANKS: Final = 8
"""Ranks that are diagnosed at most, where nobody says which."""


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
