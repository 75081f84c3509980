"""What the training thread writes down: stamps, and nothing else.

All arithmetic is left to the agent's own thread (`meter`), because every microsecond here
is one of the training's.  There are no locks: the training's threads append under the interpreter
lock, and the agent's thread reads what is finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

DATA: Final = 0
FORWARD: Final = 1
BACKWARD: Final = 2
OPTIMIZER: Final = 3
OTHER: Final = 4

ACTIVITIES: Final = ("data", "forward", "backward", "optimizer", "other")


class Pending(Protocol):
    """A loss that may still be under way from the device."""

    def read(self) -> float | None:
        """Return the value, or None while it is not there yet."""


class Call:
    """One collective, from entry to completion, on the clock of the stamps."""

    __slots__ = (
        "blocking", "bytes", "deferred", "device", "done", "entered", "estimated", "expected", "group", "in_flight",
        "moments", "op", "workers",
    )  # fmt: skip

    def __init__(
        self, op: str, entered: int, size: int, in_flight: int, blocking: bool, *, group: str = "", workers: int = 0
    ) -> None:
        self.op = op
        self.entered = entered
        self.done: int | None = None
        self.bytes = size
        self.in_flight = in_flight
        self.blocking = blocking
        """True where the main thread does not go on before completion."""
        self.group = group
        self.workers = workers
        """How many of the group's collectives the backend works on at a time, 0 where that is not known."""
        self.deferred = False
        """True where the end of the backward pass waits for it: DDP's buckets."""
        self.estimated = False
        """True where `done` is when it was waited for, or `in_flight` counts what may have been done."""
        self.expected = True
        """False where nobody will tell of its completion."""
        self.device: DeviceClock | None = None
        """On a device, whose time line tells the duration; `done` stays None there."""
        self.moments: list[Moment | None] = []

    @property
    def duration(self) -> int | None:
        """From the call to completion in ns, None as long as it is not known."""
        if self.device is not None:
            spans = self.device.spans(self.moments) if len(self.moments) == 2 else None
            return spans[0] if spans else None
        return None if self.done is None else self.done - self.entered


class Draw:
    """One batch taken from a data loader, and what became of it."""

    __slots__ = ("begin", "dataset", "evaluation", "samples", "trained")

    def __init__(self, begin: int, dataset: int, evaluation: bool) -> None:
        self.begin = begin
        """Index of the mark at which it began."""
        self.dataset = dataset
        """Tells the loaders apart."""
        self.samples: int | None = None
        self.evaluation = evaluation
        """Drawn, or first used, without gradients."""
        self.trained = False
        """The last batch drawn before a backward pass."""


class Moment(Protocol):
    """A point on the device's own time line, reached later."""


class DeviceClock(Protocol):
    """Puts moments on the device's time line and reads them off later; never waits for the device."""

    def record(self) -> Moment | None:
        """Return a moment behind the work given to the device so far."""

    def spans(self, moments: list[Moment | None]) -> list[int] | None:
        """Return the ns from each moment to the next, None while or where they are not known."""


