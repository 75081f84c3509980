"""The ranks and phases that may hold a group back, each with a cost in ms over blocks of steps; pure arithmetic.

A suspicion is strong on the median over its windows, which a single hiccup does not move, and
goes on as long as the mean does, which a delay that comes only now and then keeps up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ddptop.agent.observer.judge.blocks import (
    OWN_PHASES,
    ROUNDS,
    SCALES,
    STARVED,
    UNEVEN,
    WAIT,
    Array,
    Block,
    Rows,
    Span,
    median,
    middle,
)

STEADY: Final = 4.0
"""The cost has to be so many times its own standard error."""
OUTSTANDING: Final = 6.0
"""Among so many ranks that somebody is always far out, a slow one leads by so many times the spread of the others:
the first of a thousand that scatter by chance is 3.2 times the spread ahead."""
REMAINS: Final = 0.3
"""A cost that has fallen below this part of the first one is over."""
ALL_OVER: Final = 0.5
"""A rank is slow all over, not in a phase, where the rest is slowed down by this part of what the worst phase is."""
LASTING: Final = 16
"""Blocks in a window from which on it shows what lasts: eight of them are a minute."""
ALL_OVER_LASTING: Final = 0.2
"""Share of the step from which that is told once it fills such windows: a neighbour on the same core
makes a fifth of it anywhere, and is gone again in less than a minute."""
ALL_OVER_AT_ONCE: Final = 0.45
"""Share of the step from which it is told without waiting for that: nearly twice the time of the others."""

TURNED: Final = 2.0
"""Another phase is to blame once it costs so many times what the one that was blamed does."""


@dataclass(frozen=True)
class Bounds:
    """When a kind of verdict is worth saying."""

    at_once: float
    """Share of the step from which it is named on the shortest windows."""
    named: float
    """Share of the step from which it is named once it fills longer ones."""
    lasting: float
    """The same of the longest: four minutes of it are no accident."""
    kept: float
    """Share of the step down to which the name stays."""
    least_ms: float
    weight: float = 1.0
    """Of a millisecond, where several kinds could be told: what nobody is to blame for is told last."""


# Two equal ranks on two cores of their own were seen to differ by a ninth of the step for several seconds.
BOUNDS: Final = {
    "slow_rank": Bounds(0.12, 0.07, 0.05, 0.03, 0.5),
    "unequal_work": Bounds(0.10, 0.10, 0.10, 0.05, 0.5),
    "input_bound": Bounds(0.35, 0.35, 0.35, 0.25, 1.0),
    "communication_bound": Bounds(0.60, 0.60, 0.60, 0.50, 3.0, weight=0.5),
}


@dataclass(frozen=True)
class Suspicion:
    """One possible verdict."""

    kind: str
    rank: int | None
    costs: Array
    """In ms a step, by window, oldest first."""
    step_ms: float
    span: Span
    all_over: bool = False
    """True for a rank that is slower in all it does, without having more to do."""
    outstanding: bool = True
    """False for a rank of a large group that is within what one of so many is by chance."""

    @cached_property
    def cost(self) -> float:
        """In ms a step."""
        return middle(self.costs[-self.span.windows :])

    @property
    def weight(self) -> float:
        """The weight against other suspicions."""
        return self.cost * BOUNDS[self.kind].weight

    def is_strong(self, scale: int) -> bool:
        """Say whether it is enough to be told, on windows of `scale` blocks."""
        bounds, recent = BOUNDS[self.kind], self.costs[-self.span.windows :]
        named = bounds.at_once if scale == 1 else bounds.lasting if scale == SCALES[-1] else bounds.named
        if self.all_over:
            named = ALL_OVER_LASTING if scale >= LASTING else ALL_OVER_AT_ONCE
        if not self.outstanding or self.cost < max(named * self.step_ms, bounds.least_ms):
            return False
        # From the median deviation, which one odd window does not blow up.
        error = 1.4826 * middle(np.abs(recent - self.cost)) / math.sqrt(len(recent))
        agreeing = int((recent > bounds.kept * self.step_ms).sum())
        return agreeing >= self.span.agreeing and self.cost >= STEADY * error

    def goes_on(self, before: float) -> bool:
        """Say whether it still costs enough, compared to what it cost when it was named."""
        level = max(BOUNDS[self.kind].kept * self.step_ms, REMAINS * before)
        return float(self.costs[-self.span.lately :].mean()) >= level

    @property
    def beginning(self) -> int:
        """Index of the window it began in: from there on its cost is above the half, as a whole."""
        above = self.costs - self.cost / 2
        return int(np.argmax(np.cumsum(above[::-1])[::-1]))

    @property
    def confidence(self) -> float:
        """Share of the windows since its beginning that agree, by Laplace's rule: more of them say more."""
        since = self.costs[self.beginning :]
        return (int((since > self.cost / 2).sum()) + 1) / (len(since) + 2)


