"""The stamps that the training thread writes.

All arithmetic is left to the agent's own thread (`meter`), because every microsecond here
delays the training.  There are no locks: the training's threads append under the interpreter
lock, and the agent's thread reads finished steps.

Where stamps cost a rank more than its budget, only one step in k is *recorded*; the others are *counted*, and sent with
the next record.  Of a counted step there is a trail of its phases and losses, until the next one is over: of the last
step before a hold, or before the end of the script, a record is made of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeAlias

from ddptop.agent.rank.records.cost import Cost
from ddptop.agent.rank.records.sampling import next_sampled

DATA: Final = 0
FORWARD: Final = 1
BACKWARD: Final = 2
OPTIMIZER: Final = 3
OTHER: Final = 4
COPY: Final = 5
"""Copies from the host's memory to an accelerator's; see `hooks.copies`."""

_LONGEST_TRAIL: Final = 8192
"""Marks of a counted step that are remembered, the newest: a step may have no end."""
_RARE_STEPS: Final = 16
"""Steps without an evaluation after which the step with the next one is recorded: some loops evaluate in each step."""

ACTIVITIES: Final = ("data", "forward", "backward", "optimizer", "other", "copy")


Mark: TypeAlias = "tuple[int, int] | tuple[int, int, Any]"
"""Clock in ns, the phase that begins there, and at the end of a backward pass its loss: a number, or a tensor of the
device."""


class Pending(Protocol):
    """A number that may still be on its way from the device."""

    def read(self) -> float | None:
        """Return the value, or None until it has arrived."""


class Call:
    """One collective, from entry to completion, on the clock of the stamps."""

    __slots__ = (
        "blocking", "bytes", "deferred", "device", "done", "entered", "estimated", "expected", "form", "group",
        "in_flight", "moments", "number", "op", "origin", "thread", "workers",
    )  # fmt: skip

    def __init__(
        self, op: str, entered: int, size: int, in_flight: int, blocking: bool, *, group: str = "", workers: int = 0
    ) -> None:
        self.op = op
        self.entered = entered
        self.origin = ""
        """Module of the Python code that called into C++, of calls that C++ itself waits for; otherwise empty."""
        self.done: int | None = None
        self.bytes = size
        self.form: tuple[Any, Any] | None = None
        """Type and shape of its first tensor; None where it has none."""
        self.in_flight = in_flight
        self.blocking = blocking
        """True where the training thread is blocked until completion."""
        self.group = group
        self.number = 0
        """The how-manieth call of the group it is on this rank, from 1; 0 where it is not counted."""
        self.workers = workers
        """Number of the group's collectives that the backend works on at a time, 0 where that is not known."""
        self.thread = 0
        """Identifier of the thread that called it."""
        self.deferred = False
        """True where the end of the backward pass waits for it: DDP's buckets."""
        self.estimated = False
        """True where `done` is the end of a wait for it, or `in_flight` may count complete calls."""
        self.expected = True
        """False where its completion is not reported."""
        self.device: DeviceClock | None = None
        """Clock of the device on which it runs, which measures its duration; `done` stays None then."""
        self.moments: list[Moment | None] | None = None
        """The device's moments of the call and of its completion; None without a device clock."""

    @property
    def duration(self) -> int | None:
        """Time from the call to completion in ns, None until it is known."""
        if self.device is not None:
            moments = self.moments
            spans = self.device.spans(moments) if moments is not None and len(moments) == 2 else None
            return spans[0] if spans else None
        return None if self.done is None else self.done - self.entered


class Draw:
    """One batch drawn from a data loader, and its use."""

    __slots__ = ("begin", "dataset", "evaluation", "samples", "tokens", "trained")

    def __init__(self, begin: int, dataset: int, evaluation: bool) -> None:
        self.begin = begin
        """Index of the mark at its beginning."""
        self.dataset = dataset
        """Number of the dataset, which identifies the loader."""
        self.samples: int | None = None
        self.tokens: int | None = None
        self.evaluation = evaluation
        """True where the batch was drawn, or first used, without gradients."""
        self.trained = False
        """True for the last batch drawn before a backward pass."""


