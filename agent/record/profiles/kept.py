"""The profiles that are kept with a run, live or ended, for onlookers."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.record import numbered
from ddptop.agent.record.profiles.parts import SUMMARY, TRACE
from ddptop.agent.record.profiles.summary import Summary
from ddptop.agent.run.files import private

_LARGEST: Final = 16 << 20
MOST_BYTES: Final = 2 << 30
"""Bytes of the traces that are kept with a run."""


class Kept(NamedTuple):
    """A profile that is there."""

    number: str
    trace: Path
    size: int
    """Bytes of the trace."""
    summary: Summary


def read(folder: Path) -> Kept | None:
    """Return the profile in a folder, None where it is not complete."""
    try:
        size = (folder / TRACE).stat().st_size
        summary = msgspec.json.decode(private.read(folder / SUMMARY, _LARGEST), type=Summary)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Kept(folder.name, folder / TRACE, size, summary)


def bound(folder: Path) -> None:
    """Remove profiles of a run until `MOST_BYTES` are left: first those that nobody has asked for, the oldest first.

    The newest stays, however large it is.
    """
    found = numbered.kept(folder, read)
    total = sum(each.size for each in found)
    for each in sorted(found[1:], key=lambda each: (not each.summary.unasked, int(each.number))):
        if total <= MOST_BYTES:
            return
        if numbered.remove(folder / each.number):
            total -= each.size