def worst(view: Sequence[Block], scale: int, span: Span) -> Suspicion | None:
    """Return the strong suspicion that weighs most; it looks at the last windows, of `scale` blocks, alone."""
    suspicions = (suspect(kind, None, view[-span.windows :], span) for kind in BOUNDS)
    strong = (each for each in suspicions if each is not None and each.is_strong(scale))
    return max(strong, key=lambda each: each.weight, default=None)


def suspect(kind: str, rank: int | None, view: Sequence[Block], span: Span) -> Suspicion | None:
    """Return the suspicion of a kind, against `rank` or whoever is nearest to it; None where nothing is known."""
    recent = view[-span.windows :]
    step_ms = statistics.median([block.step_ms for block in recent])
    if kind == "input_bound":
        return Suspicion(kind, None, np.array([block.phases[:, 0].min() for block in view]), step_ms, span)
    if len(view[0].samples) < 2 or any(block.least_wait is None for block in recent):
        return None
    if kind == "communication_bound":
        return Suspicion(kind, None, np.array([block.least_wait or 0.0 for block in view]), step_ms, span)
    if kind == "unequal_work":
        return Suspicion(kind, None, np.array([block.uneven_ms for block in view]), step_ms, span)
    lead = leads(recent)
    if rank is None:
        rank = int(np.argmax(median(lead)))
        if rank != int(np.argmax(_newest(lead, span))):
            # Somebody else is the last to arrive by now.
            return None
    costs = _costs(view)[:, rank]
    found = Suspicion(kind, rank, costs, step_ms, span)
    bounds = BOUNDS[kind]
    if found.cost < max(bounds.lasting * step_ms, bounds.least_ms):
        # Nothing makes it strong: what follows costs more than all before.
        return found
    all_over = more_work(recent, rank, found.cost) is None and _is_all_over(recent, rank)
    outstanding = span is not ROUNDS or _distances(lead)[rank] >= OUTSTANDING
    return Suspicion(kind, rank, costs, step_ms, span, all_over, bool(outstanding))


def named_from(view: Sequence[Block], span: Span) -> float | None:
    """Return the ms a step from which a delay of any rank would be told on the last windows; None where it cannot be.

    It asks of a delay what `suspect` and `is_strong` ask of it, of the rank that has most of a lead to make up.
    """
    recent, bounds = view[-span.windows :], BOUNDS["slow_rank"]
    if len(view[0].samples) < 2 or any(block.least_wait is None for block in recent):
        return None
    costs, lead = _costs(recent), leads(recent)
    usual, step_ms = median(costs), statistics.median([block.step_ms for block in recent])
    error = 1.4826 * median(np.abs(costs - usual)) / math.sqrt(len(recent))
    least_agreeing, newest = np.sort(costs, axis=0)[-span.agreeing], _newest(lead, span)
    needed = [
        # Its step is longer by the delay.
        (bounds.at_once * step_ms - usual) / (1 - bounds.at_once),
        (bounds.kept * step_ms - least_agreeing) / (1 - bounds.kept),
        bounds.least_ms - usual,
        STEADY * error - usual,
        newest.max() - newest,
        median(lead).max() - median(lead),
    ]
    if span is ROUNDS:
        distances = _distances(lead)
        deviation = float(np.ptp(lead.mean(axis=0))) / max(1e-9, float(np.ptp(distances)))
        needed.append((OUTSTANDING - distances) * deviation)
    return float(np.max(needed))


def _costs(view: Sequence[Block]) -> Array:
    """Return, by window and rank, by how much a rank is above the middle of the others, in ms."""
    costs: Array = np.minimum(
        _above_others(np.array([block.own for block in view])), _above_others(np.array([block.fed for block in view]))
    )
    return costs


def _newest(lead: Array, span: Span) -> Array:
    """Return, by rank, the lead by which somebody is the last to arrive by now."""
    newest: Array = lead[-1] if span is not ROUNDS else lead[-span.lately :].mean(axis=0)
    return newest


def leads(view: Sequence[Block]) -> Array:
    """Return, by window and rank, by how much a rank's own time is above the middle of all, in ms.

    A rank that waited for a core did not have more to do: it is judged by what is left without that.
    """
    fed = np.array([block.fed for block in view])
    lead: Array = fed - median(fed, 1)[:, None]
    return lead


def _distances(lead: Array) -> Array:
    """Return, by rank, its mean lead in standard deviations of all ranks, which a few odd ones do not widen."""
    mean = lead.mean(axis=0)
    from_middle: Array = mean - middle(mean)
    return from_middle / max(1e-9, 1.4826 * middle(np.abs(from_middle)))


