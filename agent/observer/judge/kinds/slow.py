"""The rank that holds the group back, its phase and its cost: or no rank.

Pure and without a clock.  Wall times say nothing here, because a collective makes them equal
on all ranks; a rank's own time, its step without waiting, does not lie.  The slow rank is the
one whose own time is above the middle of the others' in window after window of steps, in
milliseconds, not in how often it is the last: among equals somebody is always last.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ddptop.agent.observer.judge.blocks import (
    BACKWARD,
    OWN_PHASES,
    STEPS,
    Block,
    Evidence,
    Rows,
    Span,
    median,
    middle,
)
from ddptop.agent.observer.judge.intervals import MOST_SHARE, place
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.observer.judge.kinds.suspects import (
    Suspicion,
    first_step,
    more_work,
    named_from,
    nearest,
    phase_of,
    suspect,
    turned,
    worst,
)
from ddptop.agent.observer.judge.kinds.turns import Turns
from ddptop.agent.observer.judge.large import Detail
from ddptop.agent.text import in_ms
from ddptop.agent.wire import Verdict

CLEARLY: Final = 1.25
"""A suspicion replaces the present blame where its cost is so many times as high."""


@dataclass(frozen=True)
class _Blame:
    """The present accusation, as it was at first."""

    kind: str
    rank: int | None
    scale: int
    since_step: int
    since_at_ns: int
    phase: str | None
    cost: float
    all_over: bool


class SlowRank(Finder):
    """Takes the steps of a group."""

    kinds = ("slow_rank", "unequal_work", "input_bound", "communication_bound")

    def __init__(self, world: int, span: Span = STEPS, detail: Detail | None = None) -> None:
        """Know nothing yet; `detail` where the records of all ranks are too many, and their summaries are judged."""
        super().__init__()
        self._span = span
        self.detail = detail
        self.evidence = Evidence(world, span)
        self._blame: _Blame | None = None
        self._blameless: dict[int, Block] = {}
        """By scale, the newest window up to which nothing was found; a long window stays the newest for many blocks."""
        self._found: Suspicion | None = None
        """The present blame, where it is not new, as it was found last."""
        self.turns = Turns()
        """Ranks that take turns at it."""

    def finding(self, now_ns: int) -> Verdict | None:
        """Return the rank or phase that holds the group back; None where there is none, or none is known."""
        blame = self._blame
        if blame is None:
            return None
        view = list(self.evidence.windows[blame.scale])
        found = self._found or suspect(blame.kind, blame.rank, view, self._span)
        assert found is not None
        rhythm, since_step = self._rhythm(blame)
        view = view[-self._span.windows :]
        kind, cost = blame.kind, found.cost
        share = cost / max(_pace(blame, found, view), 1e-9)
        amount = f"{in_ms(cost)} a step ({share:.0%})"
        since = f"since step {since_step:,}"
        more = None if blame.rank is None else more_work(view, blame.rank, cost)
        if blame.kind == "slow_rank" and more is not None:
            kind = "unequal_work"
            text = f"rank {blame.rank} has more work, {more}: it holds the group back by {amount}, {since}"
        elif blame.kind == "slow_rank":
            where = place(blame.phase, backward_seen=sees_backward(view))
            where = f"all phases, most in {where}" if blame.all_over else where
            often = "" if rhythm is None else f", {in_ms(rhythm.ms)} every {rhythm.every} steps"
            text = f"rank {blame.rank} holds the group back by {amount}: {where}{often}, {since}"
        elif blame.kind == "unequal_work":
            text = f"batch sizes differ between the ranks: waiting for the largest costs {amount}, {since}"
        elif blame.kind == "input_bound":
            text = f"all ranks wait for data: {amount}, {since}"
        else:
            text = f"communication bound: all ranks spend {amount} in collectives, {since}"
        return Verdict(
            0,
            kind,
            text,
            blame.since_at_ns,
            rank=blame.rank,
            phase=blame.phase,
            cost_ms=round(max(0.0, cost), 3),
            share=round(min(max(0.0, share), MOST_SHARE), 4),
            since_step=since_step,
            confidence=round(found.confidence, 3),
            every=None if rhythm is None else rhythm.every,
        )

    @property
    def named_from_ms(self) -> float | None:
        """Milliseconds a step from which a delay of one rank would be told; None where it would not, or one is."""
        view = self.evidence.windows[1]
        enough = len(view) >= self._span.windows
        return named_from(list(view), self._span) if enough and self._blame is None else None

    def suspects(self, most: int) -> tuple[list[int], list[int]]:
        """Return ranks that may be slow, or the one that is blamed alone, and as many ordinary ones or more."""
        view = self._views().get(1)
        if view is None or view[-1].least_wait is None:
            return [], []
        blamed = None if self._blame is None else self._blame.rank
        return nearest(view[-self._span.windows :], most, blamed)

    def deliberate(self) -> None:
        """Find out who holds the group back, once for each new block of the evidence."""
        if self.evidence.rows:
            self.turns.see(self.evidence.rows[-1])
        views = self._views()
        if 1 not in views:
            return
        blame = self._blame
        suspicion = None if blame is None else suspect(blame.kind, blame.rank, views[blame.scale], self._span)
        if blame is not None and (suspicion is None or not suspicion.goes_on(blame.cost)):
            self.ceased_at_ns = _end_of(suspicion, blame.cost, views[blame.scale])
            # What was before the recovery must not be found again on a longer scale.
            self.evidence.retain(self._span.windows)
            self._blame = suspicion = None
            views = self._views()
        before = self._blame
        if suspicion is None:
            for scale, view in views.items():
                if self._blameless.get(scale) is view[-1]:
                    continue
                if (found := worst(view, scale, self._span)) is not None:
                    self._blame = self._blamed(found, view, scale)
                    break
                self._blameless[scale] = view[-1]
        else:
            self._replace_if_worse(suspicion, views[1])
            self._follow_phase(views)
        if before is not None and self._blame is not before and self._blame is not None:
            self.ceased_at_ns = self._blame.since_at_ns
        self._found = suspicion if self._blame is before else None

    def _rhythm(self, blame: _Blame) -> tuple[Rhythm | None, int]:
        """Return how often the delay comes, and the step it began with, as far as single records tell more."""
        column, evidence = blame.rank, self.evidence
        if self.detail is not None:
            column, evidence = None if blame.rank is None else self.detail.places.get(blame.rank), self.detail.evidence
        if column is None or blame.kind != "slow_rank" or blame.phase is None:
            return None, blame.since_step
        since = blame.since_step
        if self.detail is not None:
            view = list(evidence.windows[1])
            seen = suspect("slow_rank", column, view, evidence.span) if len(view) >= evidence.span.windows else None
            if seen is not None and seen.beginning > 0:
                since = first_step(seen, view)
        rhythm = rhythm_of(evidence.rows, column, blame.phase, since)
        if rhythm is not None and abs(rhythm.first_step - since) <= 2 * rhythm.every:
            since = rhythm.first_step
        return rhythm, since

    def _views(self) -> dict[int, Sequence[Block]]:
        windows = self.evidence.windows.items()
        return {scale: list(view) for scale, view in windows if len(view) >= self._span.windows}

    def _replace_if_worse(self, now: Suspicion, view: Sequence[Block]) -> None:
        other = worst(view, 1, self._span)
        if other is not None and (other.kind, other.rank) != (now.kind, now.rank):
            same = suspect(now.kind, now.rank, view[-self._span.windows :], self._span)
            if same is None or other.weight > CLEARLY * same.weight:
                self._blame = self._blamed(other, view, 1)

    def _follow_phase(self, views: dict[int, Sequence[Block]]) -> None:
        """Blame another phase of the same rank once that is what costs, and say since when it does."""
        blame = self._blame
        if blame is None or blame.kind != "slow_rank" or blame.rank is None:
            return
        for scale in dict.fromkeys((1, blame.scale)):
            view = views[scale]
            found = turned(blame.rank, blame.phase, view, self._span)
            whole = suspect(blame.kind, blame.rank, view, self._span)
            if found is not None and found.is_strong(scale) and whole is not None:
                since = first_step(found, view)
                at_ns = self._time_of(since)
                self._blame = replace(self._blamed(whole, view, scale), since_step=since, since_at_ns=at_ns)
                return

    def _time_of(self, step: int) -> int:
        at_ns = self.evidence.time_of(step)
        return int(self.evidence.windows[1][-1].ends[-1]) if at_ns is None else at_ns

    def _blamed(self, found: Suspicion, view: Sequence[Block], scale: int) -> _Blame:
        suspicion = suspect(found.kind, found.rank, view, self._span)
        assert suspicion is not None
        since = first_step(suspicion, view, self.evidence.rows)
        return _Blame(
            kind=suspicion.kind,
            rank=suspicion.rank,
            scale=scale,
            since_step=since,
            since_at_ns=self._time_of(since),
            phase=phase_of(suspicion, view),
            cost=suspicion.cost,
            all_over=suspicion.all_over,
        )


def _end_of(suspicion: Suspicion | None, cost: float, view: Sequence[Block]) -> int | None:
    """Return the end of the last window in which it cost more than half of what it did."""
    above: Sequence[int] = [] if suspicion is None else np.flatnonzero(suspicion.costs > cost / 2).tolist()
    return int(view[above[-1]].ends[-1]) if above else None


def _pace(blame: _Blame, suspicion: Suspicion, view: Sequence[Block]) -> float:
    """Return the ms a step of the group: where not each step waits for all, those of the rank that holds it back."""
    if blame.rank is None:
        return suspicion.step_ms
    own = statistics.median(float(block.own[blame.rank]) for block in view[-suspicion.span.windows :])
    return max(suspicion.step_ms, own)


def sees_backward(view: Sequence[Block]) -> bool:
    """Say whether any rank has called `backward` in these blocks."""
    return any(block.phases[:, BACKWARD].any() for block in view)


LEAST: Final = 4
"""Times that it has to have come."""
REGULAR: Final = 0.8
"""Share of the distances that have to be the same."""
ACCOUNTS: Final = 0.6
"""Part of the whole cost that has to fall into these steps."""
ODD: Final = 2
"""So many longer stops for other reasons do not matter."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A delay that comes once in so many steps."""

    every: int
    ms: float
    """Each time."""
    first_step: int
    """The first time that is known."""


