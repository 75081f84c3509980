"""The steps of a script without an optimizer of torch, and those that a script marks by hand.

As long as no optimizer of torch was made, a step is a backward pass through DDP or FSDP2; before the first of these,
a batch of the data loader.  Once the script has called `ddptop.agent.step`, only its calls are steps.  With the first
optimizer, or the first such call, the count begins anew: what was counted before was an evaluation, or a warm-up.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent.rank.hooks.around import replace

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

_PATIENCE_TICKS: Final = 60
"""Seconds without a step, from the first sign of the training, until that is said."""
CALLS: Final = "calls of ddptop.agent.step()"
BACKWARD: Final = "backward passes"
BATCHES: Final = "batches"


class Marks:
    """Ends the steps of a rank that no optimizer of torch ends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.steps_are = ""
        """The thing that is counted; empty where it is optimizer steps, or nothing yet."""
        self.has_optimizer = False
        """True once an optimizer of torch was made."""
        self._calls = 0
        self._depth = 0
        """Backward passes inside of each other: activation checkpointing runs one inside of another."""
        self._unsynced = 0
        self._loader: weakref.ref[Any] | None = None
        """The iterator whose batches are counted: several may feed one step."""
        self._drawn = False
        """True where a batch of it was drawn whose step has not ended."""
        self._ticks = 0
        self._said = False

    @property
    def by_hand(self) -> bool:
        """True once the script has marked a step."""
        return self._calls > 0

    @property
    def _idle(self) -> bool:
        return self.has_optimizer or self._calls > 0

    def called(self) -> None:
        """Take a call of `ddptop.agent.step`; optimizer steps that were counted before the first are made up for."""
        self._calls += 1
        self._settle(CALLS)
        if self._calls > self._session.gate.completed:
            self._end()
        # The hooks of the optimizers would count by themselves before that.
        self._session.stamps.eventful = 0

    def _settle(self, kind: str) -> None:
        """Count only what is surely a step from now on; what was counted for want of it is no step any more."""
        before, self.steps_are = self.steps_are, kind
        if before in (BACKWARD, BATCHES):
            number, sure = self._session.gate.completed, kind or "steps of an optimizer"
            self._session.recount()
            self._say(f"steps are counted anew: they are {sure}, and not the {number:,} {before} so far")

    def _end(self) -> None:
        self._session.end_step(by_hand=True)
        self._session.count(by_hand=True)

    def _ends(self, kind: str) -> None:
        if self.steps_are != kind:
            self.steps_are = kind
            self._say(f"steps are {kind}: the script has no optimizer of torch so far")
        self._end()

    def tick(self) -> None:
        """Once a second, in the agent's thread: say where a training has no step that can be counted."""
        if not self._said and not self._session.gate.completed and self._session.stamps.begun:
            self._ticks += 1
            if self._ticks >= _PATIENCE_TICKS:
                self._say_uncounted()

    def close(self) -> None:
        """Count the last batch, whose end is that of the script; say where nothing was counted."""
        session = self._session
        if self._drawn and not self._idle and not session.sees_forward:
            self.steps_are = BATCHES
            session.end_step(by_hand=True)
            session.gate.completed += 1
        if not self._said and not session.gate.completed and (session.stamps.begun or session.backend is not None):
            self._say_uncounted()

    def _say_uncounted(self) -> None:
        self._said = True
        self._say("no optimizer step seen: steps are not counted (a call of `ddptop.agent.step()` marks each)")

    def _say(self, line: str) -> None:
        if self._session.rank == 0:
            self._session.notify(line, "info")

    def install(self, torch: Any) -> None:
        """Watch backward passes and batches until an optimizer of torch is made."""
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim import Optimizer
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        init, no_sync = Optimizer.__init__, DistributedDataParallel.no_sync
        compute, draw, compiling = torch.autograd.backward, _BaseDataLoaderIter.__next__, torch.compiler.is_compiling
        stamps, ident = self._session.stamps, threading.get_ident

        @functools.wraps(init)
        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self.has_optimizer = True
            put_back()
            if not self.by_hand:
                self._settle("")
            init(optimizer, *args, **kwargs)

        @functools.wraps(compute)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if ident() != stamps.thread:
                return compute(*args, **kwargs)
            self._depth += 1
            try:
                result = compute(*args, **kwargs)
            finally:
                self._depth -= 1
            synced = self._session.sees_forward and not self._unsynced
            if not self._depth and synced and not self._idle and not compiling():
                self._ends(BACKWARD)
            return result

        @functools.wraps(draw)
        def next_batch(iterator: Any) -> Any:
            if self._idle or self._session.sees_forward:
                return draw(iterator)
            leads = self._leads(iterator)
            if leads and self._drawn:
                self._drawn = False
                self._ends(BATCHES)
            try:
                batch = draw(iterator)
            except StopIteration:
                self._loader = None if leads else self._loader
                raise
            self._drawn = self._drawn or leads
            return batch

        @functools.wraps(no_sync)
        @contextlib.contextmanager
        def unsynced(module: Any) -> Iterator[None]:
            is_counted = ident() == stamps.thread
            self._unsynced += is_counted
            try:
                with no_sync(module):
                    yield
            finally:
                self._unsynced -= is_counted

        ours = (
            (Optimizer, "__init__", init, made),
            (torch.autograd, "backward", compute, backward),
            (_BaseDataLoaderIter, "__next__", draw, next_batch),
            (DistributedDataParallel, "no_sync", no_sync, unsynced),
        )

        def put_back() -> None:
            for owner, name, original, our in ours:
                if getattr(owner, name) is our:
                    setattr(owner, name, original)

        for owner, name, _, our in ours:
            replace(owner, name, our)

    def watch_processes(self, torch: Any) -> None:
        """Hand the run over to ranks that the script starts itself, or say that nobody observes them."""
        module: Any = sys.modules["torch.multiprocessing.spawn"]
        start = module.start_processes
        signature = inspect.signature(start)

        @functools.wraps(start)
        def start_processes(*args: Any, **kwargs: Any) -> Any:
            if self._session.backend is None and not self._session.gate.completed:
                given = signature.bind(*args, **kwargs)
                given.apply_defaults()
                number, method = given.arguments["nprocs"], given.arguments["start_method"]
                # A forked process has this one's hooks.
                if method != "spawn" or not self._hands_over(number):
                    program = self._session.hello.program
                    self._session.notify(
                        f"the script starts {number} processes of its own, in which nothing is seen: "
                        f"`ddptop launch --start spawn --world {number} {program}` shows them as ranks",
                        "warning",
                    )
            return start(*args, **kwargs)

        for each in (module, torch.multiprocessing):
            replace(each, "start_processes", start_processes)

    def _hands_over(self, number: int) -> bool:
        try:
            return self._session.hand_over(number)
        except Exception as error:
            self._session.faults.note("handing the run over to processes that the script starts", error)
            return False

    def _leads(self, iterator: Any) -> bool:
        if self._loader is None or self._loader() is None:
            self._loader = weakref.ref(iterator)
        return self._loader() is iterator
