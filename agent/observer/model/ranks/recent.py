"""What the newest steps of a rank were like: worked out anew from what has come and gone since, not from all of them.

The means of a rank in sight are asked for with every frame, and between two frames few steps are new.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from ddptop.agent.wire import DEVICE_PHASES, PHASES, Step
from ddptop.agent.wire.frames import RankFrame
from ddptop.agent.wire.steps import numbers
from ddptop.agent.wire.steps.latencies import percentiles_of_ordered
from ddptop.agent.wire.steps.numbers import AMOUNTS

HELD: Final = 512
"""Steps, and latencies, of which the newest are held."""
WINDOW_NS: Final = 2_000_000_000
"""Step time and phases are means over this much training, at least over one step."""
_ON_DEVICE: Final = (len(DEVICE_PHASES) - 1, len(DEVICE_PHASES))
"""How many phases a record tells of the device."""
SPANS: Final = (*PHASES, *(span for span in numbers.SPANS if f"{span}_ms" in RankFrame.__struct_fields__))
"""The phases, and the other times of a step that a frame has."""
OTHERS: Final = (*(f"{span}_ms" for span in SPANS[len(PHASES) :]), *(f"{amount}_per_s" for amount in AMOUNTS))
"""The fields of a frame that have the means of these and of `AMOUNTS`."""
_NUMBERS: Final = attrgetter(
    "wall_ns", "counted", "counted_ns", *(f"{span}_ns" for span in SPANS), *AMOUNTS, "device_ns"
)
_DEVICE: Final = 3 + len(SPANS) + len(AMOUNTS)
"""Where the phases on the device are, which are not added up."""


@dataclass(frozen=True, slots=True)
class Means:
    """The means of the last `WINDOW_NS` of training, in ms; None where nothing is known."""

    step_ms: float | None
    phases_ms: dict[str, float] | None
    device_ms: dict[str, float] | None
    others: dict[str, Any]
    """Those of `OTHERS`."""


def means_of(
    step_ms: float,
    spans_ms: dict[str, float],
    rates: dict[str, float | None],
    device_ms: dict[str, float] | None = None,
) -> Means:
    """Return means of `SPANS` and `AMOUNTS`, of which the phases go into one field."""
    others = {f"{span}_ms": spans_ms.pop(span, None) for span in SPANS[len(PHASES) :]}
    return Means(step_ms, spans_ms, device_ms, {**others, **{f"{name}_per_s": rate for name, rate in rates.items()}})


class RecentSteps:
    """The newest steps of a rank, in order, and their means."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=HELD)
        self.last: Step | None = None
        """The newest step."""
        self._new = 0
        """The newest of them, which are not in the window yet."""
        self._window: deque[tuple[Any, ...]] = deque()
        """The numbers of the steps of the last `WINDOW_NS`."""
        self._sums = [0] * _DEVICE
        """Of each number, over the steps of the window that tell it."""
        self._unknown = [0] * (_DEVICE + 1)
        """Of each number, how many steps of the window do not tell it."""

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    def append(self, step: Step) -> None:
        """Take in the next step."""
        self._steps.append(step)
        self.last = step
        self._new += 1

    def clear(self) -> None:
        """Forget all."""
        self._steps.clear()
        self._window.clear()
        self.last = None
        self._new = 0
        self._sums, self._unknown = [0] * _DEVICE, [0] * (_DEVICE + 1)

    def means(self) -> Means:
        """Return what the window was like; takes time for the steps that came and went since the last call."""
        self._advance()
        steps = len(self._window)
        if not steps:
            return Means(None, None, None, {})
        recorded, counted, counted_ns, *sums = self._sums
        gaps = self._unknown[3:]
        total, all_steps = recorded + counted_ns, steps + counted
        # Steps that were only counted have the same phases, in the time that they took.
        more = total / recorded / all_steps if recorded and all_steps > steps else 1 / steps
        per_s = all_steps / steps / total * 1e9 if total else 0.0
        return means_of(
            total / all_steps / 1e6,
            # A phase that was not observed in every step is left out.
            {span: each * more / 1e6 for span, each, none in zip(SPANS, sums, gaps, strict=False) if not none},
            {
                amount: each * per_s if none < steps and total else None
                for amount, each, none in zip(AMOUNTS, sums[len(SPANS) :], gaps[len(SPANS) :], strict=False)
            },
            _device([step[_DEVICE] for step in self._window]) if gaps[-1] < steps else None,
        )

    def _advance(self) -> None:
        """Take the new steps into the window, and out of it those that are too long ago."""
        window, newest = self._window, self._steps
        came = list(map(_NUMBERS, islice(newest, len(newest) - min(self._new, len(newest)), None)))
        self._new = 0
        self._count(came, 1)
        window.extend(came)
        long, went = self._sums[0] + self._sums[2], []
        while len(window) > HELD or (len(window) > 1 and long > WINDOW_NS):
            oldest = window.popleft()
            long -= oldest[0] + oldest[2]
            went.append(oldest)
        self._count(went, -1)

    def _count(self, steps: Sequence[tuple[Any, ...]], sign: int) -> None:
        """Add the numbers of steps to the sums, or take them out again."""
        # By field, not by step: a sum costs a tenth of what it takes to walk through the records.
        for index, column in enumerate(zip(*steps, strict=True)):
            if index == _DEVICE or None in column:
                known = [each for each in column if each is not None]
                self._unknown[index] += sign * (len(column) - len(known))
                if index == _DEVICE:
                    return
                self._sums[index] += sign * sum(known)
            else:
                self._sums[index] += sign * sum(column)


class Latencies:
    """The newest latencies of a rank, in ns, and their percentiles."""

    def __init__(self) -> None:
        self._new: deque[int] = deque(maxlen=HELD)
        """Those that are not among the others yet."""
        self._held: deque[int] = deque()
        self._ordered: list[int] = []
        """The same by size."""
        self._percentiles: tuple[int, int] | None = None

    def extend(self, values: Iterable[int]) -> None:
        """Take in the next ones."""
        self._new.extend(values)

    def clear(self) -> None:
        """Forget all."""
        self._new.clear()
        self._held.clear()
        self._ordered.clear()
        self._percentiles = None

    def percentiles(self) -> tuple[int, int] | None:
        """Return the median and the 99th percentile, None where there are no values."""
        held, ordered = self._held, self._ordered
        if not self._new:
            return self._percentiles
        for _ in range(len(held) + len(self._new) - HELD):
            del ordered[bisect_left(ordered, held.popleft())]
        held.extend(self._new)
        # Nearly all are in order by now, which is what a sort of Python is quick at.
        ordered.extend(self._new)
        ordered.sort()
        self._new.clear()
        self._percentiles = percentiles_of_ordered(ordered)
        return self._percentiles


def _device(told: Iterable[Sequence[int] | None]) -> dict[str, float] | None:
    """Return the mean of each phase on the device in ms, None where no step has all of them."""
    known = [spans for spans in told if spans is not None and len(spans) in _ON_DEVICE]
    known = [spans for spans in known if len(spans) == len(known[-1])]
    if not known:
        return None
    # An older agent tells of one phase less.
    return {
        name: sum(spans) / len(known) / 1e6
        for name, spans in zip(DEVICE_PHASES, zip(*known, strict=True), strict=False)
    }
