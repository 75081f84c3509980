"""The steps of a run by its heartbeats: since when it stands, and how long it usually does. Pure, bounded.

A run stands when no rank completes a step.  Heartbeats come once a second whatever the rank does, and summaries show
what a step takes; neither costs the ranks anything that they do not send anyway.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.judge import standstill

ONE: Final = 1_000_000_000
_SUMMARIES: Final = 32


class Progress:
    """The steps of a group, by its heartbeats."""

    def __init__(self, *, everyone: bool) -> None:
        """Know nothing yet; `everyone` says whether all ranks of the run are on this host."""
        self.everyone = everyone
        self.beats: dict[int, wire.Beat] = {}
        """The newest heartbeat of each rank."""
        self.heard_ns: dict[int, int] = {}
        """When it came, by the observer's clock."""
        self.met: set[int] = set()
        """Ranks whose process was found."""
        self.gone: set[int] = set()
        """Ranks whose process is gone."""
        self.asked_world = 0
        """Ranks that those which have come were told to be: a launch may only have guessed it. 0: not known."""
        self.since_ns: int | None = None
        """When the run made its last step, was seen to make progress, was let go from a pause, or began; None before
        the first sign of life."""
        self.has_stepped = False
        """True once any rank has completed a step."""
        self.held: set[int] = set()
        """Ranks that are held at their step: the others reach it, are held, too, or wait for these."""
        self.longest_s = 0.0
        """The longest time that the run has stood for and gone on by itself."""
        self._steps = deque[float](maxlen=_SUMMARIES)
        """Milliseconds of a step, by the newest summaries of the rank that speaks for all."""
        self._speaker: int | None = None

    def meet(self, rank: int, now_ns: int, world: int = 0) -> None:
        """Take note of a rank whose process was found, and of the number of ranks that it was told there are."""
        self.asked_world = max(self.asked_world, world)
        if rank not in self.met and not self.has_stepped:
            self.since_ns = now_ns
        self.met.add(rank)
        self.gone.discard(rank)

    def lose(self, rank: int) -> None:
        """Take note of a rank whose process is gone."""
        self.gone.add(rank)
        self.held.discard(rank)

    def beat(self, beat: wire.Beat, now_ns: int) -> float | None:
        """Take in a heartbeat; return the seconds for which the run had stood where it made a step, else None.

        Of the first step they are 0: what a start takes says nothing of what comes later.
        """
        before, stepped = self.beats.get(beat.rank), self.has_stepped
        self.beats[beat.rank] = beat
        self.heard_ns[beat.rank] = now_ns
        self.has_stepped = stepped or beat.step > 0
        if beat.state in wire.HELD:
            self.held.add(beat.rank)
        else:
            self.held.discard(beat.rank)
        if beat.step > (0 if before is None else before.step):
            stood_s = self._step(beat, now_ns)
            return stood_s if stepped else 0.0
        changed = before is None or (before.state, before.activity) != (beat.state, beat.activity)
        # The end of a pause, or a start that makes progress: the training goes on from here.
        let_go = before is not None and before.state in wire.HELD and beat.state not in wire.HELD
        if beat.state in wire.HELD or let_go or (changed and not stepped):
            self.since_ns = now_ns
        return None

    def summary(self, summary: wire.Summary) -> None:
        """Take in a summary."""
        if self._speaker is None or summary.rank < self._speaker:
            self._speaker = summary.rank
            self._steps.clear()
        if summary.rank == self._speaker and summary.wall_ns > 0:
            self._steps.append(summary.wall_ns / 1e6)

    def rest(self, now_ns: int) -> None:
        """Begin anew to count the time without progress."""
        self.since_ns = now_ns

    def _step(self, beat: wire.Beat, now_ns: int) -> float:
        told = beat.step_at_ns or now_ns
        # What the rank says is believed as far as it can be true.
        at_ns = told if now_ns - 2 * ONE <= told <= now_ns else now_ns
        stood_s = 0.0 if self.since_ns is None else max(0.0, (at_ns - self.since_ns) / ONE)
        self.since_ns = max(at_ns, self.since_ns or 0)
        return stood_s

    def learn(self, stood_s: float) -> None:
        """Take note that the run has stood for so long and has gone on by itself."""
        # The watch must not become blind.
        self.longest_s = max(self.longest_s, min(stood_s, standstill.LONGEST_S))

    @property
    def usual_s(self) -> float | None:
        """Seconds of a usual step, None where that is not known."""
        return statistics.median(self._steps) / 1e3 if self._steps else None

    @property
    def patience_s(self) -> float:
        """Seconds without a step after which the ranks are asked where they stand."""
        return standstill.looked_at_s(self.usual_s, has_stepped=self.has_stepped)

    @property
    def bearable_s(self) -> float:
        """Seconds without a step that are no news of this run: it has stood for as long before, and gone on."""
        return standstill.bearable_s(self.usual_s, self.longest_s)

    def age_s(self, now_ns: int) -> float:
        """Return the seconds for which the run has stood."""
        return 0.0 if self.since_ns is None else max(0.0, (now_ns - self.since_ns) / ONE)

    def silence_s(self, rank: int, now_ns: int) -> float:
        """Return the seconds since a rank was heard last."""
        return max(0.0, (now_ns - self.heard_ns.get(rank, self.since_ns or now_ns)) / ONE)

    def has_ended(self, rank: int) -> bool:
        """Say whether the script of a rank has ended, by its own word."""
        beat = self.beats.get(rank)
        return beat is not None and beat.state == "ended"

    @property
    def present(self) -> list[int]:
        """The ranks that can be asked."""
        met = self.met | self.beats.keys()
        return sorted(rank for rank in met - self.gone if not self.has_ended(rank))
