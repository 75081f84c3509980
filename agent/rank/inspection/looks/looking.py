"""Looks at the training thread: the time that it spends in each line, by many glances at its stack for some seconds.

A rank looks only where the observer asks for it, because a verdict accuses this rank, or compares another one with it.
The training thread pays the interpreter lock for each glance, and nothing else.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from types import FrameType
from typing import Final, NamedTuple

from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.inspection.frames import current
from ddptop.agent.rank.inspection.looks.modules import Modules
from ddptop.agent.rank.inspection.looks.tally import Instruction, Place, Tally, stack_of
from ddptop.agent.rank.inspection.looks.workers import Workers
from ddptop.agent.rank.records.meter import intervals_of
from ddptop.agent.rank.records.stamps import ACTIVITIES, BACKWARD, Stamps, StepStamps
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.wire import Looks

EVERY_S: Final = 0.01
"""Seconds between two glances on average; they are uneven, so that no step's rhythm is theirs."""
LOOKS_S: Final = 3.0
"""Seconds that the looks take, where steps are short."""
_STEPS: Final = 3
"""Steps that they take at least, one of which has begun before them."""
_LONGEST_S: Final = 60.0
"""Seconds that they take at most."""
_SELDOM: Final = 5
"""Times as long it is from one glance to the next where they take longer."""
_SETTLES_S: Final = 1.5
"""Seconds after them by which the last step of them is to have ended."""
_ENOUGH: Final = 40
"""Glances within recorded steps that are enough; where there are fewer, the looks take twice as long, and where there
are too few then, those at all steps count."""
_BACKWARD: Final = ACTIVITIES[BACKWARD]
_ENGINE: Final = "run_backward"
"""Torch's functions that run a backward pass; on a device's tensors its hooks run on threads of its own, which stand
in Python's code for as long as these take."""


class _Glance(NamedTuple):
    at: int
    """Time by the clock of the stamps."""
    ns: int
    """Time since the glance before."""
    stack: tuple[Place, ...]
    """The innermost frame first."""
    phase: str
    """The phase at that moment, in which waiting is not told apart."""


