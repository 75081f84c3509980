"""Steps of several ranks on one clock, their collectives split into waiting for the last rank and the transfer. Pure.

Matches the records that ranks made of one step, on the clock of one machine, or on several clocks that are compared;
where these are not, or the ranks do not agree on what they called, nothing is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from ddptop.agent.wire import AlignedStep, Collective, Split, Step
from ddptop.agent.wire.frames import Clock

_PAIRWISE: Final = frozenset({"send", "recv"})
"""Not done by all ranks of a group, so there is no last one."""

Clocks = Callable[[int], Clock | None]
"""Returns the clock of a rank's host; None where it is not compared with the others."""


def align(steps: Mapping[int, Step], world: int, clocks: Clocks | None = None) -> list[AlignedStep]:
    """Return one step of some ranks on one clock.

    Where the records of some of the `world` ranks are missing, one of these may have come still later:
    then what is said of waiting is an estimate. So it is where the clocks of two machines do not show who came last.

    Args:
        steps: by rank, its record.
        world: number of ranks.
        clocks: the clocks of the machines; None where all ranks are on one.
    """
    known = {rank: None if clocks is None else clocks(rank) for rank in steps}
    compared = {rank: step for rank, step in steps.items() if clocks is None or known[rank] is not None}
    splits, error = split(compared, clocks), _error(known.values())
    if len(compared) < world:
        splits = {rank: [_unsure(each) for each in found] for rank, found in splits.items()}
    return [
        AlignedStep(
            rank, step, _start_of(step, known[rank]), rank in compared, error,
            tuple(splits.get(rank) or [None] * len(step.collectives)),
        )
        for rank, step in sorted(steps.items())
    ]  # fmt: skip


def _unsure(found: Split | None) -> Split | None:
    return None if found is None else msgspec.structs.replace(found, estimated=True)


def _error(clocks: Iterable[Clock | None]) -> int:
    """Return by how much moments on different machines may be wrong: the two worst errors together."""
    worst = {clock.host: clock.error_ns for clock in clocks if clock is not None}
    return sum(sorted(worst.values())[-2:]) if len(worst) > 1 else 0


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
        starts = {rank: _start_of(steps[rank], None if known is None else known[rank]) for rank in members}
        for matched in zip(*members.values(), strict=True):
            calls = {rank: steps[rank].collectives[index] for rank, index in zip(members, matched, strict=True)}
            splits = _split_one(calls, starts, known)
            for (rank, each), index in zip(splits.items(), matched, strict=True):
                result[rank][index] = each
    return result


def _start_of(step: Step, clock: Clock | None) -> int:
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
        begun = last - starts[rank]
        if begun > call.entered_ns + call.duration_ns:
            # Where a rank is done before the last one entered (the source of a broadcast), it waited for nobody.
            begun = call.entered_ns + min(call.queued_ns, call.duration_ns)
        splits[rank] = Split(begun, latest, estimated)
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