def nearest(view: Sequence[Block], most: int, blamed: int | None) -> tuple[list[int], list[int]]:
    """Return the ranks of a large group that may be slow, or the one that is blamed, and ordinary ones."""
    lead = leads(view)
    usual, step_ms = median(lead), statistics.median([block.step_ms for block in view])
    likely = (usual >= BOUNDS["slow_rank"].named * step_ms) & (_distances(lead) >= OUTSTANDING * 2 / 3)
    suspected = sorted(np.flatnonzero(likely).tolist(), key=lambda rank: -usual[rank])[:most]
    return suspected if blamed is None else [blamed], np.argsort(np.abs(usual), kind="stable")[: 2 * most].tolist()


def _above_others(values: Array) -> Array:
    """Return, by window and rank, by how much each rank is above the median of the other ranks."""
    ordered = np.sort(values, axis=1)
    half, odd = divmod(values.shape[1] - 1, 2)

    def other(place: int) -> Array:
        # Those behind a rank move up by one place where it is left out.
        return np.where(values <= ordered[:, [place]], ordered[:, [place + 1]], ordered[:, [place]])

    return values - (other(half) if odd else (other(half - 1) + other(half)) / 2)


def phase_of(suspicion: Suspicion, view: Sequence[Block]) -> str | None:
    """Return the phase that is to blame."""
    if suspicion.kind == "slow_rank" and suspicion.rank is not None:
        return OWN_PHASES[int(np.argmax(_excess(view[-suspicion.span.windows :], suspicion.rank)[0]))]
    return {"input_bound": "data", "communication_bound": "wait"}.get(suspicion.kind)


def turned(rank: int, phase: str | None, view: Sequence[Block], span: Span) -> Suspicion | None:
    """Return what another phase of a slow rank costs, where that is clearly more than the one that was blamed does."""
    excess, _ = _excess(view[-span.windows :], rank)
    at = int(np.argmax(excess))
    if phase is None or excess[at] < TURNED * max(0.0, float(excess[OWN_PHASES.index(phase)])):
        return None
    step_ms = statistics.median([block.step_ms for block in view[-span.windows :]])
    costs = _above_others(np.array([block.phases[:, at] for block in view]))[:, rank]
    return Suspicion("slow_rank", rank, costs, step_ms, span)


def _excess(view: Sequence[Block], rank: int) -> tuple[Array, Array]:
    """Return, by phase, by how much the rank is above the others, and what they usually spend in it."""
    phases = np.array([block.phases for block in view])
    others = median(np.delete(phases, rank, axis=1), 1)
    return median(phases[:, rank] - others), median(others)


def _is_all_over(view: Sequence[Block], rank: int) -> bool:
    excess, usual = _excess(view, rank)
    at = int(np.argmax(excess))
    rest = np.delete(excess, at).sum() / max(1e-9, np.delete(usual, at).sum())
    return bool(rest > ALL_OVER * excess[at] / max(1e-9, usual[at]))


def first_step(suspicion: Suspicion, view: Sequence[Block], rows: Iterable[Rows] = ()) -> int:
    """Return the step it began with.

    Within the window that it began in, the single steps tell it, or else the part of the window that it fills.
    """
    at, rank = suspicion.beginning, suspicion.rank
    if at > 0 and rank is not None:
        last = view[min(at + 1, len(view) - 1)].last_step
        near = [each for each in rows if each.steps[-1] >= view[at - 1].first_step and each.steps[0] <= last]
        if near:
            own = np.concatenate([each.table[:, :, :WAIT].sum(axis=2) for each in near])
            fed = own - np.concatenate([each.table[:, :, STARVED] for each in near])
            above = np.minimum(_above_others(own), _above_others(fed))[:, rank] - suspicion.cost / 2
            steps = np.concatenate([each.steps for each in near])
            return int(steps[np.argmax(np.cumsum(above[::-1])[::-1])])
    return _first_of_window(suspicion, view)


def _first_of_window(suspicion: Suspicion, view: Sequence[Block]) -> int:
    at, parts = suspicion.beginning, suspicion.costs / max(1e-9, suspicion.cost)
    if at > 0 and parts[at] > 0.9 and parts[at - 1] > 0.15:
        at -= 1
    block = view[at]
    missing = 1 - float(np.clip(parts[at], 0, 1))
    steps = block.last_step - block.first_step + 1
    return block.first_step + (round(missing * steps) if missing > 0.1 else 0)


def more_work(view: Sequence[Block], rank: int, cost: float) -> str | None:
    """Say whether larger batches explain why the rank is slow, and how much larger they are."""
    samples = np.array([block.samples for block in view])
    mine, others = float(samples[:, rank].mean()), middle(np.delete(samples, rank, axis=1).ravel())
    if others <= 0 or mine < (1 + UNEVEN) * others:
        return None
    work = statistics.median([middle(np.delete(block.phases[:, :3].sum(axis=1), rank)) for block in view])
    explained = (mine / others - 1) * work > cost / 2
    return f"{mine:.3g} samples a step against {others:.3g}" if explained else None
