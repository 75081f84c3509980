"""Who holds the group back, in which phase, at what cost: or nobody.

Pure and without a clock.  Wall times say nothing here, because a collective makes them equal
on all ranks; a rank's own time, its step without waiting, does not lie.  The slow rank is the
one whose own time is above the middle of the others' in window after window of steps, in
milliseconds, not in how often it is the last: among equals somebody is always last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddptop.agent.wire import Beat, Step
from ddptop.tui.drawing.units import size
from ddptop.tui.model.frame import Verdict
from ddptop.tui.model.judge.evidence import Block, Evidence
from ddptop.tui.model.judge.memory_growth import Growth, Memory
from ddptop.tui.model.judge.suspects import WINDOWS, Suspicion, first_step, more_work, phase_of, suspect, turned, worst

CLEARLY: Final = 1.25
"""What is blamed now is replaced by what weighs so many times as much."""

_IN_WORDS: Final = {
    "data": "data loading",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer step",
    "other": "between the phases (logging, checkpoint, evaluation)",
}


@dataclass(frozen=True)
class _Blame:
    """What is being told, as it was when it was first told."""

    kind: str
    rank: int | None
    scale: int
    since_step: int
    phase: str | None
    cost: float
    all_over: bool


class Judge:
    """Takes the records of a group and holds one verdict at a time, or none."""

    def __init__(self, world: int) -> None:
        self._world = world
        self.restart()

    def restart(self) -> None:
        """Forget everything: the ranks begin anew."""
        self._evidence = Evidence(self._world)
        self._blame: _Blame | None = None
        self._memory = [Memory() for _ in range(self._world)]
        self._growths: list[Growth | None] = [None] * self._world
        self._of_steps: Verdict | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of this moment; None where nothing holds the group back, or nothing is known."""
        return self._of_steps or _growing(self._growths)

    def take(self, together: dict[int, Step]) -> None:
        """Take in the records that all ranks made of one step; in the order of the steps."""
        if self._evidence.take(together):
            self._of_steps = self._deliberate()

    def beat(self, beat: Beat) -> None:
        """Take in a heartbeat."""
        memory = self._memory[beat.rank]
        if memory.take(beat):
            self._growths[beat.rank] = memory.growth()

    def _deliberate(self) -> Verdict | None:
        views = self._views()
        if 1 not in views:
            return None
        suspicion = (
            None if self._blame is None else suspect(self._blame.kind, self._blame.rank, views[self._blame.scale])
        )
        if self._blame is not None and (suspicion is None or not suspicion.goes_on(self._blame.cost)):
            # What was before the recovery must not be found again on a longer scale.
            self._evidence.retain(WINDOWS)
            self._blame = suspicion = None
            views = self._views()
        before = self._blame
        if suspicion is None:
            self._accuse(views)
        else:
            self._replace_if_worse(suspicion, views[1])
            self._follow_phase(views)
        if self._blame is None:
            return None
        view = views[self._blame.scale]
        if suspicion is None or self._blame is not before:
            suspicion = suspect(self._blame.kind, self._blame.rank, view)
        assert suspicion is not None
        return _in_words(self._blame, suspicion, view[-WINDOWS:])

    def _views(self) -> dict[int, Sequence[Block]]:
        return {scale: list(view) for scale, view in self._evidence.windows.items() if len(view) >= WINDOWS}

    def _replace_if_worse(self, now: Suspicion, view: Sequence[Block]) -> None:
        other = worst(view, 1)
        if other is not None and (other.kind, other.rank) != (now.kind, now.rank):
            same = suspect(now.kind, now.rank, view[-WINDOWS:])
            if same is None or other.weight > CLEARLY * same.weight:
                self._blame = _blame(other, view, 1)

    def _follow_phase(self, views: dict[int, Sequence[Block]]) -> None:
        """Blame another phase of the same rank once that is what costs, and say since when it does."""
        blame = self._blame
        if blame is None or blame.kind != "slow_rank" or blame.rank is None:
            return
        for scale in dict.fromkeys((1, blame.scale)):
            view = views[scale]
            found = turned(blame.rank, blame.phase, view)
            whole = suspect(blame.kind, blame.rank, view)
            if found is not None and found.is_strong(scale) and whole is not None:
                self._blame = replace(_blame(whole, view, scale), since_step=first_step(found, view))
                return

    def _accuse(self, views: dict[int, Sequence[Block]]) -> None:
        for scale, view in views.items():
            found = worst(view, scale)
            if found is not None:
                self._blame = _blame(found, view, scale)
                return


def _blame(found: Suspicion, view: Sequence[Block], scale: int) -> _Blame:
    suspicion = suspect(found.kind, found.rank, view)
    assert suspicion is not None
    return _Blame(
        kind=suspicion.kind,
        rank=suspicion.rank,
        scale=scale,
        since_step=first_step(suspicion, view),
        phase=phase_of(suspicion, view),
        cost=suspicion.cost,
        all_over=suspicion.all_over,
    )


def _in_words(blame: _Blame, suspicion: Suspicion, view: Sequence[Block]) -> Verdict:
    kind, cost, share = blame.kind, suspicion.cost, suspicion.cost / max(suspicion.step_ms, 1e-9)
    amount = f"{cost:.0f} ms" if cost >= 9.5 else f"{cost:.1f} ms"
    amount += f" a step ({share:.0%})"
    since = f"since step {blame.since_step}"
    more = None if blame.rank is None else more_work(view, blame.rank, cost)
    if blame.kind == "slow_rank" and more is not None:
        kind = "unequal_work"
        text = f"rank {blame.rank} has more work, {more}: it holds the group back by {amount}, {since}"
    elif blame.kind == "slow_rank":
        where = ("all phases, most in " if blame.all_over else "") + _IN_WORDS[blame.phase or "other"]
        text = f"rank {blame.rank} holds the group back by {amount}: {where}, {since}"
    elif blame.kind == "unequal_work":
        text = f"batch sizes differ between the ranks: waiting for the largest costs {amount}, {since}"
    elif blame.kind == "input_bound":
        text = f"all ranks wait for data: {amount}, {since}"
    else:
        text = f"communication bound: all ranks spend {amount} in collectives, {since}"
    return Verdict(
        kind=kind,
        text=text,
        rank=blame.rank,
        phase=blame.phase,
        cost_ms=round(cost, 3),
        share=round(share, 4),
        since_step=blame.since_step,
        confidence=round(suspicion.confidence, 3),
    )


def _growing(growths: Iterable[Growth | None]) -> Verdict | None:
    by_rank = list(growths)
    known = {rank: growth for rank, growth in enumerate(by_rank) if growth is not None}
    if not known:
        return None
    fastest = max(known, key=lambda rank: known[rank].bytes_per_s)
    growth = known[fastest]
    everybody = len(known) == len(by_rank) > 1
    whose = "the memory of every rank" if everybody else f"the memory of rank {fastest}"
    left = "" if growth.left_s is None else f", full in about {_roughly(growth.left_s)}"
    rate = f"{size(int(growth.bytes_per_s * 60)).strip()} a minute"
    return Verdict(
        kind="memory_creep",
        text=f"{whose} grows by {rate}, now {size(growth.bytes).strip()}{left}, since step {growth.since_step}",
        rank=None if everybody else fastest,
        since_step=growth.since_step,
    )


def _roughly(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
