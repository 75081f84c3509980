"""Whose processes of a large group are looked up in the process table: some of them at a time. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

LOOKED_UP: Final = 256
"""Processes that are looked up at a time: 10 ms. Thousands, once a second, would cost more than all the rest."""


class Turns:
    """Takes ranks in turn."""

    def __init__(self, most: int = LOOKED_UP) -> None:
        """Take at most so many of them at a time."""
        self._most = most
        self._next = 0
        """The rank from which on the next ones are taken."""

    def spared(self, ranks: Collection[int]) -> frozenset[int]:
        """Return who of some ranks is not taken this time."""
        if len(ranks) <= self._most:
            return frozenset()
        order = sorted(ranks)
        first = bisect_left(order, self._next)
        order = order[first:] + order[:first]
        self._next = order[self._most]
        return frozenset(order[self._most :])
