"""The steps of a run by its heartbeats: since when it stands, and how long it usually does. Pure, bounded.

A run stands when no rank completes a step.  Heartbeats come once a second whatever the rank does, and summaries show
what a step takes; neither costs the ranks anything that they do not send anyway.

Of a run that is seen from outside nobody knows a step. It stands while a rank stands in a wait for others, which then
completes none, or while all ranks stand wherever they are.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final, NamedTuple

from ddptop.agent import wire
from ddptop.agent.observer.judge import standstill

ONE: Final = 1_000_000_000
_SUMMARIES: Final = 32
LOOKS: Final = 2.5
"""Looks from outside whose time has to pass before it is noticed that none has come."""


class Seen(NamedTuple):
    """A rank by looks from outside."""

    at_ns: int
    still_ns: int | None = None
    """Since when its main thread has not moved; None: it moves."""
    call: str = ""
    """The call in which it waits for others meanwhile; empty where it is in none."""
    busy_percent: float = 0.0
    """Percent of a core that its main thread had, or was ready to have: also where others take it."""


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
        self.seen: dict[int, Seen] = {}
        """By rank, how looks from outside have found it last."""
        self._every_s = 0.0
        """Seconds from one look to the next."""
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
        self.seen.pop(rank, None)
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

    def sampled(self, message: wire.Sampled, now_ns: int) -> float | None:
        """Take in looks from outside; return the seconds for which the run had stood where it has gone on, else None.

        Without looks nothing is known: time without them is no standstill.
        """
        waits = message.shares.get("wait", 0.0) > 0.5
        call = message.still_at.rpartition(", in ")[2] if waits else ""
        last = self.seen.get(message.rank)
        # As long as it is not known, a pause of some size is usual.
        every_s = standstill.UNSEEN_S / LOOKS if last is None else (message.at_ns - last.at_ns) / ONE
        self._every_s = min(max(0.0, every_s), standstill.LONGEST_S)
        self.seen[message.rank] = Seen(message.at_ns, message.still_since_ns, call, 100 * (message.busy or 0.0))
        # The import of torch goes through the files of its optimizers, too.
        trains = "backward" in message.shares or message.log_step is not None
        self.has_stepped |= message.still_since_ns is None and trains
        present = [found for rank in self.present if (found := self.seen.get(rank)) is not None]
        waiting = [found.still_ns for found in present if found.call and found.still_ns is not None]
        still = [found.still_ns for found in present if found.still_ns is not None]
        since_ns = min(waiting) if waiting else max(still) if still and len(still) == len(present) else now_ns
        if not message.looks:
            since_ns = now_ns
        before, self.since_ns = self.since_ns, max(since_ns, self.since_ns or 0)
        return None if before is None or self.since_ns <= before else (self.since_ns - before) / ONE

    @property
    def calls(self) -> dict[int, str]:
        """By rank, the call in which it waits for others, as looks from outside have found it."""
        return {rank: found.call for rank, found in self.seen.items() if found.call and found.still_ns is not None}

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
        return max(standstill.looked_at_s(self.usual_s, has_stepped=self.has_stepped), LOOKS * self._every_s)

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