class Moment(Protocol):
    """A point on the device's own time line, which the device reaches later."""


class DeviceClock(Protocol):
    """Records moments on the device's time line and reads them later, without waiting for the device."""

    def record(self) -> Moment | None:
        """Return a moment after the work enqueued on the device so far."""

    def spans(self, moments: list[Moment | None]) -> list[int] | None:
        """Return the ns from each moment to the next, None where they are not known, or not yet."""


class StepStamps:
    """The stamps of one step, between two step boundaries."""

    __slots__ = (
        "calls", "clock", "counted", "counted_ns", "draws", "end", "end_at", "full", "gradients", "losses", "marks",
        "metrics", "missed", "moments", "observed", "parts", "rate", "samples", "seq", "skipped", "skips", "spoiled",
        "step", "tokens", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.marks: list[tuple[int, int]] = []
        """(clock in ns, phase that begins there)"""
        self.moments: list[Moment | None] = []
        """The device's moments of the marks and of the end; empty without a device clock."""
        self.clock: DeviceClock | None = None
        self.full = False
        """True once the number of marks has reached its bound, so that no more are added."""
        self.calls: list[Call] = []
        self.waits: list[tuple[int, int]] = []
        """Begin and end of the training thread's waits for collectives."""
        self.draws: list[Draw] = []
        self.losses: list[Pending] = []
        self.parts: list[frozenset[int]] = []
        """Of each backward pass, the numbers by which its loss was divided before."""
        self.gradients: list[Pending] = []
        """Numbers that are finite where the gradients are."""
        self.skipped: Pending | None = None
        """Not zero where a GradScaler skipped the optimizer, because gradients were not finite; None where none did."""
        self.samples: int | None = None
        self.tokens: int | None = None
        self.rate: float | None = None
        """Learning rate."""
        self.metrics: dict[str, float] = {}
        self.counted = 0
        """Steps before this one, since the last record, that were only counted."""
        self.counted_ns = 0
        """Time of these from boundary to boundary."""
        self.skips = 0
        """The last of them, in a row, that a GradScaler skipped."""
        self.spoiled: tuple[int, float] | None = None
        """The first of them with a loss that is not finite: its number, and the loss."""
        self.missed = False
        """True where a collective could not be noted."""
        self.observed = False
        """True where all collectives are observed."""
        self.seq = 0
        self.step = 0
        self.end = 0
        self.end_at = 0


class Stamps:
    """The stamps of one rank. Phases, steps and losses are stamped by the training thread."""

    __slots__ = (
        "_before", "_blocked", "_capacity", "_current", "_ended", "_evaluated", "_every", "_kept", "_next",
        "_next_of", "_opening", "_parts", "_recorded", "_room", "_seq", "_since", "_skipped_at", "_waited_at",
        "clock", "completed_at", "cost", "device", "dropped", "eventful", "finished", "homes", "observed", "phases",
        "recording", "steps", "thread", "trail", "wall",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], int] = time.time_ns,
        capacity: int = 8192,
        room: int = 50_000,
    ) -> None:
        self.clock = clock
        self.wall = wall
        self._capacity = capacity
        self._room = room
        self.thread = threading.main_thread().ident
        """The training thread: the main one, or the one whose steps are counted."""
        self.phases = [OTHER]
        """The phases that the training thread is in, the innermost last."""
        self.homes = [OTHER]
        """Those that were entered, where `turn` has put others in their place."""
        self._opening: int | None = None
        self._seq = 0
        self._recorded = 0
        """`steps` at the end of the newest step that was recorded."""
        self._since = clock()
        """When that one ended."""
        self._waited_at = -1
        self.trail: deque[Mark] = deque(maxlen=_LONGEST_TRAIL)
        """The marks of this step where it is only counted, from its boundary on."""
        self._kept: deque[Mark] = deque(maxlen=_LONGEST_TRAIL)
        """Those of the step before it, as far as its end."""
        self._blocked: deque[tuple[int, int]] = deque(maxlen=64)
        """Newest waits for collectives in counted steps."""
        self._evaluated = -_RARE_STEPS
        """`steps` at the last evaluation that was seen in a counted step."""
        self._ended: Moment | None = None
        """The device's moment of this boundary."""
        self._skipped_at = 0
        """Number of the last counted step that a GradScaler skipped."""
        self._current = StepStamps()
        self._parts: list[frozenset[int]] = []
        """`StepStamps.parts` of the newest record."""
        self.cost = Cost()
        self.recording = True
        """False in a step that is only counted. The first step is recorded, whatever `every` is."""
        self.eventful = 0
        """The next step at whose boundary there is more to do than to count it: `cut` is to be called there."""
        self._every = 1
        self._next = 0
        """The next step that is recorded, chosen when `every` was `_next_of`."""
        self._next_of = 0
        self.steps = 0
        """Steps completed, those included that were only counted, and those before the present count."""
        self._before = 0
        """Those before the present count."""
        self.device: DeviceClock | None = None
        """Set once the training is known to run on a device with its own time line."""
        self.observed = False
        """Set once collectives are hooked."""
        self.finished: deque[StepStamps] = deque()
        """Recorded steps, oldest first; the agent's thread removes them from the left."""
        self.dropped = 0
        self.completed_at: int | None = None
        """Wall clock of the last boundary, ns."""

    @property
    def every(self) -> int:
        """One step in so many is recorded, a power of two; see `next_sampled`. Set by the agent's thread."""
        return self._every

    @every.setter
    def every(self, every: int) -> None:
        self._every = every
        # Last: `cut` looks at the number again after it has set this.
        self.eventful = 0

    @property
    def activity(self) -> str:
        """The present phase of the training thread; may be read from any thread."""
        return ACTIVITIES[self.phases[-1]]

    @property
    def in_backward(self) -> bool:
        """True during a backward pass."""
        return self.phases[-1] == BACKWARD

    @property
    def begun(self) -> bool:
        """True once there is a stamp of a training step."""
        return self.steps > 0 or bool(self._current.marks)

    def enter(self, phase: int) -> None:
        """Begin a phase inside the present one; `leave` returns to it."""
        self.phases.append(phase)
        self.homes.append(phase)
        self._mark(phase)

    def leave(self) -> None:
        """End the innermost phase."""
        if len(self.phases) > 1:
            self.phases.pop()
            self.homes.pop()
        self._mark(self.phases[-1])

    def turn(self, phase: int) -> None:
        """Replace the innermost phase, until `settle` or the end of the phase around it."""
        self.phases[-1] = phase
        self._mark(phase)

    def settle(self) -> None:
        """End the innermost phase, and restore the entered phase around it where `turn` has replaced that.

        After a backward pass this ends the forward pass; inside of an optimizer's closure, the optimizer phase
        goes on.
        """
        self.phases.pop()
        self.homes.pop()
        self.turn(self.homes[-1])

    def _mark(self, phase: int) -> None:
        if not self.recording:
            self.trail.append((self.clock(), phase))
            return
        current = self._current
        if len(current.marks) < self._room:
            current.marks.append((self.clock(), phase))
        elif not current.full:
            # A step without end (no optimizer of torch) must not fill the memory.
            current.full = True
            current.marks.append((self.clock(), OTHER))
        else:
            return
        # A clock that is set in the middle of a step begins with the next step.
        if current.clock is not None:
            current.moments.append(current.clock.record())

    def call(self, call: Call) -> None:
        """Note a collective; may be called from any thread."""
        if len(self._current.calls) < self._room:
            self._current.calls.append(call)

    def miss(self) -> None:
        """Note that a collective could not be noted; may be called from any thread."""
        self._current.missed = True

    def waited(self, begin: int, end: int) -> None:
        """Note that the training thread waited for a collective."""
        self._waited_at = begin
        if not self.recording:
            self._blocked.append((begin, end))
        elif len(self._current.waits) < self._room:
            self._current.waits.append((begin, end))

    def waited_since(self, moment: int) -> bool:
        """Say whether the training thread began to wait for a collective at `moment` or later, and that wait has ended.

        May be called from any thread.
        """
        return self._waited_at >= moment

    def loss(self, value: Pending) -> None:
        """Note a loss on which `backward` was called."""
        if len(self._current.losses) < self._room:
            self._current.losses.append(value)

    def divided(self, by: frozenset[int]) -> None:
        """Note the whole numbers by which the loss of a backward pass that begins was divided."""
        if len(self._current.parts) < self._room:
            self._current.parts.append(by)

    def spoiled(self, loss: float) -> None:
        """Note, in a step that is only counted, that its loss is not finite."""
        if self._current.spoiled is None:
            self._current.spoiled = self.steps - self._before + 1, loss

    def gradient(self, value: Pending) -> None:
        """Note a number that is finite where the gradients are; may be called from any thread."""
        if len(self._current.gradients) < self._room:
            self._current.gradients.append(value)

    def open_loader(self) -> None:
        """Note the start of a loader; the time of its data workers' start belongs to the first batch."""
        self._opening = len(self._current.marks)
        self.enter(DATA)

    def draw(self, dataset: int, *, evaluation: bool) -> None:
        """Begin to wait for a batch; `drew` ends the wait."""
        current = self._current
        if self.recording and len(current.draws) < self._room:
            begin = len(current.marks) if self._opening is None else min(self._opening, len(current.marks))
            current.draws.append(Draw(begin, dataset, evaluation))
        self._opening = None
        self.enter(DATA)

    def drew(self, samples: int | None, tokens: int | None = None) -> None:
        """Note that the batch has arrived, and its size where that is known."""
        self.leave()
        if not self.recording:
            return
        current = self._current
        if current.draws:
            current.draws[-1].samples, current.draws[-1].tokens = samples, tokens
        if samples is not None:
            current.samples = (current.samples or 0) + samples
        if tokens is not None:
            current.tokens = (current.tokens or 0) + tokens

    def used(self, *, evaluation: bool) -> None:
        """Note the use of the last batch, for evaluation or for training."""
        draws = self._current.draws
        if draws and evaluation:
            draws[-1].evaluation = draws[-1].evaluation or not draws[-1].trained
        elif draws:
            draws[-1].trained, draws[-1].evaluation = True, False

    def skip(self, overflow: Pending) -> None:
        """Note that a GradScaler skipped the optimizer in this step, unless `overflow` is zero."""
        current = self._current
        if self.recording:
            if current.skipped is None or not current.skipped.read():
                current.skipped = overflow
        elif self._skipped_at <= self.steps and overflow.read():
            current.skips = current.skips + 1 if self._skipped_at == self.steps else 1
            self._skipped_at = self.steps + 1

    def rate(self, value: float) -> None:
        """Note the learning rate of this step."""
        self._current.rate = value

    def metric(self, name: str, value: float) -> None:
        """Note a value that the script logs."""
        self._current.metrics[name] = value

    def cut(self, step: int) -> None:
        """End the step of this number at its boundary: record it, or count it.

        Of a step before `eventful` it is enough to set `steps`, `completed_at` and the outermost of the `phases`, and
        to `keep` its trail: what else there is to begin anew is used only in a step that is recorded, before which this
        is called.
        """
        now = self.clock()
        self.keep(now)
        self.steps += 1
        self.completed_at = self.wall()
        self.phases[0], self._opening = OTHER, None
        if self.recording:
            if self.device is not None:
                self._ended = self.device.record()
                self._current.moments.append(self._ended)
            self._finish(self._current, step, now)
            self._current = StepStamps()
        following = step + 1
        if following > self._next or self._next_of != self._every:
            self._next_of = every = self._every
            self._next = following if every == 1 else next_sampled(following, every)
        self.recording = recording = following == self._next
        if recording:
            self._begin(now)
        self._ended = None
        self.cost.turn(following, recording=recording)
        self.eventful = 0 if recording else min(self._next, self.cost.next_counted) - 1
        if self._next_of != self._every:
            self.eventful = 0

    def keep(self, now: int) -> None:
        """Keep the trail of the step that ends now, and begin another one."""
        self._kept, self.trail = self.trail, self._kept
        mark = (now, OTHER)
        self._kept.append(mark)
        self.trail.clear()
        self.trail.append(mark)

    def evaluates(self) -> None:
        """Note an evaluation in a counted step, which is recorded from now on, unless there was one shortly before."""
        is_rare = self.steps - self._evaluated >= _RARE_STEPS
        self._evaluated = self.steps
        if is_rare:
            self._record_now()
            marks = self._current.marks
            # The batches so far were those of the evaluation.
            marks[:] = [(at, OTHER if phase == DATA else phase) for at, phase in marks]

    def record_present(self) -> None:
        """Record the present step, whatever `every` is."""
        if not self.recording:
            self._record_now()

    def _record_now(self) -> None:
        """Record the present step after all; what is known of its beginning is its trail."""
        began = self.trail[0][0]
        self.recording, self.eventful = True, 0
        self._begin(began)
        current = self._current
        current.marks[:] = [mark[:2] for mark in self.trail]
        # Moments of the device are missing for these marks, so that its times are not known.
        current.clock = None
        current.moments.clear()

    def tell_last(self, step: int, calls: Iterable[Call], pending: Callable[[Any], Pending | None]) -> None:
        """Record the last step, which is over, where it was only counted: the numbers that are shown are to be its own.

        Args:
            step: its number.
            calls: its collectives.
            pending: makes a loss of the trail readable.
        """
        kept = tuple(self._kept)
        if self._recorded == self.steps or len(kept) == _LONGEST_TRAIL:
            return
        began, now = kept[0][0], kept[-1][0]
        # With it goes what was noted of counted steps before it, and by the script since.
        told, self._current = self._current, StepStamps()
        told.marks[:] = [mark[:2] for mark in kept[:-1]]
        told.waits[:] = [(since, until) for since, until in tuple(self._blocked) if began <= since and until <= now]
        losses = [pending(mark[2]) for mark in kept if len(mark) > 2]
        told.losses[:] = [loss for loss in losses if loss is not None]
        told.parts[:] = self._parts
        told.calls[:] = calls
        if self._skipped_at == self.steps:
            told.skipped, told.skips = pending(1.0), told.skips - 1
        else:
            told.skips = 0
        for of_this_step in (told.draws, told.moments, told.gradients):
            of_this_step.clear()
        told.clock = told.samples = told.tokens = None
        told.counted = self.steps - 1 - self._recorded
        told.counted_ns = began - self._since
        self._finish(told, step, now)
        if self.recording:
            self._begin(now)

    def _begin(self, now: int) -> None:
        """Begin a step that is recorded, at the boundary of the one before it."""
        current = self._current
        current.counted = self.steps - self._recorded
        current.missed = False
        current.counted_ns = now - self._since
        if self._skipped_at != self.steps:
            current.skips = 0
        current.marks.append((now, self.phases[-1]))
        if self.device is not None:
            current.clock = self.device
            # Without a step in between, one moment is the end of a record and the beginning of the next.
            current.moments.append(self._ended or self.device.record())

    def _finish(self, current: StepStamps, step: int, now: int) -> None:
        self._seq += 1
        current.seq, current.step, current.observed = self._seq, step, self.observed and not current.missed
        current.end, current.end_at = now, self.completed_at or 0
        if len(self.finished) >= self._capacity:
            self.finished.popleft()
            self.dropped += 1
        self.finished.append(current)
        self._parts = current.parts
        self._recorded, self._since = self.steps, now

    def renumber(self, counted: int = 0) -> None:
        """Begin the first step of another count, which is recorded, or that behind so many."""
        self._before, self._next, self.cost.next_counted = self.steps - counted, 0, 0
        self.resume()

    def abandon(self) -> None:
        """Store only the newest record: in a forked child no thread reads them."""
        self._capacity = 1
        self.finished.clear()

    def resume(self) -> None:
        """Restart the step, so that the time of a hold belongs to none.

        It is recorded, and so is each single step of a paused run.
        """
        now = self.clock()
        self.record_present()
        current = self._current
        current.marks[:] = [(now, self.phases[-1])]
        current.clock = self.device
        current.moments[:] = [] if current.clock is None else [current.clock.record()]
        current.draws.clear()
        current.samples = current.tokens = None
