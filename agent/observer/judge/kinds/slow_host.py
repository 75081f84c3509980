"""A host all of whose ranks hold the group back: what is wrong is the machine, and not one rank of it.

The hosts are judged as ranks are, each by its fastest rank; see `evidence.hosts`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ddptop.agent.observer.judge.evidence.blocks import Block, Evidence, Span
from ddptop.agent.observer.judge.evidence.hosts import HostsOfRanks, by_host
from ddptop.agent.observer.judge.finding import Finding, in_ms, place
from ddptop.agent.observer.judge.kinds.slow import CLEARLY, Judge, sees_backward

KIND: Final = "slow_host"
_FEWEST: Final = 2
"""Ranks of a host from which on it is blamed and not the rank."""


class SlowHost:
    """Follows the blocks of the ranks, and holds one finding or none."""

    def __init__(self, hosts: HostsOfRanks, span: Span) -> None:
        """Know nothing yet; `span` is that of the blocks."""
        self._hosts = hosts
        # A copy: what is asked of one rank among a thousand is not asked of a host among a few.
        self._span = replace(span)
        self._columns: list[list[int]] = []
        self._judge: Judge | None = None
        self._last: Block | None = None

    def follow(self, evidence: Evidence) -> None:
        """Take in the newest block, where it is a new one."""
        blocks = evidence.windows[1]
        if not blocks or blocks[-1] is self._last:
            return
        self._last = blocks[-1]
        columns = self._hosts.columns
        if columns is not self._columns:
            self._columns = columns
            self._judge = Judge(len(columns), self._span) if len(columns) > 1 else None
        if self._judge is not None:
            self._judge.take_round(by_host(blocks[-1], columns))

    @property
    def ceased_at_ns(self) -> int | None:
        """When what was found before ceased."""
        return None if self._judge is None else self._judge.ceased_at_ns

    @property
    def finding(self) -> Finding | None:
        """The host that holds the group back at this moment."""
        if self._judge is None or (found := self._judge.finding) is None:
            return None
        if found.kind != "slow_rank" or found.rank is None or found.cost_ms is None:
            return None
        ranks = self._columns[found.rank]
        if len(ranks) < _FEWEST:
            return None
        host = self._hosts.of(ranks[0])
        where = place(found.phase, backward_seen=sees_backward(self._judge.evidence.windows[1]))
        share = "" if found.share is None else f" ({found.share:.0%})"
        who = "both ranks" if len(ranks) == 2 else f"all {len(ranks)} ranks"
        text = (
            f"{host}: {who} hold the group back by {in_ms(found.cost_ms)} a step{share}: "
            f"most in {where}, since step {found.since_step or 0:,}"
        )
        return replace(found, kind=KIND, text=text, rank=None, host=host)

    def explains(self, rank: Finding) -> bool:
        """Say whether a slow rank is slow because its host is, and not more so than the others there."""
        found = self.finding
        if found is None or rank.kind != "slow_rank" or rank.rank is None:
            return False
        return self._hosts.of(rank.rank) == found.host and (rank.cost_ms or 0.0) <= CLEARLY * (found.cost_ms or 0.0)
