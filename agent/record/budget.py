"""How many steps the ranks record: chosen from the group's step time and from what the ranks say a record costs them.

The agent may take 1 % of a step on the training thread, and 2 % of a core in all.  Where records of all steps would
take more, one step in 2, 4, 8… is recorded, as `switches.recording.needed` says.  The number holds for all ranks; a
rank that has another one is told, until its signs of life say that it has this one.  Where the steps become far longer,
the ranks see it first and record more by themselves (`rank.records.own_rate`): the number that most of them have then
is taken over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ddptop.agent import wire
from ddptop.agent.run.switches.recording import POSSIBLE, SPARE, are_too_rare, needed

_UP_S: Final = 3.0
"""Seconds for which records have to cost too much before there are fewer."""
_DOWN_S: Final = 20.0
"""Seconds for which more records have to be cheap enough before there are more, where these are not needed at once."""
_FAR: Final = 4
"""So many times as many records are made at once: the steps have become far longer, and somebody asks why."""
_OF_BEATS: Final = 3
"""Newest signs of life whose middle step time counts: an evaluation between two steps is no long step."""
_AGAIN_S: Final = 3.0
"""Seconds between two orders to the same rank."""
_MOST_NS: Final = 10**11
"""Times beyond this are not believed."""
_NEVER: Final = float("-inf")


class _Rank:
    """What the signs of life of one rank tell."""

    __slots__ = ("_found", "asked_at", "beat", "obeyed_at")

    def __init__(self, beat: wire.Beat) -> None:
        self.beat = beat
        self._found: deque[float] = deque(maxlen=_OF_BEATS)
        self.asked_at = _NEVER
        self.obeyed_at = _NEVER
        """When it last had the ordered number; `_NEVER` as long as it has not had it."""

    @property
    def step_ns(self) -> float | None:
        """The time of a step, None until it is known; time in which the rank was held is no part of it."""
        return _middle(list(self._found)) if self._found else None

    def take(self, beat: wire.Beat) -> None:
        before, self.beat = self.beat, beat
        steps = beat.step - before.step
        if steps < 0:
            # Another process, which begins with a number of its own.
            self.obeyed_at = _NEVER
        if steps <= 0 or beat.step_at_ns is None or before.step_at_ns is None:
            return
        if beat.released_at_ns != before.released_at_ns or beat.held_at_ns is not None:
            return
        found = (beat.step_at_ns - before.step_at_ns) / steps
        if 0 < found < _MOST_NS:
            self._found.append(found)


class Budget:
    """The number of steps of which the ranks record one; for use from one thread."""

    def __init__(self, world: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with every step."""
        self.every: int | None = None
        """One step in so many; None: as the ranks have it, because nothing was decided yet."""
        self._world = world
        self._orders: list[tuple[int, int]] = []
        """The orders of this turn."""
        self._clock = clock
        self._ranks: dict[int, _Rank] = {}
        self._generation = -1
        self._too_much_since: float | None = None
        self._enough_since: float | None = None

    def note(self, message: wire.Telemetry) -> None:
        """Take in a sign of life."""
        if type(message) is not wire.Beat or not 0 <= message.rank < self._world:
            return
        generation = message.generation or 0
        if generation > self._generation:
            # The ranks are other processes, which record every step at first.
            self._ranks, self._generation = {}, generation
        if generation < self._generation:
            return
        known = self._ranks.get(message.rank)
        if known is None:
            self._ranks[message.rank] = _Rank(message)
        else:
            known.take(message)

    def turn(self) -> list[tuple[int, int]]:
        """Decide, and return the ranks that are to be told, each with the number for it; once a second."""
        self._orders = []
        told = [each for each in self._ranks.values() if each.beat.state == "running"]
        # Where one is fixed by its environment, all are.
        if not told or any(each.beat.is_fixed for each in told):
            return []
        self._take_over(told)
        self._decide(told)
        if self.every is not None:
            self._order(self.every)
        return self._orders

    def _take_over(self, told: list[_Rank]) -> None:
        """Where most ranks record more than was ordered, by themselves and after they had obeyed: let all do so."""
        if self.every is None:
            return
        chosen = []
        for each in told:
            if each.beat.recorded_every == self.every:
                each.obeyed_at = self._clock()
            elif each.obeyed_at > _NEVER and each.beat.recorded_every < self.every:
                chosen.append(each.beat.recorded_every)
        chosen = [number for number in chosen if number in POSSIBLE]
        # Most of all: of a group that is paused the one rank that still runs does not decide.
        if 2 * len(chosen) > len(self._ranks):
            # The lower middle of two: a rank that looks later has seen more of the long steps.
            number = sorted(chosen)[(len(chosen) - 1) // 2]
            self._set(number)
            for each in told:
                if each.beat.recorded_every < number:
                    # It has obeyed, and may be right: the others may follow.
                    each.obeyed_at = self._clock()

    def _set(self, every: int) -> None:
        self.every, self._too_much_since, self._enough_since = every, None, None
        for rank, each in self._ranks.items():
            each.asked_at = each.obeyed_at = _NEVER
            if each.beat.state == "running" and each.beat.recorded_every == every:
                # It has the number by its own choice, and is to know that this is the ordered one now.
                self._orders.append((rank, every))

    def _order(self, every: int) -> None:
        """Tell the ranks that have another number; one that has just left this one by itself waits for the others."""
        now = self._clock()
        for rank, each in self._ranks.items():
            is_other = each.beat.state == "running" and each.beat.recorded_every != every
            if is_other and now - max(each.asked_at, each.obeyed_at) >= _AGAIN_S:
                each.asked_at = now
                self._orders.append((rank, every))

    def _decide(self, told: list[_Rank]) -> None:
        steps = [each.step_ns for each in told if each.step_ns is not None]
        costs = [each.beat.cost_ns for each in told if each.beat.cost_ns is not None]
        if not steps or not costs:
            return
        # One rank that is ahead, or makes up its numbers, moves none of them far.
        step, recorded = _middle(steps), _high(costs)
        counted = _high([each.beat.counted_cost_ns for each in told if each.beat.counted_cost_ns is not None]) or None
        record = _high([each.beat.record_ns for each in told if each.beat.record_ns is not None])
        # An observer that comes later goes on with what the ranks have.
        present = self.every or round(_middle([each.beat.recorded_every for each in told]))
        if present not in POSSIBLE:
            present = 1
        now = self._clock()
        wanted, spare = needed(step, recorded, counted, record), needed(step, recorded, counted, record, SPARE)
        if wanted > present:
            self._enough_since = None
            self._too_much_since = now if self._too_much_since is None else self._too_much_since
            if now - self._too_much_since >= _UP_S:
                self._set(wanted)
        elif spare < present:
            self._too_much_since = None
            self._enough_since = now if self._enough_since is None else self._enough_since
            is_urgent = _FAR * spare <= present or are_too_rare(present, step)
            if is_urgent or now - self._enough_since >= _DOWN_S:
                self._set(spare)
        else:
            self._too_much_since = self._enough_since = None
            if self.every is None and present != 1:
                # All ranks get what most of them have.
                self._set(present)


def _middle(values: list[float] | list[int]) -> float:
    return float(sorted(values)[len(values) // 2])


def _high(values: list[int]) -> float:
    """Return the largest but a tenth of the values; 0 where there are none."""
    return float(sorted(values)[(9 * len(values) - 1) // 10]) if values else 0.0