def rhythm_of(rows: Iterable[Rows], column: int, phase: str, since: int) -> Rhythm | None:
    """Return the rhythm in which a rank takes longer than the others in a phase; None where there is none.

    Args:
        rows: The newest steps, oldest first.
        column: The place of the rank in their tables.
        phase: One of `OWN_PHASES`.
        since: The step in which the delay began.
    """
    known = [each for each in rows if each.steps[-1] >= since]
    if not known or known[0].table.shape[1] < 2:
        return None
    at = OWN_PHASES.index(phase)
    spent = np.concatenate([each.table[:, :, at] for each in known])
    steps = np.concatenate([each.steps for each in known])
    more = spent[:, column] - median(np.delete(spent, column, axis=1), 1)
    if len(more) <= LEAST + ODD or int(np.diff(steps).min()) > 1:
        # Of steps that are not recorded one after the other, the rhythm of a delay is not known.
        return None
    level = float(np.partition(more, -ODD - 1)[-ODD - 1]) / 2
    late = np.flatnonzero(more > max(level, 0.0))
    if len(late) < LEAST or more[late].sum() < ACCOUNTS * more.sum():
        return None
    distances = np.diff(steps[late])
    every = int(middle(distances))
    if every < 2 or float((distances == every).mean()) < REGULAR:
        return None
    return Rhythm(every, middle(more[late]), int(steps[late[0]]))
