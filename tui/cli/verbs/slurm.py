"""`launch --slurm`: the same launch on each node of an allocation, shown on this one."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from ddptop.agent.client import runs
from ddptop.agent.client.host.program import isolated
from ddptop.agent.client.start import run, slurm
from ddptop.agent.client.start.request import Request
from ddptop.agent.text import plural
from ddptop.tui.cli.parsing import complain
from ddptop.tui.cli.verbs.options import is_detached, on_terminal, show_launched
from ddptop.tui.launch import options as launch_options
from ddptop.tui.launch.launch import resumed
from ddptop.tui.launch.target import target

if TYPE_CHECKING:
    from ddptop.agent.client.host.settings import Settings

_POLL_S: Final = 0.1
_REFUSED: Final = 2


class _Terminated(Exception):
    """SIGTERM has come."""


def launch(options: argparse.Namespace, request: Request, settings: Settings) -> int:
    """Launch a request on the nodes of the allocation; return the exit code.

    Raises:
        RequestError: it cannot work.
    """
    place = slurm.allocation(os.environ, options.nodes)
    asked = slurm.request_for(after_requeue(request), place, options.ntasks_per_node, os.environ)
    program = target(asked)
    each, name = slurm.named(asked, place)
    words = slurm.command(place, name, (*isolated("ddptop.tui.cli.main"), *launch_options.line(each)))
    if options.dry_run:
        print(shlex.join(words))
        print(f"# and on each of {', '.join(place.hosts)}:")
        print(shlex.join(run.command(each, program)))
        return 0
    where = f"{plural(len(place.hosts), 'node')} of job {place.job}"
    print(f"ddptop: {name} starts on {where}: {', '.join(place.hosts[:8])}", file=sys.stderr)
    watched = on_terminal(options) and slurm.is_here(place)
    since_ns = time.time_ns()
    if not (watched or is_detached(options)):
        return _follow(slurm.Step(words, place, name, shown=True))
    step = slurm.Step(words, place, name, shown=False)
    if not slurm.is_here(place):
        print(name)
        return 0
    started = _await_run(step, name, since_ns)
    if started is None:
        complaints = step.complaints() or [f"srun has ended with exit code {step.wait()}"]
        for line in complaints[:-1]:
            complain(line, _REFUSED)
        return complain(complaints[-1], _REFUSED)
    return show_launched(options, started, settings)


def after_requeue(request: Request) -> Request:
    """Return a request that goes on from its checkpoint, where Slurm has requeued the job and the program can."""
    count = slurm.restarts(os.environ)
    again = resumed(request) if count else request
    if again is not request:
        how = f"Slurm has requeued this job (restart {count}): the program goes on from its checkpoint, by --resume"
        print(f"ddptop: {how}", file=sys.stderr)
    return again


def _await_run(step: slurm.Step, name: str, since_ns: int) -> runs.Run | None:
    """Return the run on this host once it is there, None where the step has ended without it."""
    while True:
        over = step.ended() is not None
        try:
            found = runs.named(name)
            if found.record().created_at_ns >= since_ns:
                return found
        except runs.RunDirError:
            pass
        if over:
            return None
        time.sleep(_POLL_S)


def _follow(step: slurm.Step) -> int:
    """Wait for the end of a step, which prints for itself; what ends this process ends the run."""
    previous = signal.signal(signal.SIGTERM, _terminated)
    ending = False
    try:
        while True:
            try:
                if ending:
                    # Again where it was interrupted itself: the step would go on without a word.
                    step.terminate()
                    ending = False
                return step.wait()
            except (_Terminated, KeyboardInterrupt):
                ending = True
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated
