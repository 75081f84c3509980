"""`kill`: end a run, a rank or a process of it, or send a signal, by the same functions as the key."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ddptop.tui.cli.complaint import complain
from ddptop.tui.cli.verbs.options import RUN_HELP, Verbs, add_remote, add_verb, chosen, live_runs, seconds

if TYPE_CHECKING:
    from ddptop.agent.run.rundir import Run, RunDir
    from ddptop.tui.control.consent import Aim
    from ddptop.tui.control.ending import Ending

_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL where neither the caller nor a record of the run says how many."""


def add(verbs: Verbs) -> None:
    kill = add_verb(
        verbs, "kill", "kill a run and everything that belongs to it",
        "Sends SIGTERM to all processes of a run, then SIGKILL to what is left, and proves that nothing is left.",
        """
        ddptop kill resnet-7f                # all of it
        ddptop kill resnet-7f --rank 2       # one rank; the others will fail
        ddptop kill resnet-7f --grace 30     # with time to save
        ddptop kill resnet-7f --signal USR1  # a signal to the ranks
        """,
        {0: "ended, or signal sent", 1: "refused, or something is left", 2: "wrong options, or no such run"},
    )  # fmt: skip
    kill.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_remote(kill)
    part = kill.add_mutually_exclusive_group()
    part.add_argument(
        "--rank", type=int, metavar="N", help="end this rank only; the others fail at their next collective"
    )
    part.add_argument("--pid", type=int, metavar="P", help="end this process only; it must be one of the run's")
    kill.add_argument(
        "--grace", type=seconds, default=None, metavar="S", help="seconds between SIGTERM and SIGKILL (5)"
    )
    kill.add_argument(
        "--signal",
        type=_signal,
        metavar="NAME",
        help="send only this signal: STOP, CONT and KILL go to all processes meant, others to the ranks",
    )
    kill.set_defaults(carry=_kill)


def _signal(text: str) -> int:
    from ddptop.tui.control import signals

    try:
        return signals.parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from problem


def _kill(options: argparse.Namespace) -> int:
    from ddptop.agent.control.refusals import Refused
    from ddptop.agent.run.identity import identify
    from ddptop.agent.run.rundir import RunDirError
    from ddptop.tui.control.actor import who
    from ddptop.tui.control.ending import Ending

    try:
        directory = chosen(options.run)
    except RunDirError:
        if (done := _end_unrecorded(options)) is None:
            raise
        print(f"{options.run}: {done}")
        return 0
    aim: Aim = options.rank
    if options.pid is not None:
        aim = identify(options.pid)
        if aim is None:
            return complain(f"kill {directory.name}: there is no process {options.pid}", 1)
    try:
        done = _carry_out(options, Ending(directory, who("shell")), directory.read(), aim)
    except Refused as refusal:
        return complain(f"kill {directory.name}: {refusal}{_restart_of(directory)}", 1)
    print(f"{directory.name}: {done}")
    return 0


def _end_unrecorded(options: argparse.Namespace) -> str | None:
    """End a whole run whose folder was removed while it lived; return the outcome, None where there is no such run."""
    from ddptop.agent.observer.end.escalation import Survived
    from ddptop.agent.observer.status import survey
    from ddptop.agent.run import rundir
    from ddptop.agent.run.base import NAME

    if not NAME.fullmatch(options.run) or (options.rank, options.pid, options.signal) != (None, None, None):
        return None
    directory = rundir.RunDir(rundir.base() / options.run)
    if os.path.lexists(directory.path / "run.json"):
        return None
    grace_s = _GRACE_S if options.grace is None else options.grace
    try:
        return survey.end_unrecorded(directory, grace_s, lambda line: print(line, file=sys.stderr))
    except Survived as left:
        raise rundir.RunDirError(str(left)) from left


def _restart_of(directory: RunDir) -> str:
    """Return a clause on the restart of an ended run that is alive; empty where there is none."""
    from ddptop.agent.run.rundir import ENDED_STATES

    run = directory.read()
    if run.state not in ENDED_STATES:
        return ""
    stem, number = _numbered(directory.name)
    for other in live_runs():
        its_stem, its_number = _numbered(other.name)
        if its_stem == stem and its_number > number and other.read().program == run.program:
            return f"; its restart {other.name} is running"
    return ""


def _numbered(name: str) -> tuple[str, int]:
    """Return `resnet-7f3a` and 2 for `resnet-7f3a.2`; a run that was not restarted is the first."""
    stem, _, number = name.rpartition(".")
    return (stem, int(number)) if stem and number.isdecimal() else (name, 1)


def _carry_out(options: argparse.Namespace, termination: Ending, run: Run, aim: Aim) -> str:
    from ddptop.agent.run.rundir import ENDED_STATES
    from ddptop.tui.control import signals

    if options.signal is not None:
        warning = signals.warning(options.signal, run.world)
        if warning:
            print(warning, file=sys.stderr)
        return termination.signal(options.signal, aim)
    if run.state not in ENDED_STATES:
        print(termination.victims(aim), file=sys.stderr)
    grace_s = run.grace_s if options.grace is None else options.grace
    return termination.kill(grace_s, aim, lambda line: print(line, file=sys.stderr))
