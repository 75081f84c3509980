"""The collectives of a process group, counted on this rank: ranks that made the same calls have the same count."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ddptop.agent.rank.records.stamps import Call

RECENT: Final = 16
"""Newest calls of a group that are remembered."""
LONGEST: Final = 12
"""Characters of the name of a group."""


def name_of(group: Any) -> str:
    """Return the name of a process group, the same on all its ranks; long ones are hashes, and are cut."""
    return str(group.group_name)[:LONGEST]


class Counted:
    """The calls of one group so far; those to a single other rank are not counted."""

    __slots__ = ("calls", "group", "recent")

    def __init__(self, group: Callable[[], Any]) -> None:
        """Begin to count; `group` returns the process group, None once it is gone."""
        self.group = group
        self.calls = 0
        self.recent: deque[Call] = deque(maxlen=RECENT)
        """The newest, the newest last."""
