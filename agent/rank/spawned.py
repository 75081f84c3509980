"""The agent in a rank that the program has spawned itself, as torch.multiprocessing does.

Such a process is a fresh interpreter that no runner has wrapped, and which rank it is shows only
when it joins a process group: until then nothing but the imports is watched.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddptop.agent.rank.imports import after_import

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session


class _Rank:
    """The rank that this process turns out to be, if it is one."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def joins(self, torch: Any, given: Mapping[str, Any]) -> None:
        """Start the agent: the process is about to join its group."""
        rank, world = (_number(given, *names) for names in (("rank", "RANK"), ("world_size", "WORLD_SIZE")))
        if rank is None or world is None:
            _complain("its rank is not told to init_process_group")
            return
        # As torchrun would have set them; the agent, and whatever else asks, finds them there.
        for name, value in (("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_RANK", rank)):
            os.environ.setdefault(name, str(value))
        from ddptop.agent.rank import enrolment, hooks
        from ddptop.agent.rank.session import open_session
        from ddptop.agent.rundir import MARKER

        directory = enrolment.enrolled()
        if directory is None:
            return
        run = directory.read()
        log = enrolment.redirect(directory)
        self._session = open_session(directory, run.program, os.environ.get(MARKER, run.run_id), log)
        if self._session is not None:
            hooks.install_with_torch(self._session)
            atexit.register(lambda: self.ends(getattr(sys, "last_value", None)))

    def ends(self, failure: BaseException | None) -> None:
        """Tell how the process ended, the first time."""
        session, self._session = self._session, None
        if session is None:
            return
        code = 0 if failure is None else 1
        if isinstance(failure, SystemExit):
            code = failure.code if isinstance(failure.code, int) else 0 if failure.code is None else 1
            # torch.multiprocessing writes the exception to a file and leaves by way of this one.
            failure = failure.__context__ if code else None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if failure is None:
            session.close(code, None if code == 0 else f"SystemExit: {code}", None)
        else:
            told = traceback.format_exception_only(type(failure), failure)[-1].strip()
            session.close(code, told, "".join(traceback.format_exception(failure)))


def watch() -> None:
    """Prepare for this process to become a rank."""
    rank = _Rank()
    after_import("torch", functools.partial(_watch_joining, rank))
    after_import("multiprocessing.process", functools.partial(_watch_ending, rank))


def _watch_joining(rank: _Rank, torch: Any) -> None:
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
                rank.joins(torch, signature.bind_partial(*args, **kwargs).arguments)
            except Exception as error:  # the training goes on, whatever it is
                _complain(error)
        # The agent's own hooks are around it by now.
        return c10d.init_process_group(*args, **kwargs)

    c10d.init_process_group = torch.distributed.init_process_group = init_process_group


def _watch_ending(rank: _Rank, process: ModuleType) -> None:
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


def _complain(why: object) -> None:
    print(f"ddptop: no agent in this rank ({why}); the training goes on without", file=sys.stderr, flush=True)
