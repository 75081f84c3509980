"""The agent in a rank that the program has spawned itself, as torch.multiprocessing does.

Such a process does not start under the runner; it is a fresh interpreter or a fork of one. Its rank is
known when it joins the run's process group: until then only its imports and its end are watched.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from ddptop.agent.rank.hooks.imports import after_import
from ddptop.agent.rank.process import ending
from ddptop.agent.rank.process.output import Output, flush, say_unobserved

if TYPE_CHECKING:
    from ddptop.agent.launcher.position import Position
    from ddptop.agent.rank.session import Session
    from ddptop.agent.run.rundir import Run, RunDir


class Rank:
    """The rank that this process may become, or has become in the middle of its training."""

    def __init__(self, session: Session | None = None) -> None:
        """Report the end of this process by the agent of this session, or of the one that is started here."""
        self._session = session

    def joins(self, given: Mapping[str, Any]) -> bool:
        """Start the agent where this call joins the run's group; return False where a later call may do that."""
        from ddptop.agent.launcher.position import Position
        from ddptop.agent.rank.process import ancestry, enrolment
        from ddptop.agent.wire.frames import ENDED

        directory = enrolment.enrolled()
        if directory is None or ancestry.rank_above(os.environ) is not None:
            return True
        rank, world = (_number(given, *names) for names in (("rank", "RANK"), ("world_size", "WORLD_SIZE")))
        if rank is None or world is None:
            say_unobserved("its rank is not told to init_process_group")
            return True
        run = directory.read()
        if run.state in ENDED:
            say_unobserved(f"run {run.run} has ended")
            return True
        if world != run.world and run.guessed is False:
            # The script may make other groups before that of the training.
            say_unobserved(f"its group has world size {world}, the run {run.world}; `--world` says which")
            return False
        self._begin(directory, run, Position(rank, _local(rank), world))
        return True

    def _begin(self, directory: RunDir, run: Run, position: Position) -> None:
        from ddptop.agent.rank.hooks import patches
        from ddptop.agent.rank.opening.start import open_session
        from ddptop.agent.rank.process import enrolment
        from ddptop.agent.run.rundir import MARKER

        output = Output()
        if run.launched:
            output = enrolment.redirect(directory, position.rank)
        else:
            enrolment.resize(directory, position)
        marker = os.environ.get(MARKER, run.run_id)
        self._session = open_session(directory, run.program, marker, output, position)
        if self._session is not None:
            if self._session.heard:
                patches.install_with_torch(self._session)
            atexit.register(self.ends_with_interpreter)

    def ends(self, failure: BaseException | None) -> None:
        """Report the end of a process of `multiprocessing`, by the exception with which it ends."""
        code = 0 if failure is None else 1
        left = None
        if isinstance(failure, SystemExit):
            code, left = ending.status(failure.code), failure.__traceback__
            # torch.multiprocessing writes the exception to a file and exits with a `SystemExit` in its context.
            failure = failure.__context__ if code else None
        self._report_end(code, failure, left)

    def ends_with_interpreter(self) -> None:
        """Report the end of the script, with an exit code only where an exception was not caught.

        At that point the process does not know the argument of `sys.exit`; only its parent gets the status.
        """
        failure = getattr(sys, "last_value", None)
        code = None if failure is None else 130 if isinstance(failure, KeyboardInterrupt) else 1
        self._report_end(code, failure)

    def _report_end(self, code: int | None, failure: BaseException | None, left: TracebackType | None = None) -> None:
        """Record the end, at the first call; no `Exception` of it hides the script's own."""
        session, self._session = self._session, None
        # A forked data worker has a copy of the session, and ends before its rank.
        if session is None or session.owner != os.getpid():
            return
        with session.faults.noted("telling how the process ended"):
            flush()
            if failure is None:
                session.close(code, f"SystemExit: {code}" if code else None, None, left)
            else:
                session.close(code, *ending.texts(failure, failure.__traceback__), failure.__traceback__)


def watch() -> None:
    """Prepare for this process to become a rank."""
    rank = Rank()
    for name, act in (("torch", _watch_joining), ("multiprocessing.process", _watch_ending)):
        after_import(name, functools.partial(_guarded, act, rank))


def _guarded(act: Callable[[Rank, Any], None], rank: Rank, module: ModuleType) -> None:
    """Act on a module that was just imported; the import is the script's, and must not fail."""
    try:
        act(rank, module)
    except Exception as error:
        say_unobserved(error)


def _watch_joining(rank: Rank, torch: Any) -> None:
    if not torch.distributed.is_available():
        return
    c10d = torch.distributed.distributed_c10d
    original = c10d.init_process_group
    signature = inspect.signature(original)
    pending = [rank]

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if pending:
            pending.pop()
            c10d.init_process_group = torch.distributed.init_process_group = original
            try:
                settled = rank.joins(signature.bind_partial(*args, **kwargs).arguments)
            except Exception as error:  # the training goes on, whatever the error is
                say_unobserved(error)
                settled = True
            if not settled:
                pending.append(rank)
                c10d.init_process_group = torch.distributed.init_process_group = init_process_group
                return original(*args, **kwargs)
        # `rank.joins` may have put the agent's hooks around it.
        return c10d.init_process_group(*args, **kwargs)

    c10d.init_process_group = torch.distributed.init_process_group = init_process_group


def _watch_ending(rank: Rank, process: ModuleType) -> None:
    original = process.BaseProcess.run

    @functools.wraps(original)
    def run(self: Any) -> None:
        try:
            original(self)
        except BaseException as failure:
            rank.ends(failure)
            raise
        rank.ends(None)

    process.BaseProcess.run = run


def _number(given: Mapping[str, Any], argument: str, variable: str) -> int | None:
    value = given.get(argument, -1)
    if isinstance(value, int) and value >= 0:
        return value
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _local(rank: int) -> int:
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else rank
