"""Ranks that take turns being late: in every step another one keeps the rest waiting. Pure and bounded.

Somebody is the last in every step of equal ranks, too, but by a lead that is as often small as large and no larger than
what the others differ by.  Here one rank is far behind in nearly every step, the others arrive close together, and no
single rank accounts for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptop.agent.observer.judge.blocks import (
    BACKWARD,
    OWN_PHASES,
    SAMPLES,
    STARVED,
    UNEVEN,
    WAIT,
    WALL,
    Array,
    Numbers,
    Rows,
    median,
    middle,
)
from ddptop.agent.observer.judge.intervals import MOST_SHARE, place
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.text import in_ms
from ddptop.agent.wire import Verdict

BLOCKS: Final = 32
"""Blocks of steps that are held."""
LEAST_BLOCKS, LEAST_STEPS = 8, 60
"""So much is looked at before anything is said."""
LATELY_BLOCKS, LATELY_STEPS = 4, 40
"""So much tells whether it goes on."""
NAMED, KEPT = 0.15, 0.08
"""Share of the step from which it is told, and down to which it goes on to be told."""
LEAST_MS: Final = 2.0
REMAINS: Final = 0.3
"""A cost that has fallen below this part of the first one is over."""
NARROW: Final = 0.12
"""Share of the steps at most in which the last rank's distance is less than half the usual one. Where chance alone
decides who is last, the distance to the one before is distributed exponentially, and 29 % are."""
CLEAR: Final = 4.0
"""That distance has to be so many times what the others differ by, from each other and from step to step."""
ALONE: Final = 0.75
"""A rank that is the last in more than this share of the steps is a slow rank, and not one that takes its turn."""
TURNS: Final = 0.15
"""Steps at least, as a share, before which another rank was the last."""
PARTS: Final = 3
"""Parts of the time, in each of which all this has to be so: a slow rank that follows another one is no turn."""
ONE_PHASE: Final = 0.6
"""Share of the lead from which a phase is named."""


@dataclass(frozen=True, slots=True)
class _Lateness:
    """The last rank of each step."""

    steps: Numbers
    ends: Numbers
    last: Numbers
    """The rank with the most time of its own."""
    lead: Array
    """Its milliseconds above the middle of the others."""
    distance: Array
    """Its milliseconds above the last but one."""
    others: Array
    """Time of the last but one."""
    spread: Array
    """Median distance of the others from their middle."""
    phases: Array
    """steps x `OWN_PHASES`: what it took more than the others' mean."""
    busier: Array
    """1 where a larger batch than all others' explains it, else 0."""
    backward_seen: bool
    """True where any rank has called `backward`."""
    starved_ms: float
    """Time without a core, a step, of all ranks together: it can have been the last one's."""
    step_ms: float


@dataclass(frozen=True, slots=True)
class _Told:
    """The present accusation, as it was at first."""

    since_step: int
    since_at_ns: int
    cost: float
    phase: str | None


class Turns(Finder):
    """The last ranks of the newest blocks of steps."""

    kinds = ("taking_turns",)

    def __init__(self) -> None:
        super().__init__()
        self._blocks: deque[_Lateness] = deque(maxlen=BLOCKS)
        self._told: _Told | None = None

    def see(self, rows: Rows) -> None:
        """Take in the steps of a block."""
        if rows.table.shape[1] < 2 or np.isnan(rows.table[:, :, WAIT]).any():
            # Where a wait is not known, a rank's own time is not either.
            self._blocks.clear()
        else:
            self._blocks.append(_lateness(rows))
        if self._told is not None:
            recent = self._newest(LATELY_BLOCKS, LATELY_STEPS)
            if recent is None or not _goes_on(recent, self._told.cost):
                self._cease()
        blocks = self._newest_blocks(LEAST_BLOCKS, LEAST_STEPS)
        self.found = None
        # Of most groups the lead alone, which is quickly looked at, shows that there is nothing to tell.
        if blocks and (self._told is not None or _is_enough(np.concatenate([each.lead for each in blocks]), blocks)):
            recent = _joined(blocks)
            if self._told is None and _is_strong(recent):
                self._told = self._begin(recent)
            if self._told is not None:
                self.found = self._in_words(self._told, recent)

    def _newest(self, blocks: int, steps: int) -> _Lateness | None:
        """Return the newest blocks together, as many as it takes to reach both."""
        found = self._newest_blocks(blocks, steps)
        return _joined(found) if found else None

    def _newest_blocks(self, blocks: int, steps: int) -> list[_Lateness]:
        taken = 0
        for number, block in enumerate(reversed(self._blocks), 1):
            taken += len(block.steps)
            if number >= blocks and taken >= steps:
                return list(self._blocks)[-number:]
        return []

    def _begin(self, recent: _Lateness) -> _Told:
        cost = _cost(recent)
        known = _joined(list(self._blocks))
        at = int(np.argmax(np.cumsum((known.lead - cost / 2)[::-1])[::-1]))
        excess = recent.phases.mean(axis=0)
        phase = int(np.argmax(excess))
        clear = excess[phase] >= ONE_PHASE * np.maximum(excess, 0).sum()
        return _Told(int(known.steps[at]), int(known.ends[at]), cost, OWN_PHASES[phase] if clear else None)

    def _cease(self) -> None:
        assert self._told is not None
        known = _joined(list(self._blocks)) if self._blocks else None
        late: Sequence[int] = [] if known is None else np.flatnonzero(known.lead > self._told.cost / 2).tolist()
        # The last of several: a single step like that comes anywhere.
        self.ceased_at_ns = int(known.ends[late[-1]]) if known is not None and len(late) else self._told.since_at_ns
        self._told = None

    def _in_words(self, told: _Told, recent: _Lateness) -> Verdict:
        cost = max(0.0, _cost(recent))
        # Where not each step waits for all, the pace of the group is that of the ranks that are late.
        pace = max(recent.step_ms, middle(recent.others + recent.distance))
        share = min(cost / max(pace, 1e-9), MOST_SHARE)
        where = "" if told.phase is None else f", {place(told.phase, backward_seen=recent.backward_seen)}"
        agreeing = int((recent.lead > told.cost / 2).sum())
        return Verdict(
            0,
            self.kinds[0],
            f"the ranks take turns being late: {in_ms(cost)} a step ({share:.0%}){where},"
            f" since step {told.since_step:,}",
            told.since_at_ns,
            phase=told.phase,
            cost_ms=round(cost, 3),
            share=round(share, 4),
            since_step=told.since_step,
            confidence=round((agreeing + 1) / (len(recent.lead) + 2), 3),
        )


