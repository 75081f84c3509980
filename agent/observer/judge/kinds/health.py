"""Numbers that are not finite, by what each rank says of its own losses and gradients: one finding for the group."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.wire import Beat, Verdict

SETTLED_NS: Final = 1_500_000_000
"""Ranks tell once a second: whether it is one of them or all is known after this time."""
MOST_NAMED: Final = 4
"""Ranks that are named one by one; of more, the number is told."""
_SINCE: Final = re.compile(r"(.*?) since step (\d{1,3}(?:,\d{3}){1,5}|\d{1,18})\b(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Trouble:
    text: str
    """Without the step."""
    step: int | None
    """The step since which it is so."""
    at_ns: int
    """The time of the heartbeat that told of it."""


class Health(Finder):
    """The losses and gradients of a group that are not finite."""

    kinds = ("health",)

    def __init__(self, world: int, time_of: Callable[[int], int | None]) -> None:
        """Know nothing yet; `time_of` gives the time of a step."""
        super().__init__()
        self._world, self._time_of = world, time_of
        self._troubles: dict[int, _Trouble] = {}
        self._told: set[int] = set()
        """Ranks that were heard since the first of these troubles."""
        self._noticed_ns: int | None = None
        self.is_over = False
        """The ranks have ended: nobody tells any more whose numbers are wrong, too."""

    def take(self, beat: Beat) -> None:
        if beat.health is not None:
            known = self._troubles.get(beat.rank)
            trouble = _parsed(beat.health, beat.at_ns)
            if known is None or (known.text, known.step) != (trouble.text, trouble.step):
                self._troubles[beat.rank] = trouble
        elif self._troubles.pop(beat.rank, None) is not None and not self._troubles:
            self.ceased_at_ns = beat.at_ns
        if self._troubles:
            self._told.add(beat.rank)
        else:
            self._told.clear()

    def finding(self, now_ns: int) -> Verdict | None:
        """Return what is wrong, once it is clear on which ranks."""
        if not self._troubles:
            self._noticed_ns = None
            return None
        if self._noticed_ns is None:
            self._noticed_ns = now_ns
        if not self.is_over and len(self._told) < self._world and 0 <= now_ns - self._noticed_ns < SETTLED_NS:
            return None
        steps = {rank: trouble.step for rank, trouble in self._troubles.items() if trouble.step is not None}
        first = min(steps.values(), default=None)
        began = sorted(rank for rank in self._troubles if first is None or steps.get(rank) == first)
        trouble = self._troubles[began[0]]
        since = "" if first is None else f" since step {first:,}"
        at_ns = None if first is None else self._time_of(first)
        return Verdict(
            0,
            "health",
            f"{trouble.text}{since}{self._whose(began)}",
            min(self._troubles[rank].at_ns for rank in began) if at_ns is None else at_ns,
            rank=began[0] if len(began) == 1 else None,
            since_step=first,
            urgent=True,
        )

    def _whose(self, began: list[int]) -> str:
        if self._world == 1:
            return ""
        if len(began) == len(self._troubles):
            return f" on {self._named(began)}"
        now = self._named(sorted(self._troubles))
        return f" on {self._named(began)}, by now on {now}"

    def _named(self, ranks: list[int]) -> str:
        if len(ranks) == self._world:
            return "all ranks"
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        if len(ranks) <= MOST_NAMED:
            return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
        return f"{len(ranks):,} of {self._world:,} ranks"


def _parsed(text: str, at_ns: int) -> _Trouble:
    found = _SINCE.fullmatch(text[:200])
    if found is None:
        return _Trouble(text[:200], None, at_ns)
    return _Trouble(found[1] + found[3], int(found[2].replace(",", "")), at_ns)
