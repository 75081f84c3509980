"""Takes two censuses of the memory of some ranks, before and behind the same steps; no rank is held beyond them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.actions.action import Action, Diagnosed, Turns, aside
from ddptop.agent.observer.actions.diagnosis import OverSteps, check_room, chosen
from ddptop.agent.observer.judge.growth import cause_of, sentence
from ddptop.agent.record import diagnoses
from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire.diagnoses.kept import Censused, RankMemory
from ddptop.agent.wire.vocabulary.refusals import Refused

_FREE: Final = 16 << 20
"""Bytes that the censuses of many ranks may take on the disk."""


class Censuses(OverSteps[wire.MemoryUse]):
    """The memory of several ranks at the same boundaries."""

    paused = "paused, and growth is counted from step to step; resume it first"
    apart = "there are no steps over which all of them could be looked at"
    fast = "its steps are too fast for this; `ddptop memory` again"
    most_ms = wire.CENSUS_MS[0]
    """Milliseconds for which each rank is held at most."""

    def over(self, first: int) -> wire.Command:
        """Return the question for the steps from this one on."""
        return wire.Memory(0, self.token, self.number, first, self.steps, most_ms=self.most_ms)

    def cancelling(self) -> wire.Command:
        """Return the command after which no rank takes the censuses that were asked for last."""
        return wire.Memory(0, self.token, 0, 0, cancelled=True)

    def found(self, reply: wire.Reply) -> wire.MemoryUse | None:
        """Return the census of a rank."""
        return reply.memory

    def waiting(self, boundary: int, behind: Mapping[int, int]) -> str:
        """Return the line on ranks whose second census is not taken."""
        first, last, step = boundary + 1, boundary + self.steps, min(behind.values())
        return f"looking at the memory over steps {first:,} to {last:,}: {ranks_in_spans(behind)} at step {step:,}"


def memory(action: Action) -> Turns[Diagnosed]:
    """Take the censuses of some ranks, and keep them.

    Raises:
        Refused: there are none, and why.
        Cancelled: the wait was cancelled.
        Hung: the run hangs.
    """
    ranks, command, growing = action.ranks, action.command, action.circumstances.growing
    accused = None if growing is None else (growing,)
    ranks.ranks = chosen(ranks, command, accused, "no verdict says that the memory of a rank grows")
    if not 1 <= command.steps <= wire.MOST_CENSUS_STEPS:
        raise Refused(f"the memory is looked at over 1 to {wire.MOST_CENSUS_STEPS} steps")

    def begin() -> Censuses:
        check_room(action.directory.path, _FREE)
        asked = Censuses(diagnoses.new(action.directory, "memory"), command.steps)
        asked.most_ms = command.most_ms
        return asked

    asked = yield from aside(begin)
    return (yield from asked.whole(ranks, _censused(action, asked, growing)))


def _censused(action: Action, asked: Censuses, growing: int | None) -> Turns[Diagnosed]:
    _, found = yield from asked.gather(action)

    def keep() -> Diagnosed:
        hosts = action.ranks.hosts
        each = (RankMemory(rank, hosts.get(rank, ""), sentence(use), use) for rank, use in sorted(found.items()))
        census = Censused(action.directory.name, time.time(), growing, tuple(sorted(each, key=_growth, reverse=True)))
        diagnoses.write("memory", asked.folder, census)
        return Diagnosed(asked.folder, census.finding)

    return (yield from aside(keep))


def _growth(each: RankMemory) -> tuple[int, int]:
    """Return the bytes of which its sentence speaks, then those by which all of its memory grew.

    All of it alone says little: the C library keeps what was freed, and so its growth is above or below zero by chance.
    """
    cause, resident = cause_of(each.use), each.use.resident
    grown = resident.anonymous_grown if resident is not None else each.use.tensor_grown
    return cause.grew if cause else 0, grown + sum(device.allocated_grown for device in each.use.devices)
