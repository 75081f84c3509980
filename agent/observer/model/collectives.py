"""Splits collectives into waiting for the last rank and the transfer after that. Pure.

Matches the records that all ranks made of one step, on the clock of one machine, or on several clocks that are
compared; where these are not, or the ranks do not agree on what they called, nothing is known.  Knows neither sockets
nor frames.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ddptop.agent.wire import Collective, Step
from ddptop.agent.wire.host_frames import Clock

WINDOW: Final = 64
"""Steps that a mean is taken over."""
LEAST: Final = 16
"""Steps of them that are looked at, where not all are."""
_RANKS_AT_ONCE: Final = 8
"""With more ranks than this only some of the steps are looked at, so that the cost stays the same."""
_PAIRWISE: Final = frozenset({"send", "recv"})
"""Not done by all ranks of a group, so there is no last one."""

Interval = tuple[int, int]
Clocks = Callable[[int], Clock | None]
"""Tells the clock of a rank's host; None where it is not compared with the others."""


class Split(NamedTuple):
    """One collective on one rank, in ns of the machine's wall clock; on several machines, of the head's."""

    op: str
    entered: int
    begun: int
    """When the last rank had entered it, and a worker of its backend had taken it up."""
    done: int
    estimated: bool
    last: int
    """The rank that entered it last, or whose backend took it up last."""


def split(steps: Mapping[int, Step], clocks: Clocks | None = None) -> dict[int, list[Split | None]]:
    """Return, by rank, the split of each collective in its record of one and the same step.

    The k-th collective of a group on one rank is the k-th on the others. None where the
    duration is not known, or where the ranks of the group differ in what they called, or where a clock of theirs is not
    compared. Ranks without `clocks` have one.
    """
    known = None if clocks is None else {rank: clocks(rank) for rank in steps}
    result: dict[int, list[Split | None]] = {rank: [None] * len(step.collectives) for rank, step in steps.items()}
    groups: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, step in steps.items():
        for index, call in enumerate(step.collectives):
            if call.op not in _PAIRWISE:
                groups[call.group][rank].append(index)
    for members in groups.values():
        called = {tuple(steps[rank].collectives[index].op for index in indices) for rank, indices in members.items()}
        if len(members) < 2 or len(called) > 1:
            continue
        if known is not None and None in [known[rank] for rank in members]:
            continue
        for matched in zip(*members.values(), strict=True):
            calls = {rank: steps[rank].collectives[index] for rank, index in zip(members, matched, strict=True)}
            splits = _split_one(
                calls, {rank: start_of(steps[rank], None if known is None else known[rank]) for rank in calls}, known
            )
            for (rank, each), index in zip(splits.items(), matched, strict=True):
                result[rank][index] = each
    return result


def start_of(step: Step, clock: Clock | None = None) -> int:
    """Return when a step began, in ns since the epoch, by the head's clock."""
    return step.end_at_ns - step.wall_ns - (0 if clock is None else clock.offset_ns)


def _split_one(
    calls: Mapping[int, Collective], starts: Mapping[int, int], clocks: Mapping[int, Clock | None] | None
) -> dict[int, Split | None]:
    if any(call.on_device for call in calls.values()):
        # The host is ahead of the device: when it called says nothing of when the device came to it.
        return dict.fromkeys(calls)
    ready = {rank: starts[rank] + call.entered_ns + call.queued_ns for rank, call in calls.items()}
    latest = max(ready, key=ready.__getitem__)
    last = ready[latest]
    estimated = any(call.estimated for call in calls.values())
    estimated = estimated or (clocks is not None and not _is_sure(ready, latest, clocks))
    splits: dict[int, Split | None] = {}
    for rank, call in calls.items():
        if call.duration_ns is None:
            splits[rank] = None
            continue
        entered = starts[rank] + call.entered_ns
        done = entered + call.duration_ns
        # Where a rank is done before the last one entered (the source of a broadcast), it waited for nobody.
        begun = last if last <= done else entered + min(call.queued_ns, call.duration_ns)
        splits[rank] = Split(call.op, entered, begun, done, estimated, latest)
    return splits


def _is_sure(ready: Mapping[int, int], latest: int, clocks: Mapping[int, Clock | None]) -> bool:
    """Say whether the last rank came after those of all other hosts by more than their clocks may be off."""
    mine = clocks[latest]
    for rank, at in ready.items():
        other = clocks[rank]
        if mine is None or other is None or other.host == mine.host:
            continue
        if ready[latest] - at <= mine.error_ns + other.error_ns:
            return False
    return True


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
            known = [each for each in splits if each is not None and each.op.startswith("all_reduce")]
            if known:
                transfer = _length((each.begun, each.done) for each in known)
                whole = _length((each.entered, each.done) for each in known)
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
