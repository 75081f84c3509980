"""Two ranks of a profile compared by operator, and the largest differences in sentences.

What one step alone shows is no difference: the times of an operator are those of the step in the middle.
"""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

from ddptop.agent.record.profiles import operators
from ddptop.agent.record.profiles.operators import Operator
from ddptop.agent.record.profiles.parts import WAIT, Profile, RankPart
from ddptop.agent.record.profiles.trace import Trace
from ddptop.agent.text import clean_line
from ddptop.agent.wire.diagnoses.kept import Difference, Summary

_MOST_OPERATORS: Final = 100
_MOST_SENTENCES: Final = 3
_MOST_SHAPES: Final = 3
_LEAST_SHARE: Final = 0.03
"""Of a step's work: a smaller difference is not worth a sentence."""


class Comparison:
    """The two ranks of a profile that are compared, each of which hands in its trace."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._parts = {part.rank: part for part in profile.ranks}
        by_work = sorted(self._parts, key=lambda rank: (_work_ms(self._parts[rank]), -rank))
        self._accused = profile.culprit in self._parts
        self._culprit = profile.culprit if profile.culprit in self._parts else by_work[-1]
        others = [rank for rank in by_work if rank != self._culprit]
        self._peer = profile.peer if profile.peer in others else others[len(others) // 2] if others else None
        self._found: dict[int | None, tuple[dict[str, Operator], int, float]] = {None: ({}, 1, 0.0)}
        """By rank: its operators, the number of its steps, and the work of a step in milliseconds."""

    def take(self, trace: Trace) -> None:
        """Take the trace of a rank, where the rank is one of the two."""
        rank = trace.part.rank
        if rank in (self._culprit, self._peer):
            found = operators.of(trace)
            work_ms = sum(step.end - step.begin for step in trace.steps) / 1e6 / len(trace.steps)
            self._found[rank] = found, len(trace.steps), _work_ms(trace.part) or work_ms

    def encode(self) -> bytes:
        """Return the summary, as its file has it."""
        differences = self._differences()
        profile = self._profile
        summary = Summary(
            profile.run,
            profile.steps,
            sorted(self._parts),
            self._culprit,
            self._peer,
            profile.at,
            self._sentences(differences),
            differences[:_MOST_OPERATORS],
            max(0, len(differences) - _MOST_OPERATORS),
            self._accused,
            self._compared(),
            profile.unasked,
        )
        return msgspec.json.encode(summary)

    def _differences(self) -> list[Difference]:
        (mine, my_steps, _), (others, their_steps, _) = self._found[self._culprit], self._found[self._peer]
        found = []
        for name in mine.keys() | others.keys():
            one, other = mine.get(name, Operator()), others.get(name, Operator())
            here, there = _times(one, my_steps), _times(other, their_steps)
            # Of two steps, or four, the one that shows less of a difference.
            one_ms, other_ms = statistics.median_low(here), statistics.median_high(there)
            shapes = _most(one), _most(other)
            if shapes[0] == shapes[1] or self._peer is None:
                shapes = [], []
            found.append(
                Difference(
                    clean_line(name),
                    round(one_ms, 4),
                    round(other_ms, 4),
                    round(one_ms - other_ms, 4),
                    round(one.calls / my_steps, 2),
                    round(other.calls / their_steps, 2),
                    *shapes,
                    (here[0], here[-1]),
                    (there[0], there[-1]),
                )
            )
        return sorted(found, key=lambda each: (-each.difference_ms, each.name))

    def _sentences(self, differences: list[Difference]) -> list[str]:
        if self._peer is None:
            return [
                f"{_short(each.name)} takes {_ms(each.culprit_ms)} a step on rank {self._culprit}"
                for each in differences[:_MOST_SENTENCES]
            ]
        least_ms = self._found[self._culprit][2] * _LEAST_SHARE
        largest = [each for each in differences[:_MOST_SENTENCES] if each.difference_ms > least_ms]
        if not largest:
            percent = f"{_LEAST_SHARE:.0%}".replace("%", " %")
            return [
                f"no operator takes longer on rank {self._culprit} than on rank {self._peer} by more than {percent} "
                f"of a step{self._alone(differences, least_ms)}"
            ]
        return [self._sentence(each) for each in largest]

    def _alone(self, differences: list[Difference], least_ms: float) -> str:
        """Return the operator that took longer in few of the steps, as the end of a sentence; empty where none did."""
        longest = max(differences, key=lambda each: each.culprit_range_ms[1] - each.culprit_ms, default=None)
        if longest is None or longest.culprit_range_ms[1] - longest.culprit_ms <= least_ms:
            return ""
        most, usual = _ms(longest.culprit_range_ms[1]), _ms(longest.culprit_ms)
        return f"; in one step alone {_short(longest.name)} took {most} there, {usual} in others"

    def _sentence(self, each: Difference) -> str:
        one, other = f"rank {self._culprit}", f"rank {self._peer}"
        mine, others = _ms(each.culprit_ms), _ms(each.peer_ms)
        if mine == others:
            mine, others = (f"{value:.1f} ms" for value in (each.culprit_ms, each.peer_ms))
        mine += _scatter(each.culprit_ms, each.culprit_range_ms)
        others += _scatter(each.peer_ms, each.peer_range_ms)
        takes = f"takes {mine} a step on {one}"
        times = f"{takes} and {others} on {other}"
        if each.name.startswith(operators.BETWEEN):
            return f"{each.name}{',' if ',' in each.name else ''} {times}"
        said = f"{_short(each.name)} {times}"
        if not each.peer_calls:
            return f"{_short(each.name)} {takes}; {other} does not call it"
        if each.culprit_shapes and each.peer_shapes and each.culprit_shapes[0] != each.peer_shapes[0]:
            return f"{said}, longest in calls of {each.culprit_shapes[0]} against {each.peer_shapes[0]}"
        calls = "call" if each.culprit_calls == 1 else "calls"
        return f"{said}: {each.culprit_calls:g} {calls} against {each.peer_calls:g}"

    def _compared(self) -> str:
        mine, others = (_ms(self._found[rank][2]) for rank in (self._culprit, self._peer))
        if self._peer is None:
            return f"rank {self._culprit} alone, {mine} a step"
        if self._accused:
            return f"rank {self._culprit}, which holds the group back, against rank {self._peer}"
        works = [_work_ms(part) for part in self._parts.values()]
        if any(works) and not all(works):
            # Of some ranks no phases were recorded, and whole steps are no work.
            return f"no rank is accused: rank {self._culprit} against rank {self._peer}"
        if mine == others:
            both = f"rank {self._culprit} against rank {self._peer}"
            return f"no rank is accused, and none works longer: {both}, {mine} a step each"
        peer = f"rank {self._peer}{' in the middle' if len(self._parts) > 2 else ''}"
        return (
            f"no rank is accused: rank {self._culprit}, which works longest ({mine} a step), against {peer} ({others})"
        )


def _times(operator: Operator, steps: int) -> list[float]:
    """Return its own milliseconds in each step, the shortest first."""
    return sorted(round(operator.by_step[step] / 1e6, 4) for step in range(steps))


def _scatter(usual_ms: float, between: tuple[float, float]) -> str:
    """Return ` (24 to 31 ms)` where the steps of a rank differ by more than a quarter."""
    shortest, longest = between
    return f" ({_ms(shortest)[:-3]} to {_ms(longest)})" if longest - shortest > usual_ms / 4 else ""


def _most(operator: Operator) -> list[str]:
    return [shapes for shapes, _ in operator.shapes.most_common(_MOST_SHAPES)]


def _work_ms(part: RankPart) -> float:
    """Return the time of the step in the middle that is no wait; 0 where the rank says no phases."""
    spent = [sum(end - begin for begin, end, phase in phases if phase != WAIT) for _, phases in part.phases if phases]
    return statistics.median_low(spent or [0]) / 1e6


def _short(name: str) -> str:
    return clean_line(name, 80)


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 9.5 else f"{value:.2g} ms"
