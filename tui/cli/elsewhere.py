"""Runs of other machines on the command line: what is done here, what is done there, and the end of the connection."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from ddptop.tui.cli.complaint import complain
from ddptop.tui.remote import target
from ddptop.tui.remote.unreachable import Unreachable

if TYPE_CHECKING:
    from ddptop.agent.run.rundir import RunDir
    from ddptop.tui.model.frame import Frame
    from ddptop.tui.remote.near import Near
    from ddptop.tui.settings import Thresholds

SHOWN_HERE: Final = frozenset({"attach", "watch", "status"})
"""Verbs that look at a run by its forwarded sockets."""
LEFT_THERE: Final = frozenset({"serve", "restart", "clean"})
"""Verbs that are of use only on the machine of the run."""

_near: Near | None = None
"""The connection of this process."""
_options: argparse.Namespace | None = None


def serve() -> NoReturn:
    """Be the far end of a connection, until it ends."""
    from ddptop.tui.cli.verbs.options import chosen
    from ddptop.tui.remote import far

    def choose(name: str | None, last: bool) -> RunDir:
        return chosen(name, looks=True, last=last)

    code = far.serve(choose)
    # A thread may wait for what the other side says, and would hold up the end.
    os._exit(code)


def carried_out(options: argparse.Namespace, parse: Callable[[list[str]], argparse.Namespace]) -> int | None:
    """Carry a verb out on another machine, where it names a run there; None where it is to be done here.

    Args:
        options: the options of the verb.
        parse: parses a line as this one was.

    Raises:
        Unreachable: the machine cannot be reached.
    """
    global _options
    named: str | None = getattr(options, "run", None)
    several = getattr(options, "runs", None) or ()
    if named is None and (far := next((each for each in several if ":" in each), None)) is not None:
        named = far
    where = target.parse(named)
    if named is None or where is None:
        return None
    if options.verb in LEFT_THERE:
        there = " ".join(["ssh -t", where.host, "ddptop", options.verb, where.run]).rstrip()
        return complain(f"{options.verb}: runs of other machines are only looked at and acted on; there: `{there}`", 2)
    if options.verb in SHOWN_HERE:
        options.far, _options = where, options
        return None
    if options.verb == "ps" and where.run:
        return complain(f"ps: {named}: all runs of a machine are listed: `ddptop ps {where.host}:`", 2)
    from ddptop.tui.remote import verbs

    return verbs.carry_out(where, _there(options.line, named, where.run, parse), options.remote_command)


def _there(line: list[str], named: str, run: str, parse: Callable[[list[str]], argparse.Namespace]) -> Sequence[str]:
    """Return a line as it is to stand on the other machine: with the run's name there, without our own option."""
    place = next(
        at
        for at, word in enumerate(line)
        # The same word may be the value of an option.
        if word == named and parse([*line[:at], "x", *line[at + 1 :]]).run == "x"
    )
    kept = [*line[:place], *([run] if run else []), *line[place + 1 :]]
    for at, word in enumerate(kept):
        if word.startswith("--remote-command="):
            return [*kept[:at], *kept[at + 1 :]]
        if word == "--remote-command":
            return [*kept[:at], *kept[at + 2 :]]
    return kept


def found(name: str, *, last: bool) -> RunDir:
    """Return the copy of a run of another machine; the connection ends with `close`, or with this process.

    Raises:
        Unreachable: it cannot be reached, or is not there.
    """
    global _near
    where = target.parse(name)
    assert where is not None
    from ddptop.tui.control import actor
    from ddptop.tui.remote.near import Near

    verb = None if _options is None else _options.verb
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    place = "dashboard" if verb == "attach" else "shell"
    command = None if _options is None else _options.remote_command
    _near = Near(where, actor.elsewhere(place), last=last, logs=verb == "attach", command=command)
    for note in _near.notes:
        print(f"ddptop: {note}", file=sys.stderr)
    return _near.directory


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def close() -> None:
    """End the connection of this process, where there is one."""
    if _near is not None:
        _near.close()


def frame(directory: RunDir, thresholds: Thresholds) -> Frame:
    """Return the present frame of a run of another machine.

    Raises:
        Unreachable: the connection has ended.
    """
    from ddptop.tui.cli.view import connected
    from ddptop.tui.control.actor import who
    from ddptop.tui.link import look

    link = connected(directory, who("shell"), thresholds)
    try:
        return look.heard([link], thresholds.silent_s)[0]
    finally:
        link.close()


def attach_to_job(options: argparse.Namespace) -> int:
    """Attach to the run of a Slurm job.

    Raises:
        Unreachable: it cannot be reached.
    """
    from ddptop.tui.remote import slurm

    if options.run is not None and ":" in options.run:
        return complain("attach: HOST:RUN and --slurm: give one of them", 2)
    if options.screenshot is not None:
        raise Unreachable(
            "attach: --screenshot writes on this machine; with --slurm the dashboard is on the job's node"
        )
    rest = list(options.line[1:])
    for name in ("--slurm", "--remote-command"):
        for at, word in enumerate(rest):
            if word == name:
                del rest[at : at + 2]
                break
            if word.startswith(f"{name}="):
                del rest[at]
                break
    return slurm.attach(options.slurm, rest, options.remote_command)
