"""The history of a run for the views that look back: numbers by step and by time, and whole steps.

Of a live run its observer is asked for the numbers, of an ended one its file, when a view looks at them; the newest
steps are those that the store has taken in. A frame refers to the history and does not copy it: it grows while the
frame is shown, and a view that draws from it says up to which moment or step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.client.history.first import first_question
from ddptop.agent.wire import Step

if TYPE_CHECKING:
    from ddptop.agent.client.history.asked import Asked, AskedSteps, AskedTime

RECORDS: Final = 65_536
"""Step records held of all ranks together; the store holds most of them anyway."""
MOST_STEPS: Final = 240
LEAST_STEPS: Final = 16
EARLY_BYTES: Final = 8 << 20
"""Answers that wait for the first look; after more, none is waited for."""


class NewestSteps:
    """The ranks' records of the newest steps, by step number."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._limit = max(LEAST_STEPS, min(MOST_STEPS, RECORDS // max(1, world)))
        self._steps: dict[int, dict[int, Step]] = {}
        self._last: dict[int, Step] = {}
        """By rank, its newest record."""

    def take(self, rank: int, step: Step) -> None:
        """Take in a record; with a later one of an earlier step the rank has begun to count anew."""
        last = self._last.get(rank, step)
        if step.seq > last.seq and step.step < last.step:
            for number, others in list(self._steps.items()):
                others.pop(rank, None)
                if not others:
                    del self._steps[number]
        self._last[rank] = step if step.seq > last.seq else last
        together = self._steps.get(step.step)
        if together is None:
            if len(self._steps) >= self._limit:
                oldest = min(self._steps)
                if step.step < oldest:
                    return
                del self._steps[oldest]
            together = self._steps[step.step] = {}
        together[rank] = step

    def numbers(self, wanted: Collection[int]) -> list[int]:
        """Return the steps that all ranks `wanted` have completed, oldest first; any where there is no such step."""
        whole = sorted(number for number, ranks in self._steps.items() if all(rank in ranks for rank in wanted))
        return whole or sorted(self._steps)

    def of(self, number: int) -> Mapping[int, Step]:
        """Return the records of one step, by rank; none of a step that is not held."""
        return self._steps.get(number, {})

    def by_rank(self, rank: int) -> list[Step]:
        """Return one rank's records, oldest first."""
        return [ranks[rank] for _, ranks in sorted(self._steps.items()) if rank in ranks]


class History:
    """All numbers of one run over its steps and over time, and the whole records of its newest steps.

    The numbers are in arrays of NumPy, which is imported with the first look at them: a screen paints before it.
    """

    def __init__(self, world: int, asked: Asked | None = None) -> None:
        """Begin; what is `asked` comes with the first look, where it is not given."""
        self.world = world
        self.steps = NewestSteps(world)
        self._generation = 0
        self._began: dict[int, int] = {}
        """By rank, when its process began, in ns since the epoch."""
        self._asked = asked
        self._first: wire.History | None = None
        """The question that was sent before the first look."""
        self._early: list[wire.HistoryAnswer] = []
        """What was answered before it."""
        self._early_bytes = 0

    @property
    def begun(self) -> bool:
        """True after the first look."""
        return self._asked is not None

    @property
    def complete(self) -> bool:
        """False while an answer is awaited, or the observer itself has not read all."""
        return self._asked is not None and self._asked.complete and self._asked.is_answered("time")

    @property
    def asked(self) -> Asked:
        """The questions, and what was answered."""
        if self._asked is None:
            # Here, because it imports NumPy.
            from ddptop.agent.client.history.asked import Asked

            self._asked = Asked(self.world)
            if self._first is not None:
                self._asked.begin(self._first)
            for answer in self._early:
                self._asked.take(answer)
            self._early.clear()
        return self._asked

    @property
    def by_step(self) -> AskedSteps:
        """The numbers over the steps."""
        return self.asked.by_step

    @property
    def by_time(self) -> AskedTime:
        """The numbers over time."""
        return self.asked.by_time

    def first_question(self) -> wire.History:
        """Return what to ask before anybody has looked: what a plot shows at first, and how far the run has come."""
        self._first = first_question(self.world)
        return self._first

    def take_answer(self, answer: wire.HistoryAnswer, size: int) -> None:
        """Take in a part of an answer, of so many bytes; before the first look it waits."""
        if self._asked is None and self._early_bytes + size <= EARLY_BYTES:
            self._early.append(answer)
            self._early_bytes += size
            return
        self.asked.take(answer)

    def hear(self, message: wire.Telemetry) -> None:
        """Take in the whole records of steps; of ranks that began anew, and count from one again, only theirs."""
        if type(message) is wire.Steps:
            if message.generation > self._generation:
                self._generation, self.steps = message.generation, NewestSteps(self.world)
            if message.generation == self._generation and message.rank < self.world:
                for step in message.steps:
                    self.steps.take(message.rank, step)
        elif type(message) is wire.Hello:
            known = self._began.setdefault(message.rank, message.started_at_ns)
            if known != message.started_at_ns:
                self._began[message.rank], self.steps = message.started_at_ns, NewestSteps(self.world)
