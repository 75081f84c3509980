"""A host all of whose ranks hold the group back: what is wrong is the machine, or its network, and not one rank of it.

The hosts are judged as ranks are, each by its fastest rank.  Pure and bounded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from ddptop.agent.observer.judge.blocks import Block, Evidence, Span
from ddptop.agent.observer.judge.intervals import place
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.observer.judge.kinds.slow import CLEARLY, SlowRank, sees_backward
from ddptop.agent.text import in_ms
from ddptop.agent.wire import MOST_HOSTS, HostFrame, Verdict

_FEWEST: Final = 2
"""Ranks of a host from which on it is blamed and not the rank."""


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


class SlowHost(Finder):
    """Follows the blocks of the ranks."""

    kinds = ("slow_host",)

    def __init__(self, hosts: HostsOfRanks, span: Span) -> None:
        """Know nothing yet; `span` is that of the blocks."""
        super().__init__()
        self._hosts = hosts
        # A copy: what is asked of one rank among a thousand is not asked of a host among a few.
        self._span = replace(span)
        self._columns: list[list[int]] = []
        self._judge: SlowRank | None = None
        self._last: Block | None = None

    def follow(self, evidence: Evidence) -> None:
        blocks = evidence.windows[1]
        if not blocks or blocks[-1] is self._last:
            return
        self._last = blocks[-1]
        columns = self._hosts.columns
        if columns is not self._columns:
            self._columns = columns
            self._judge = SlowRank(len(columns), self._span) if len(columns) > 1 else None
        if self._judge is not None:
            self._judge.evidence.add(by_host(blocks[-1], columns))
            self._judge.deliberate()
        self.ceased_at_ns = None if self._judge is None else self._judge.ceased_at_ns

    def finding(self, now_ns: int) -> Verdict | None:
        """Return the host that holds the group back at this moment."""
        if self._judge is None or (found := self._judge.finding(now_ns)) is None:
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
        return msgspec.structs.replace(found, kind=self.kinds[0], text=text, rank=None, host=host)

    def explains(self, host: Verdict, rank: Verdict) -> bool:
        """Say whether a slow rank is slow because its host is, and not more so than the others there."""
        if rank.kind != "slow_rank" or rank.rank is None:
            return False
        return self._hosts.of(rank.rank) == host.host and (rank.cost_ms or 0.0) <= CLEARLY * (host.cost_ms or 0.0)


FAR: Final = 4.0
"""A host is far where the way to it and back takes so many times as long as to the others, or as it once did."""
LEAST_MS: Final = 1.0
"""Milliseconds there and back from which on the way is a reason."""


class Links:
    """The round trips between the observers of a run's hosts."""

    def __init__(self) -> None:
        self._rtt: dict[str, float] = {}
        self._least: dict[str, float] = {}

    def take(self, hosts: Iterable[HostFrame]) -> None:
        """Take in what is known of the hosts now."""
        self._rtt = {
            each.host: each.rtt_ms
            for each in hosts
            if each.state == "linked" and each.rtt_ms is not None and math.isfinite(each.rtt_ms)
        }
        least = {host: min(rtt, self._least.get(host, rtt)) for host, rtt in self._rtt.items()}
        self._least = least

    @property
    def remark(self) -> str:
        """Name the host to which the way is much longer than to others, or than it was; empty where there is none."""
        if not self._rtt:
            return ""
        host, rtt = max(self._rtt.items(), key=lambda pair: pair[1])
        others = [each for name, each in self._rtt.items() if name != host]
        usual = statistics.median(others) if others else self._least[host]
        if rtt < max(LEAST_MS, FAR * usual):
            return ""
        known = f"to others {in_ms(usual)}" if others else f"at best {in_ms(usual)}"
        return f"the network to {host} is slow: {in_ms(rtt)} there and back, {known}"