def _lateness(rows: Rows) -> _Lateness:
    phases, ranks = rows.table[:, :, :WAIT], rows.table.shape[1]
    own = phases.sum(axis=2)
    last, each = own.argmax(axis=1), np.arange(len(own))
    ordered = np.sort(own, axis=1)
    others = ordered[:, :-1]
    usual = median(others, 1)
    its_phases = phases[each, last]
    samples = rows.table[:, :, SAMPLES]
    typical = median(samples, 1)
    busier = (samples[each, last] >= samples.max(axis=1)) & (samples[each, last] > (1 + UNEVEN) * samples.min(axis=1))
    return _Lateness(
        steps=rows.steps,
        ends=rows.ends,
        last=last,
        lead=ordered[:, -1] - usual,
        distance=ordered[:, -1] - ordered[:, -2],
        others=ordered[:, -2],
        spread=median(np.abs(others - usual[:, None]), 1),
        phases=its_phases - (phases.sum(axis=1) - its_phases) / (ranks - 1),
        busier=(busier & (typical > 0)).astype(float),
        backward_seen=bool(phases[:, :, BACKWARD].any()),
        starved_ms=float(rows.table[:, :, STARVED].mean(axis=0).sum()),
        step_ms=float(rows.table[:, :, WALL].mean()),
    )


def _joined(blocks: Sequence[_Lateness]) -> _Lateness:
    def whole(name: str) -> Array:
        return np.concatenate([getattr(block, name) for block in blocks])

    return _Lateness(
        steps=np.concatenate([block.steps for block in blocks]),
        ends=np.concatenate([block.ends for block in blocks]),
        last=np.concatenate([block.last for block in blocks]),
        lead=whole("lead"),
        distance=whole("distance"),
        others=whole("others"),
        spread=whole("spread"),
        phases=whole("phases"),
        busier=whole("busier"),
        backward_seen=any(block.backward_seen for block in blocks),
        starved_ms=_mean([block.starved_ms for block in blocks], blocks),
        step_ms=_mean([block.step_ms for block in blocks], blocks),
    )


def _mean(values: Sequence[float], blocks: Sequence[_Lateness]) -> float:
    return float(np.average(values, weights=[len(block.steps) for block in blocks]))


def _cost(late: _Lateness) -> float:
    return middle(late.lead)


def _is_enough(lead: Array, blocks: Sequence[_Lateness]) -> bool:
    """Say whether steps with such a lead, those of these blocks, cost enough to be told."""
    # A rank that had no core to run on is late through nobody's fault.
    costs = middle(lead) - _mean([each.starved_ms for each in blocks], blocks)
    return costs >= max(NAMED * _mean([each.step_ms for each in blocks], blocks), LEAST_MS)


def _is_strong(late: _Lateness) -> bool:
    usual = middle(late.distance)
    if not _is_enough(late.lead, [late]) or usual < late.starved_ms or late.busier.mean() > 0.5:
        return False
    from_step_to_step = middle(np.abs(np.diff(late.others))) / np.sqrt(2)
    if usual < CLEAR * max(from_step_to_step, middle(late.spread)):
        return False
    if float((np.diff(late.last) != 0).mean()) < TURNS or float((late.distance < usual / 2).mean()) > NARROW:
        return False
    parts = zip(np.array_split(late.distance, PARTS), np.array_split(late.last, PARTS), strict=True)
    return all(
        middle(distance) >= 0.7 * usual and np.bincount(last).max() <= ALONE * len(last) for distance, last in parts
    )


def _goes_on(late: _Lateness, before: float) -> bool:
    costs = _cost(late) - late.starved_ms
    return bool(
        costs >= max(KEPT * late.step_ms, REMAINS * before)
        and float((late.distance < before / 4).mean()) < 0.5
        and np.bincount(late.last).max() <= (1 + ALONE) / 2 * len(late.last)
    )
