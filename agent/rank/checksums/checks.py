"""When checksums are due, and the messages that are made of them.

The training thread computes them, every so many steps or at a step that was asked for; the agent's thread reads and
sends them.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from ddptop.agent.rank.ahead import Passed, Unanswered
from ddptop.agent.rank.checksums.modules import Module, Modules
from ddptop.agent.rank.checksums.sums import Sums, Weights, checksums
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.records.device_time import CAPTURES
from ddptop.agent.run.switches.checking import Checking
from ddptop.agent.text import clean_line
from ddptop.agent.wire import Checksums, ModuleSums

UNREAD: Final = 256
"""Checks that wait to be sent; after that the oldest is dropped."""
ASKED: Final = 8
"""Checks on request whose result is kept, and steps that may be asked for at a time."""
RECALLED: Final = 16
"""Messages that are sent again to a new subscriber: an observer comes a moment after the first step."""
NAMES_S: Final = 10.0
"""Seconds after which the names are sent again, for an observer that has missed them."""
_LONGEST_PROBLEM: Final = 200
_MOST_STREAKS: Final = 8
"""Streaks that are kept, the newest: a script may make a new optimizer for each step."""
MOST_FAILURES: Final = 3
"""Failed checks after which none is tried any more: each would take time from the training."""


class QuietSteps:
    """Steps of an optimizer at whose boundaries nothing was due."""

    __slots__ = ("_modules", "optimizer", "steps")

    def __init__(self, optimizer: Callable[[], Any], modules: list[Module]) -> None:
        """Begin with none; `optimizer` is a weak reference, and `modules` are those that it changes."""
        self.optimizer = optimizer
        self._modules = modules
        self.steps = 0

    def settle(self) -> None:
        """Count them as steps of the modules, and begin anew."""
        for module in self._modules:
            module.steps += self.steps
        self.steps = 0


@dataclass(frozen=True, slots=True)
class _Part:
    module: ModuleSums
    """Without names and checksums."""
    names: list[str]
    sums: Sums


@dataclass(frozen=True, slots=True)
class _Check:
    step: int
    at_ns: int
    took_ns: int
    parts: list[_Part]


class Checks:
    """The checks of one rank."""

    def __init__(self, rank: int, generation: int, faults: Faults, checking: Checking = Checking()) -> None:  # noqa: B008
        """Check as often as `checking` says, once `watch` was called."""
        self._checking = checking
        self._rank = rank
        self.generation = generation
        self._faults = faults
        self._torch: Any = None
        self._modules: Modules | None = None
        self._weights: Weights | None = None
        self._changed: dict[Module, None] = {}
        """Modules whose parameters were changed since the last boundary."""
        self._asked: frozenset[int] = frozenset()
        """Steps that were asked for and are not checked yet."""
        self._answers: dict[int, Checksums] = {}
        """By step, what was found there on request."""
        self._finished: deque[_Check] = deque()
        self._failures = 0
        self._problem = ""
        """Why the last check has failed, where it has."""
        self._recent: deque[Checksums] = deque(maxlen=RECALLED)
        self._names: dict[str, tuple[str, ...]] = {}
        """By layout."""
        self._names_due: dict[str, float] = {}
        """By layout, when its names are to be sent again."""
        self._stepped: list[Callable[[], Any]] = []
        """Weak references to the optimizers that have made a step since the last boundary, to two of them at most."""
        self.quiet_steps: dict[int, QuietSteps] = {}
        """By the address of the optimizer, the newest ones; none of one inside of whose steps another one steps."""
        self.quiet = False
        """Nobody has asked for a check, and since the last boundary no optimizer was given to `stepped`: at the next
        boundary it is enough to count a quiet step of its optimizer, where some are counted."""

    def watch(self, torch: Any) -> None:
        """Begin; torch was imported."""
        self._torch, self._weights = torch, Weights(torch)
        self._modules = Modules(torch, self._checking.buffers)

    def wrapped(self, module: Any) -> None:
        """Note a DDP module that was just made."""
        if self._modules is not None:
            self._settle()
            self.quiet_steps.clear()
            self._modules.wrap(module)

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer has made a step."""
        if self._modules is not None:
            self.quiet = False
            if len(self._stepped) < 2:
                self._stepped.append(weakref.ref(optimizer))
            for module in self._modules.changed(optimizer):
                self._changed[module] = None

    def _settle(self) -> None:
        """Count the quiet steps as steps of the modules."""
        # A script may wrap a module in one thread while another one trains.
        for quiet in tuple(self.quiet_steps.values()):
            quiet.settle()

    def _begin_quiet_steps(self, optimizer: Callable[[], Any]) -> None:
        here = id(optimizer())
        quiet = self.quiet_steps.pop(here, None)
        if quiet is not None:
            quiet.settle()
        elif len(self.quiet_steps) >= _MOST_STREAKS:
            self.quiet_steps.pop(next(iter(self.quiet_steps))).settle()
        self.quiet_steps[here] = QuietSteps(optimizer, list(self._changed))

    def boundary(self, step: int) -> None:
        """Check what is due at the end of a step; called by the training thread.

        Raises:
            Exception: there is no checksum, because the device has failed or has no memory left.
        """
        stepped, self._stepped = self._stepped, []
        every = self._checking.every
        if not every and step not in self._asked:
            # The usual step.
            for module in self._changed:
                module.steps += 1
            if len(stepped) == 1:
                self._begin_quiet_steps(stepped[0])
            self._changed.clear()
            self.quiet = True
            # `ask` first notes the step, and then ends the quiet, which may have been between these lines.
            if self._asked:
                self.quiet = False
            return
        self._settle()
        changed, self._changed = self._changed, {}
        for module in changed:
            module.steps += 1
        due = [module for module in changed if every and module.steps % every == 0]
        if self._modules is not None and step in self._asked:
            due = self._modules.all()
        elif not due:
            return
        # During a capture nothing may be asked of the device; all ranks capture at the same step.
        if self._failures < MOST_FAILURES and len(self._finished) < UNREAD and not CAPTURES.under_way:
            self._failures += 1
            try:
                self._finished.append(self._check(step, due))
            except Exception as error:
                self._problem = clean_line(f"{type(error).__name__}: {error}", _LONGEST_PROBLEM)
                raise
            self._failures, self._problem = 0, ""

    def _check(self, step: int, modules: list[Module]) -> _Check:
        began = time.perf_counter_ns()
        assert self._weights is not None
        parts = []
        for each in modules:
            if (tensors := each.tensors()) is not None:
                told = ModuleSums(
                    each.group, each.number, each.steps, each.layout, b"", each.members,
                    sharded=each.sharded, left_out=each.left_out,
                )  # fmt: skip
                parts.append(_Part(told, each.names, checksums(self._torch, tensors, self._weights)))
        return _Check(step, time.time_ns(), time.perf_counter_ns() - began, parts)

    def ask(self, step: int, completed: int) -> Checksums | None:
        """Have the checksums at the end of a step computed; return them, None until they are there.

        Args:
            step: the step.
            completed: steps that the rank has made.

        Raises:
            Passed: the rank had made the step before it was asked.
            Unanswered: it has made the step, and its last check has failed.
        """
        if (found := self._answers.get(step)) is not None:
            return found
        if any(check.step == step for check in tuple(self._finished)):
            return None
        if step <= completed:
            self._asked -= {step}
            if self._problem:
                raise Unanswered(f"cannot compute checksums: {self._problem}")
            raise Passed
        # What somebody has asked for and no longer waits for is dropped for the next one who asks.
        self._asked = frozenset(sorted({*self._asked, step})[-ASKED:])
        self.quiet = False
        return None

    def take(self) -> Iterator[Checksums]:
        """Yield what has come from its device, oldest first; called by the agent's thread."""
        while self._finished:
            check = self._finished[0]
            try:
                message = self._message(check)
            except Exception as error:
                # A failed device raises its error in every call.
                self._faults.note("reading checksums of parameters", error)
                self._problem = clean_line(f"{type(error).__name__}: {error}", _LONGEST_PROBLEM)
                self._finished.popleft()
                continue
            if message is None:
                return
            if check.step in self._asked:
                self._answers[check.step] = message
                while len(self._answers) > ASKED:
                    del self._answers[next(iter(self._answers))]
                self._asked -= {check.step}
            self._finished.popleft()
            self._recent.append(message)
            yield message

    def recall(self) -> list[Checksums]:
        """Return the newest messages once more, with names."""
        return [
            replace(
                message,
                modules=tuple(replace(each, names=self._names.get(each.layout, ())) for each in message.modules),
            )
            for message in self._recent
        ]

    def _message(self, check: _Check) -> Checksums | None:
        """Return what is sent of a check, None until all of it has come from its device."""
        now, modules = time.monotonic(), []
        for part in check.parts:
            sums = part.sums.read()
            if sums is None:
                return None
            layout = part.module.layout
            names = self._names.setdefault(layout, tuple(part.names))
            due = check.step in self._asked or now >= self._names_due.get(layout, 0.0)
            modules.append(replace(part.module, sums=sums, names=names if due else ()))
        for module in modules:
            if module.names:
                self._names_due[module.layout] = now + NAMES_S
        every = self._checking.every
        return Checksums(self._rank, check.step, check.at_ns, tuple(modules), check.took_ns, every, self.generation)
