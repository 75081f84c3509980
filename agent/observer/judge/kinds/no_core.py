"""A rank that is ready to run and has no core for much of its step, while others wait for it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptop.agent.observer.judge.blocks import Evidence, Span
from ddptop.agent.observer.judge.intervals import NO_CORE, Finding

BEGINS: Final = 0.2
"""Part of a step without a core, beyond what is usual of the others, from which on it is told."""
GOES_ON: Final = 0.1


class NoCore:
    """Follows the evidence, and holds one finding at a time, or none."""

    def __init__(self, span: Span) -> None:
        """Know nothing yet."""
        self._span = span
        self._rank: int | None = None
        self._since = 0, 0
        """The step it began with, and when."""
        self.finding: Finding | None = None
        self.ceased_at_ns: int | None = None

    def follow(self, evidence: Evidence) -> None:
        """Look at the newest blocks."""
        view = list(evidence.windows[1])[-self._span.windows :]
        if len(view) < self._span.windows or view[-1].starved.size < 2:
            return
        step_ms = np.array([max(block.step_ms, 1e-9) for block in view])
        shares = np.minimum(1.0, np.array([block.starved for block in view]) / step_ms[:, None])
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
            self._rank = self.finding = None
            self.ceased_at_ns = int(view[-lately].ends[0])
            return
        share = float(shares[-lately:, rank].mean())
        self.finding = Finding(
            kind=NO_CORE,
            text=f"rank {rank} waits for a core ({share:.0%} of its step)",
            rank=rank,
            cost_ms=float((leads * step_ms).mean()),
            share=float(leads.mean()),
            since_step=self._since[0],
            since_at_ns=self._since[1],
        )


def _leads(shares: NDArray[np.floating[Any]], rank: int) -> NDArray[np.floating[Any]]:
    """Return by how much of a step a rank has been without a core for longer than the others, by block."""
    leads: NDArray[np.floating[Any]] = shares[:, rank] - np.median(np.delete(shares, rank, axis=1), axis=1)
    return leads
