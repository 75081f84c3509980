"""What the training thread writes down: stamps, and nothing else.

All arithmetic is left to the agent's own thread (`meter`), because every microsecond here
is one of the training's.  A list append under the interpreter lock is the only
synchronization: one thread writes, another reads what is finished.
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
    """One collective, from entry to completion, on the clock of the tape."""

    __slots__ = ("blocking", "bytes", "done", "entered", "in_flight", "op")

    def __init__(self, op: str, entered: int, size: int, in_flight: int, blocking: bool) -> None:
        self.op = op
        self.entered = entered
        self.done: int | None = None
        self.bytes = size
        self.in_flight = in_flight
        self.blocking = blocking
        """True where the caller does not go on before completion."""


class Take:
    """Everything stamped between two step boundaries."""

    __slots__ = ("calls", "end", "end_at", "losses", "marks", "metrics", "observed", "samples", "seq", "step")

    def __init__(self) -> None:
        self.marks: list[tuple[int, int]] = []
        """(clock in ns, phase that begins there)"""
        self.calls: list[Call] = []
        self.losses: list[Pending] = []
        self.samples: int | None = None
        self.metrics: dict[str, float] = {}
        self.observed = False
        """True where collectives are seen at all."""
        self.seq = 0
        self.step = 0
        self.end = 0
        self.end_at = 0


class Tape:
    """The stamps of one rank. Only the training thread calls its methods, except where noted."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], int] = time.time_ns,
        capacity: int = 8192,
    ) -> None:
        self.clock = clock
        self._wall = wall
        self._capacity = capacity
        self._phases = [OTHER]
        self._seq = 0
        self._take = Take()
        self.observed = False
        """Set once collectives are hooked."""
        self.finished: deque[Take] = deque()
        """Complete takes, oldest first; the agent's thread takes them from the left."""
        self.dropped = 0
        self.completed_at: int | None = None
        """Wall clock of the last boundary, ns."""

    @property
    def activity(self) -> str:
        """The phase that the training thread is in; may be read from any thread."""
        return ACTIVITIES[self._phases[-1]]

    @property
    def begun(self) -> bool:
        """True once anything of a training step was seen."""
        return bool(self._take.marks) or self._seq > 0

    def enter(self, phase: int) -> None:
        """Begin a phase inside the present one; `leave` returns to it."""
        self._phases.append(phase)
        self._take.marks.append((self.clock(), phase))

    def leave(self) -> None:
        """End the innermost phase."""
        if len(self._phases) > 1:
            self._phases.pop()
        self._take.marks.append((self.clock(), self._phases[-1]))

    def turn(self, phase: int) -> None:
        """Change the present phase itself."""
        self._phases[-1] = phase
        self._take.marks.append((self.clock(), phase))

    def call(self, call: Call) -> None:
        """Note a collective; from whichever thread issues it."""
        self._take.calls.append(call)

    def loss(self, value: Pending) -> None:
        """Note a loss that `backward` was called on."""
        self._take.losses.append(value)

    def drew(self, samples: int) -> None:
        """Note the size of a batch."""
        self._take.samples = (self._take.samples or 0) + samples

    def metric(self, name: str, value: float) -> None:
        """Note a value of the script's own."""
        self._take.metrics[name] = value

    def cut(self, step: int) -> None:
        """End the record at a step boundary."""
        take = self._take
        self._seq += 1
        take.seq, take.step, take.observed = self._seq, step, self.observed
        take.end, take.end_at = self.clock(), self._wall()
        self.completed_at = take.end_at
        if len(self.finished) >= self._capacity:
            self.finished.popleft()
            self.dropped += 1
        self.finished.append(take)
        self._phases[0] = OTHER
        self._take = Take()
        self._take.marks.append((take.end, self._phases[-1]))

    def resume(self) -> None:
        """Begin the record anew, so that time spent held at the gate belongs to no step."""
        self._take.marks[:] = [(self.clock(), self._phases[-1])]
