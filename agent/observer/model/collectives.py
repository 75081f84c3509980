"""Mean waiting and transfer in all-reduces, from the steps that all ranks have recorded. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from ddptop.agent.record.history.aligned import Clocks, split
from ddptop.agent.wire import Step

WINDOW: Final = 64
"""Steps that a mean is taken over."""
LEAST: Final = 16
"""Steps of them that are looked at, where not all are."""
_RANKS_AT_ONCE: Final = 8
"""With more ranks than this only some of the steps are looked at, so that the cost stays the same."""

Interval = tuple[int, int]


class Alignment:
    """Holds what the ranks' records of whole steps say of the all-reduces."""

    def __init__(self, world: int) -> None:
        # A power of two, like the distance of the steps whose collectives are timed: both have to be met.
        self._every = 1 << max(0, (world // _RANKS_AT_ONCE).bit_length() - 1)
        self._window = max(LEAST, WINDOW // self._every)
        self._recent: dict[int, deque[Interval]] = {}
        self._taken: deque[Mapping[int, Step]] = deque(maxlen=self._window)
        """Steps that nobody has asked about since."""
        self.clocks: Clocks | None = None
        """The clocks of the ranks, where these are on several machines."""

    def take(self, together: Mapping[int, Step]) -> None:
        """Take in the records that all ranks made of one step."""
        if not any(step.step % self._every or not _is_timed(step) for step in together.values()):
            self._taken.append(together)

    def _split(self, together: Mapping[int, Step]) -> None:
        for rank, splits in split(together, self.clocks).items():
            known = [
                (call.entered_ns, each.begun_ns, call.entered_ns + (call.duration_ns or 0))
                for call, each in zip(together[rank].collectives, splits, strict=True)
                if each is not None and call.op.startswith("all_reduce")
            ]
            if known:
                transfer = _length((begun, done) for _, begun, done in known)
                whole = _length((entered, done) for entered, _, done in known)
                # Buckets overlap: what is moving for one is not counted as waiting for another.
                self._recent.setdefault(rank, deque(maxlen=self._window)).append((whole - transfer, transfer))

    def means_ms(self, rank: int) -> tuple[float, float] | None:
        """Return a rank's mean waiting and transfer in all-reduces per step, in ms."""
        while self._taken:
            self._split(self._taken.popleft())
        recent = self._recent.get(rank)
        if not recent:
            return None
        waits, transfers = zip(*recent, strict=True)
        return sum(waits) / len(waits) / 1e6, sum(transfers) / len(transfers) / 1e6


def _is_timed(step: Step) -> bool:
    return any(call.duration_ns is not None for call in step.collectives)


def _length(intervals: Iterable[Interval]) -> int:
    """Return the length of the union."""
    total, reached = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