class StepStamps:
    """The stamps of one step: all between two step boundaries."""

    __slots__ = (
        "calls", "clock", "draws", "end", "end_at", "full", "gradients", "losses", "marks", "metrics", "moments",
        "observed", "rate", "samples", "seq", "skipped", "step", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.marks: list[tuple[int, int]] = []
        """(clock in ns, phase that begins there)"""
        self.moments: list[Moment | None] = []
        """The marks on the device's time line, and the end; empty without a device clock."""
        self.clock: DeviceClock | None = None
        self.full = False
        """True once there are so many marks that no more are taken."""
        self.calls: list[Call] = []
        self.waits: list[tuple[int, int]] = []
        """When the main thread stood in `Work.wait`."""
        self.draws: list[Draw] = []
        self.losses: list[Pending] = []
        self.gradients: list[Pending] = []
        """Numbers that are finite where the gradients are."""
        self.skipped = False
        """True where a GradScaler found gradients that are not finite, and left the optimizer out."""
        self.samples: int | None = None
        self.rate: float | None = None
        """Learning rate."""
        self.metrics: dict[str, float] = {}
        self.observed = False
        """True where collectives are seen at all."""
        self.seq = 0
        self.step = 0
        self.end = 0
        self.end_at = 0


class Stamps:
    """The stamps of one rank. Phases, steps and losses are the training thread's to tell."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], int] = time.time_ns,
        capacity: int = 8192,
        room: int = 50_000,
    ) -> None:
        self.clock = clock
        self._wall = wall
        self._capacity = capacity
        self._room = room
        self._phases = [OTHER]
        self._homes = [OTHER]
        self._opening: int | None = None
        self._seq = 0
        self._current = StepStamps()
        self.device: DeviceClock | None = None
        """Set once the training is seen to be on a device with a time line of its own."""
        self.observed = False
        """Set once collectives are hooked."""
        self.finished: deque[StepStamps] = deque()
        """Complete steps, oldest first; the agent's thread removes them from the left."""
        self.dropped = 0
        self.completed_at: int | None = None
        """Wall clock of the last boundary, ns."""

    @property
    def activity(self) -> str:
        """The phase that the training thread is in; may be read from any thread."""
        return ACTIVITIES[self._phases[-1]]

    @property
    def steps(self) -> int:
        """Records completed."""
        return self._seq

    @property
    def begun(self) -> bool:
        """True once anything of a training step was seen."""
        return bool(self._current.marks) or self._seq > 0

    def enter(self, phase: int) -> None:
        """Begin a phase inside the present one; `leave` returns to it."""
        self._phases.append(phase)
        self._homes.append(phase)
        self._mark(phase)

    def leave(self) -> None:
        """End the innermost phase."""
        if len(self._phases) > 1:
            self._phases.pop()
            self._homes.pop()
        self._mark(self._phases[-1])

    def turn(self, phase: int) -> None:
        """Change the present phase itself, until `settle` or the end of what it is inside of."""
        self._phases[-1] = phase
        self._mark(phase)

    def settle(self) -> None:
        """End the innermost phase, and what was turned to around it.

        After a backward pass that is the forward pass; what remains is the phase that was
        entered: inside an optimizer's closure, the optimizer's.
        """
        self._phases.pop()
        self._homes.pop()
        self.turn(self._homes[-1])

    def _mark(self, phase: int) -> None:
        current = self._current
        if len(current.marks) < self._room:
            current.marks.append((self.clock(), phase))
        elif not current.full:
            # A step that never ends (no optimizer of torch's) must not fill the memory.
            current.full = True
            current.marks.append((self.clock(), OTHER))
        else:
            return
        # A clock that came in the middle of a step begins with the next one.
        if current.clock is not None:
            current.moments.append(current.clock.record())

    def call(self, call: Call) -> None:
        """Note a collective; from whichever thread issues it."""
        if len(self._current.calls) < self._room:
            self._current.calls.append(call)

    def waited(self, begin: int, end: int) -> None:
        """Note that the main thread waited for a collective."""
        if len(self._current.waits) < self._room:
            self._current.waits.append((begin, end))

    def loss(self, value: Pending) -> None:
        """Note a loss that `backward` was called on."""
        if len(self._current.losses) < self._room:
            self._current.losses.append(value)

    def gradient(self, value: Pending) -> None:
        """Note a number that is finite where the gradients are; from whichever thread has it."""
        if len(self._current.gradients) < self._room:
            self._current.gradients.append(value)

    def open_loader(self) -> None:
        """Begin to draw; what the start of data workers takes belongs to the first batch."""
        self._opening = len(self._current.marks)
        self.enter(DATA)

    def draw(self, dataset: int, *, evaluation: bool) -> None:
        """Begin to wait for a batch; `drew` ends it."""
        current = self._current
        if len(current.draws) < self._room:
            begin = len(current.marks) if self._opening is None else min(self._opening, len(current.marks))
            current.draws.append(Draw(begin, dataset, evaluation))
        self._opening = None
        self.enter(DATA)

    def drew(self, samples: int | None) -> None:
        """Note that a batch is there, and its size where that can be told."""
        self.leave()
        current = self._current
        if current.draws:
            current.draws[-1].samples = samples
        if samples is not None:
            current.samples = (current.samples or 0) + samples

    def used(self, *, evaluation: bool) -> None:
        """Note what the last batch is used for."""
        draws = self._current.draws
        if draws and evaluation:
            draws[-1].evaluation = draws[-1].evaluation or not draws[-1].trained
        elif draws:
            draws[-1].trained, draws[-1].evaluation = True, False

    def skip(self) -> None:
        """Note that the optimizer was left out of this step."""
        self._current.skipped = True

    def rate(self, value: float) -> None:
        """Note the learning rate of this step."""
        self._current.rate = value

    def metric(self, name: str, value: float) -> None:
        """Note a value of the script's own."""
        self._current.metrics[name] = value

    def cut(self, step: int) -> None:
        """End the record at a step boundary."""
        current = self._current
        self._seq += 1
        current.seq, current.step, current.observed = self._seq, step, self.observed
        current.end, current.end_at = self.clock(), self._wall()
        self.completed_at = current.end_at
        self._phases[0], self._opening = OTHER, None
        following = StepStamps()
        following.marks.append((current.end, self._phases[-1]))
        if self.device is not None:
            moment = self.device.record()
            current.moments.append(moment)
            following.clock, following.moments = self.device, [moment]
        if len(self.finished) >= self._capacity:
            self.finished.popleft()
            self.dropped += 1
        self.finished.append(current)
        self._current = following

    def abandon(self) -> None:
        """Keep no more than the newest record: in a forked child nobody takes them."""
        self._capacity = 1
        self.finished.clear()

    def resume(self) -> None:
        """Begin the record anew, so that time spent held at the gate belongs to no step."""
        current = self._current
        current.marks[:] = [(self.clock(), self._phases[-1])]
        current.moments[:] = [] if current.clock is None else [current.clock.record()]
        current.draws.clear()
        current.samples = None
