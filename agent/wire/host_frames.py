"""The hosts of a run on several, found by their ranks, and how far their clocks are apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from ddptop.agent.wire.hosts import HostFrame

UNREPORTED: Final = "not reported yet"
"""The name that stands for the host of a rank on another host, nobody knows which, that has not come."""


class Clock(NamedTuple):
    """The clock of one host, compared with that of the head."""

    host: int
    """Number of the host among those shown."""
    offset_ns: int
    """That clock less the head's."""
    error_ns: int
    """The true offset is at most so far from that."""


class HostFrames(tuple[HostFrame, ...]):
    """The hosts of a run, in the order of their ranks; none of a run on one host."""

    by_rank: Mapping[int, int]
    """The number of the host of each rank that is known to be on one."""

    def __new__(cls, hosts: Iterable[HostFrame] = (), by_rank: Mapping[int, int] | None = None) -> HostFrames:
        """Hold these hosts; `by_rank` is given where the caller has it."""
        made = super().__new__(cls, hosts)
        if by_rank is None:
            by_rank = {rank: number for number, host in enumerate(made) for rank in host.ranks}
        made.by_rank = by_rank
        return made

    @property
    def several(self) -> bool:
        """True where ranks of more than one host are known: only then there is something to group."""
        return len(self) > 1

    def of(self, rank: int | None) -> HostFrame | None:
        """Return the host of a rank; None where it is not known, or the run has one host."""
        number = None if rank is None else self.by_rank.get(rank)
        return None if number is None else self[number]

    def name_of(self, rank: int | None) -> str:
        """Return the name of a rank's host where there are several; else nothing."""
        host = self.of(rank) if self.several else None
        return "" if host is None else host.host

    def clock(self, rank: int) -> Clock | None:
        """Return the clock of a rank's host; None where it is not known by how much it is off."""
        number = self.by_rank.get(rank)
        if number is None:
            return None
        host = self[number]
        if host.offset_ms is None or host.offset_error_ms is None:
            return None
        return Clock(number, round(host.offset_ms * 1e6), round(host.offset_error_ms * 1e6))

    def with_times(self, times: Mapping[int, Sequence[float | None]], wait: int) -> HostFrames:
        """Return the same with the times of their slowest ranks.

        Args:
            times: by rank, in ms: a step, and its phases.
            wait: where in these the waiting for others stands.
        """
        return HostFrames([_timed(host, times, wait) for host in self], self.by_rank)


NO_HOSTS: Final = HostFrames()


def _timed(host: HostFrame, times: Mapping[int, Sequence[float | None]], wait: int) -> HostFrame:
    known = [times[rank] for rank in host.ranks if rank in times]
    steps = [each[0] for each in known if each[0] is not None]
    own = [step - waited for each in known if (step := each[0]) is not None and (waited := each[wait]) is not None]
    return replace(host, step_ms=max(steps, default=None), own_ms=max(own, default=None))
