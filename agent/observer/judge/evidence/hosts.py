"""On which host each rank runs, and the steps of the ranks brought together by host. Pure and bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddptop.agent.observer.judge.evidence.blocks import Block
from ddptop.agent.wire import MOST_HOSTS


class HostsOfRanks:
    """The hosts of the ranks, as far as they are known."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._host: dict[int, str] = {}
        self._columns: list[list[int]] | None = None

    def take(self, rank: int, host: str) -> None:
        """Take in that a rank runs on a host."""
        if 0 <= rank < self._world and host and self._host.get(rank) != host:
            self._host[rank] = host
            self._columns = None

    def of(self, rank: int) -> str:
        """Return the host of a rank; empty where that of some rank is not known, and where there is one host."""
        return self._host.get(rank, "") if len(self.columns) > 1 else ""

    @property
    def columns(self) -> list[list[int]]:
        """By host, in the order of their first ranks, its ranks; none before those of all ranks are known."""
        if self._columns is None:
            ranks: dict[str, list[int]] = {}
            for rank in sorted(self._host):
                ranks.setdefault(self._host[rank], []).append(rank)
            known = len(self._host) == self._world and len(ranks) <= MOST_HOSTS
            self._columns = list(ranks.values()) if known else []
        return self._columns


def by_host(block: Block, columns: list[list[int]]) -> Block:
    """Return a block with one row for each host: that of its fastest rank.

    So a host is slow where all its ranks are, and one slow rank does not make it so.
    """
    fastest = np.array([ranks[int(np.argmin(block.fed[ranks]))] for ranks in columns])
    return replace(
        block,
        phases=block.phases[fastest],
        own=block.own[fastest],
        fed=block.fed[fastest],
        starved=block.starved[fastest],
        samples=block.samples[fastest],
    )
