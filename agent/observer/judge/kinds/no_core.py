"""A rank that is ready to run and has no core for much of its step, and ranks that take the cores from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptop.agent.observer.judge.blocks import Block, Evidence, Span
from ddptop.agent.observer.judge.crowding import crowding
from ddptop.agent.observer.judge.intervals import NO_CORE
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.observer.judge.kinds.hosts import HostsOfRanks
from ddptop.agent.wire import Beat, Verdict

BEGINS: Final = 0.2
"""Part of a step without a core, beyond what is usual of the others, from which on it is told."""
GOES_ON: Final = 0.1
BUSY: Final = 0.6
"""Part of the cores that ranks use themselves from which on it is they who take them from each other."""


class NoCore(Finder):
    """Follows the evidence."""

    kinds = (NO_CORE,)

    def __init__(self, hosts: HostsOfRanks, span: Span) -> None:
        super().__init__()
        self._hosts, self._span = hosts, span
        self._beats: dict[int, Beat] = {}
        self._crowd = ""
        """The threads of ranks that wait for cores which they take from each other; empty where they do not."""
        self._rank: int | None = None
        self._since = 0, 0
        """The step it began with, and when."""

    def take(self, beat: Beat) -> None:
        self._beats[beat.rank] = beat

    def follow(self, evidence: Evidence) -> None:
        view = list(evidence.windows[1])[-self._span.windows :]
        if len(view) < self._span.windows or view[-1].starved.size < 2:
            return
        step_ms = np.array([max(block.step_ms, 1e-9) for block in view])
        shares = np.minimum(1.0, np.array([block.starved for block in view]) / step_ms[:, None])
        if (self._crowd or self._rank is None) and self._has_crowd(shares, evidence, view):
            return
        if self._rank is None:
            rank = int(shares.mean(axis=0).argmax())
            leads = _leads(shares, rank)
            if int((leads >= BEGINS).sum()) < self._span.agreeing:
                return
            first = view[int((leads >= BEGINS).argmax())].first_step
            self._rank, self._since = rank, (first, evidence.time_of(first) or int(view[-1].ends[-1]))
        rank, lately = self._rank, self._span.lately
        leads = _leads(shares, rank)
        if float(leads[-lately:].mean()) < GOES_ON:
            self._rank = self.found = None
            self.ceased_at_ns = int(view[-lately].ends[0])
            return
        share = float(shares[-lately:, rank].mean())
        self.found = Verdict(
            0,
            NO_CORE,
            f"rank {rank} waits for a core ({share:.0%} of its step)",
            self._since[1],
            rank=rank,
            cost_ms=float((leads * step_ms).mean()),
            share=float(leads.mean()),
            since_step=self._since[0],
        )

    def _has_crowd(self, shares: NDArray[np.floating[Any]], evidence: Evidence, view: Sequence[Block]) -> bool:
        """Say whether all ranks wait for cores that the threads of all take from each other, and tell it."""
        least, lately = shares.min(axis=1), self._span.lately
        if not self._crowd:
            if int((least >= BEGINS).sum()) < self._span.agreeing or not (crowd := self._crowding()):
                return False
            first = view[int((least >= BEGINS).argmax())].first_step
            self._crowd, self._since = crowd, (first, evidence.time_of(first) or int(view[-1].ends[-1]))
        if float(least[-lately:].mean()) < GOES_ON:
            self._crowd, self.found = "", None
            self.ceased_at_ns = int(view[-lately].ends[0])
            return False
        share = float(shares[-lately:].mean())
        self.found = Verdict(
            0,
            NO_CORE,
            f"ranks wait for cores that they take from each other ({share:.0%} of a step): {self._crowd}",
            self._since[1],
            cost_ms=share * view[-1].step_ms,
            share=share,
            since_step=self._since[0],
        )
        return True

    def _crowding(self) -> str:
        told = [(self._hosts.of(beat.rank), beat.threads, beat.cpu_percent) for beat in self._beats.values()]
        known = [(host, threads, cpu or 0.0) for host, threads, cpu in told if threads is not None]
        # Where other processes have the cores these ranks get little of them.
        cores = {(host, threads.on): threads.cores for host, threads, _ in known}
        if sum(cpu for _, _, cpu in known) < BUSY * 100 * sum(cores.values()):
            return ""
        return crowding((host, threads) for host, threads, _ in known)


def _leads(shares: NDArray[np.floating[Any]], rank: int) -> NDArray[np.floating[Any]]:
    """Return by how much of a step a rank has been without a core for longer than the others, by block."""
    leads: NDArray[np.floating[Any]] = shares[:, rank] - np.median(np.delete(shares, rank, axis=1), axis=1)
    return leads
