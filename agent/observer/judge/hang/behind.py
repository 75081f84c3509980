"""Ranks that stand while others make steps: the others have left out a collective, in which these wait for good.

Such a run makes steps and yet hangs.  It is told only where nothing else explains it: until then each step had a call
of that group, and since then the ranks ahead have made many steps without any.  Rank 0 that trains something for itself
while the others stand in a barrier, an average every hundred steps and steps of unequal length are nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.judge.hang.looks import Look
from ddptop.agent.observer.judge.hang.mismatch import BARRIERS, is_usual
from ddptop.agent.observer.judge.hang.progress import ONE, Progress
from ddptop.agent.wire import GroupCalls, Inspection, OpenCall

BEHIND_S: Final = 3.0
"""Seconds without a step after which a rank is behind, while others make steps."""
STEPS: Final = 20
"""Steps by which the others are ahead of it."""
_MOST_ASKED: Final = 8
"""Ranks that are asked, of those behind and of those ahead each."""


@dataclass(frozen=True)
class Apart:
    """Ranks that stand, and ranks that make steps."""

    behind: tuple[int, ...]
    ahead: tuple[int, ...]
    since_ns: int
    """When the first of those behind made its last step, by the observer's clock."""


class Steps:
    """The newest step of each rank."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._newest: dict[int, tuple[int, int]] = {}
        """By rank, its step, and when that was heard."""

    def beat(self, beat: wire.Beat, now_ns: int) -> None:
        """Take in a heartbeat."""
        known = self._newest.get(beat.rank)
        if known is None or beat.step != known[0]:
            self._newest[beat.rank] = beat.step, now_ns

    def rest(self, now_ns: int) -> None:
        """Begin anew to count the time without a step."""
        self._newest = {rank: (step, now_ns) for rank, (step, _) in self._newest.items()}

    def apart(self, progress: Progress, now_ns: int) -> Apart | None:
        """Return who stands and who does not; None where all do the same."""
        if progress.held:
            return None
        newest = {rank: self._newest[rank] for rank in progress.present if rank in self._newest}
        fresh_ns = int(progress.patience_s * ONE)
        ahead = [rank for rank, (_, at_ns) in newest.items() if now_ns - at_ns < fresh_ns]
        most = max((newest[rank][0] for rank in ahead), default=0)
        behind = [
            rank
            for rank, (step, at_ns) in newest.items()
            if now_ns - at_ns >= max(BEHIND_S * ONE, fresh_ns) and 0 < step <= most - STEPS
        ]
        if not behind:
            return None
        least = min(newest[rank][0] for rank in behind)
        ahead = [rank for rank in ahead if newest[rank][0] >= least + STEPS]
        since_ns = min(newest[rank][1] for rank in behind)
        return Apart(tuple(behind[:_MOST_ASKED]), tuple(ahead[:_MOST_ASKED]), since_ns)


def leaving_out(looks: Sequence[Look], apart: Apart) -> frozenset[int]:
    """Return the ranks ahead that have left out the call in which one of those behind waits.

    Args:
        looks: at two moments at least, oldest first.
        apart: who was asked.
    """
    first, last = looks[0].ranks, looks[-1].ranks
    found: set[int] = set()
    for rank in apart.behind:
        before, after = first.get(rank), last.get(rank)
        if before is None or after is None or not (before.observed and after.observed) or before.step != after.step:
            continue
        for call in after.open:
            if _is_of_each_step(call, after) and any(_same(call, each) for each in before.open):
                found |= {
                    other
                    for other in apart.ahead
                    if other in first and other in last and _leaves_out(call, after, first[other], last[other])
                }
    return frozenset(found)


def _is_of_each_step(call: OpenCall, waiter: Inspection) -> bool:
    return call.op not in BARRIERS and call.number > waiter.step > 0 and is_usual(call, waiter)


def _leaves_out(call: OpenCall, waiter: Inspection, before: Inspection, after: Inspection) -> bool:
    """Say whether a rank has made many steps without that call, and without any other one of the group."""
    group = _group(waiter, call.group)
    if not (before.observed and after.observed) or (group and group.ranks and after.rank not in group.ranks):
        return False
    made = _made(after, call.group)
    return made < call.number and made == _made(before, call.group) and waiter.step + STEPS <= before.step < after.step


def _same(one: OpenCall, other: OpenCall) -> bool:
    return (one.op, one.group, one.number) == (other.op, other.group, other.number)


def _group(inspection: Inspection, name: str) -> GroupCalls | None:
    return next((group for group in inspection.groups if group.group == name), None)


def _made(inspection: Inspection, name: str) -> int:
    group = _group(inspection, name)
    return 0 if group is None else group.calls