class Looking:
    """The looks of one rank; for use from the agent's thread."""

    def __init__(
        self,
        stamps: Stamps,
        workers: Workers,
        modules: Modules,
        gate: Gate,
        sources: Callable[[], Sources],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at nothing yet.

        Args:
            stamps: of the training thread.
            workers: the data workers.
            modules: those of a backward pass.
            gate: holds the training thread while the group is paused.
            sources: returns the files of this process, once the script is known.
            clock: returns seconds, by which glances are due.
        """
        self._stamps = stamps
        self._workers = workers
        self._modules = modules
        self._gate = gate
        self._sources = sources
        self._clock = clock
        self._token: int | None = None
        self._found: tuple[Looks, ...] | None = None
        self._glances: list[_Glance] = []
        self._settled: list[_Glance] = []
        """Those of recorded steps, with their exact phases."""
        self._steps = 0
        """The recorded steps."""
        self._marked: list[_Glance] = []
        """Those of recorded steps whose modules are marked."""
        self._marked_steps = 0
        self._first = self._last = 0
        """Time of the beginning, and of the newest glance."""
        self._before = self._after = 0
        """Completed steps at the beginning, and at the end."""
        self._elsewhere: set[int] = set()
        """Threads that have been seen outside of a backward pass."""
        self._of_modules = False
        """The steps count whose modules are marked, where there are enough."""
        self._due = self._began = self._until = self._give_up = 0.0
        self._seen = 0.0
        """Time of the newest glance, or of the newest moment at which the thread was held."""
        self._is_looking = False
        # Not the generator of the module `random`: that is the script's.
        self._random = random.Random()

    def ask(self, token: int, *, modules: bool = False) -> tuple[Looks, ...] | None:
        """Return the looks for a verdict; None while they are not all there, and begin them where nobody has yet.

        Args:
            token: another one begins anew.
            modules: look for the modules of backward passes, too.
        """
        if token != self._token:
            self._token, self._found, self._is_looking = token, None, True
            self._glances, self._settled, self._marked = [], [], []
            self._steps = self._marked_steps = 0
            self._first = self._last = self._stamps.clock()
            self._before = self._stamps.steps
            # Where a hook asks for the present thread, Python makes one up.
            self._elsewhere = {
                each.ident or 0 for each in threading.enumerate() if not isinstance(each, threading._DummyThread)
            }
            self._due = self._began = self._seen = self._clock()
            self._give_up = self._began + _LONGEST_S
            self._workers.begin()
            self._of_modules = modules and self._modules.begin()
            if not self._of_modules:
                self._modules.end()
        elif self._found is None and not self._is_looking and self._clock() > self._until + _SETTLES_S:
            self._close()
        return self._found

    @property
    def pause_s(self) -> float | None:
        """Seconds to wait before the next `glance`; None where nobody looks."""
        return max(0.0, self._due - self._clock()) if self._is_looking else None

    def glance(self) -> None:
        """Look once, where that is due."""
        if not self._is_looking:
            return
        now, stamps = self._clock(), self._stamps
        if now < self._due:
            return
        took = now - self._began
        counted = self._marked if self._of_modules else self._settled
        least = LOOKS_S if len(counted) >= _ENOUGH else 2 * LOOKS_S
        if (took >= least and stamps.steps >= self._before + _STEPS) or now >= self._give_up:
            self._is_looking, self._until, self._after = False, now, stamps.steps
            self._workers.end()
            self._modules.end()
            return
        self._due = now + EVERY_S * self._random.uniform(0.5, 1.5) * (1 if took < least else _SELDOM)
        before, self._seen = self._seen, now
        if self._gate.held:
            # A pause is none of their time, as it is none of a step's.
            self._began, self._last = self._began + now - before, stamps.clock()
            return
        frames = current()
        frame = frames.get(stamps.thread or 0)
        at, phase = stamps.clock(), stamps.activity
        instructions = stack_of(frame)
        stack: tuple[Place, ...] = instructions
        if phase != _BACKWARD:
            self._elsewhere.update(frames)
        else:
            stack = self._in_backward(instructions, frames)
        frames.clear()
        self._glances.append(_Glance(at, at - self._last, stack, phase))
        self._last = at

    def _in_backward(self, stack: tuple[Instruction, ...], frames: dict[int, FrameType]) -> tuple[Place, ...]:
        """Return the stack with what the engine executes: a module's operators, and hooks on a thread of its own."""
        engine = next((index for index, (code, _) in enumerate(stack) if code.co_name.endswith(_ENGINE)), None)
        if engine is None:
            return stack
        hooks = stack[:engine]
        if not engine:
            hooks = stack_of(next((each for ident, each in frames.items() if ident not in self._elsewhere), None))
        return (*hooks, *reversed(self._modules.present), *stack[engine:])

    def settle(self, stamped: StepStamps) -> None:
        """Take note of a recorded step, from whose stamps the phases of its glances follow."""
        if self._found is not None or not self._glances or stamped.end <= self._first:
            return
        if not self._is_looking and stamped.end > self._last:
            if not self._workers.is_writing:
                self._close()
            return
        intervals = list(intervals_of(stamped))
        begin = stamped.end - intervals[-1][1] if intervals else 0
        if not intervals or begin < self._first:
            return
        first, last = (bisect_right(self._glances, moment, key=lambda each: each.at) for moment in (begin, stamped.end))
        is_marked = stamped.step in self._modules.steps
        self._steps += 1
        self._marked_steps += is_marked
        for glance in self._glances[first:last]:
            index = bisect_right(intervals, glance.at - begin, key=lambda each: each[0]) - 1
            self._settled.append(glance._replace(phase=intervals[index][2]))
            if is_marked:
                self._marked.append(self._settled[-1])

    def _close(self) -> None:
        """Sum up: the glances at marked steps, else at recorded ones where there are enough, else at all steps."""
        steps, glances, seen = self._steps, self._settled, self._glances
        if self._of_modules and len(self._marked) >= _ENOUGH:
            steps, glances = self._marked_steps, self._marked
        self._glances, self._settled, self._marked = [], [], []
        if len(glances) < _ENOUGH:
            steps = self._after - self._before
            # Where a backward pass waits for others, only the stamps of a recorded step tell.
            glances = [each for each in seen if each.phase != _BACKWARD]
        tally = Tally(self._sources())
        for each in glances:
            tally.add(each.phase, each.stack, each.ns)
        of_workers = self._workers.take()
        self._found = (tally.looks(max(0, steps)), *([] if of_workers is None else [of_workers]))
