"""A rank of a job that nobody prepared joins a run, in the middle of its training, and leaves it again.

The ranks of a group join at the end of the same step, so that all count steps and collectives alike: else a pause would
hold them at different ones.  Up to there each counts the ends of optimizer steps, and tells how many collectives its
groups have made by then; the observer compares these, and chooses the step.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Final

from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.collectives import backends
from ddptop.agent.rank.hooks import around, patches
from ddptop.agent.rank.opening.start import open_session
from ddptop.agent.rank.process.output import Output
from ddptop.agent.rank.process.spawned import Rank
from ddptop.agent.rank.session import Session
from ddptop.agent.run.files import joins
from ddptop.agent.run.files.joins import Answer
from ddptop.agent.run.rundir import Member, RunDir

_LOOK_S: Final = 0.02
_TELL_S: Final = 0.1
_FSDP: Final = "torch.distributed.fsdp"


class Joining:
    """The way of one rank into a run."""

    def __init__(self, request: Path, rank: int) -> None:
        """Prepare: the torch of this process is wholly imported; `request` is the folder of the request."""
        self._directory = RunDir(joins.run_of(request))
        self._request = request
        self._rank = rank
        self._lock = threading.Lock()
        self._hooks: around.StepHooks | None = None
        self._thread: int | None = None
        """The thread whose steps are counted: the first that has made one."""
        self._passed = 0
        self._boundaries: list[dict[str, int]] = []
        """The newest."""
        self._at: int | None = None
        self._steps = 0
        self._wrapped: list[weakref.ref[Any]] | None = None
        """Its modules of DDP and FSDP, None before it is known to train."""
        self.session: Session | None = None
        """The agent, once the rank has joined."""
        self._failed = ""

    def run(self) -> None:
        """Take part until the rank has joined, or is not to; no error of it reaches the training."""
        try:
            self._take_part()
        except Exception as error:
            self._failed = f"{type(error).__name__}: {error}"
        with self._lock:
            self._at = None
        if self.session is None:
            around.put_back(_ignore)
        self._answer()

    def _take_part(self) -> None:
        torch: Any = sys.modules["torch"]
        self._hooks = around.StepHooks(sys.modules["torch.optim.optimizer"])
        self._hooks.after = self._pass
        told, due = -1, 0.0
        while self.session is None and not self._failed and joins.is_wanted(self._request):
            if self._passed and self._wrapped is None:
                self._wrapped = [weakref.ref(each) for each in _wrapped(torch)]
            if self._passed != told and time.monotonic() >= due:
                told, due = self._passed, time.monotonic() + _TELL_S
                self._answer()
            if self._at is None and (step := joins.chosen(self._request)) is not None:
                at = step.at.get(str(self._rank))
                with self._lock:
                    self._steps = step.steps
                    # Where it has passed that one, the observer sees that.
                    self._at = at if at is not None and at > self._passed else None
            time.sleep(_LOOK_S)

    def _answer(self) -> None:
        with self._lock:
            state: Any = "joined" if self.session is not None else "refused" if self._failed else "waits"
            first = self._passed - len(self._boundaries) + 1
            answer = Answer(state, self._failed, first, list(self._boundaries))
        # The request may be gone, which the next look shows.
        with contextlib.suppress(OSError):
            joins.answer(self._request, self._rank, answer)

    def _pass(self, *_: Any) -> None:
        """Count the end of an optimizer's step, in the thread that has made it; raises nothing."""
        here = threading.get_ident()
        if self._thread not in (None, here):
            return
        self._thread = here
        try:
            numbers = _numbers(sys.modules["torch"])
            with self._lock:
                self._passed += 1
                self._boundaries = [*self._boundaries[1 - joins.MOST_KEPT :], numbers]
                if self._passed == self._at:
                    self.session = self._begin()
        except Exception as error:
            around.put_back(_ignore)
            self._failed = f"{type(error).__name__}: {error}"

    def _begin(self) -> Session:
        assert self._hooks is not None
        self._hooks.clear()
        before = next(each for each in self._directory.reported() if each.rank == self._rank)
        wrapped = [module for each in self._wrapped or () if (module := each()) is not None]
        return begin(self._directory, before, self._hooks, wrapped, self._steps)


def begin(directory: RunDir, before: Member, hooks: around.StepHooks, wrapped: list[Any], steps: int) -> Session:
    """Start the agent behind a step, on the thread that has made it, with what there is of the training by then.

    Args:
        directory: of the run.
        before: the record of the rank without an agent, which is its record again once it leaves.
        hooks: the hooks of all optimizers.
        wrapped: its modules of DDP and FSDP.
        steps: that it has counted by now.

    Raises:
        RuntimeError: the agent cannot be heard.
    """
    torch: Any = sys.modules["torch"]
    run = directory.read()
    position = Position(before.rank, before.local_rank, before.world, local_world=before.world, nodes=1)
    session = open_session(directory, run.program, run.run_id, Output(), position, hooks, before)
    if session is None or not session.heard:
        if session is not None:
            # There is no thread of it that would depart.
            session.take_out()
            session.depart()
        raise RuntimeError("its agent cannot be heard")
    try:
        _take_in(session, torch, wrapped)
        session.count_from(steps)
    except Exception:
        session.take_out()
        raise
    return session


def _take_in(session: Session, torch: Any, wrapped: list[Any]) -> None:
    rank = Rank(session)
    atexit.register(rank.ends_with_interpreter)
    around.on_leaving(functools.partial(atexit.unregister, rank.ends_with_interpreter))
    session.marks.has_optimizer = True
    session.sees_forward = bool(wrapped)
    patches.install_with_torch(session)
    for module in wrapped:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            session.checks.wrapped(module)
    _watch_groups(session, torch)
    session.announce(None, f"joined at {time.strftime('%H:%M:%S')}: steps are counted from there", None, None, None)


def _watch_groups(session: Session, torch: Any) -> None:
    groups = _groups(torch)
    for group in groups:
        session.collectives.watch(group)
    if groups:
        session.backend = backends.described(torch, str(torch.distributed.get_backend()))
        for name, counted in session.collectives.groups.items():
            counted.timeout_s = _timeout_s(torch, next(each for each in groups if backends.name_of(each) == name))
        session.timeout_s = _timeout_s(torch, groups[0])


def _timeout_s(torch: Any, group: Any) -> float | None:
    for device in ("cuda", "cpu"):
        try:
            return float(group._get_backend(torch.device(device)).options._timeout.total_seconds())
        except (AttributeError, RuntimeError, TypeError):
            continue
    return None


def _groups(torch: Any) -> list[Any]:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    return list(torch.distributed.distributed_c10d._world.pg_map)


def _numbers(torch: Any) -> dict[str, int]:
    """Return how many calls each process group of several ranks has made."""
    found = {}
    for group in _groups(torch):
        try:
            if group.size() > 1:
                found[backends.name_of(group)] = int(group._get_sequence_number_for_group())
        except RuntimeError:
            # Its backend does not count them.
            continue
    return found


def _wrapped(torch: Any) -> list[Any]:
    """Return the modules of DDP and FSDP, without running code of the script."""
    fsdp = vars(sys.modules[_FSDP]) if _FSDP in sys.modules else {}
    kinds = {torch.nn.parallel.DistributedDataParallel}
    kinds |= {fsdp[name] for name in ("FSDPModule", "FullyShardedDataParallel") if name in fsdp}
    return [each for each in gc.get_objects() if not kinds.isdisjoint(type(each).__mro__)]


def _ignore(_what: str, _error: Exception) -> None:
    """Of hooks that were not there nothing is known."""
