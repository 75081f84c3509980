"""Runs of other machines on the command line: which verbs are carried out there, and with which words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from ddptop.tui.cli.parsing import complain
from ddptop.tui.remote import target

LEFT_THERE: Final = frozenset(
    {"serve", "restart", "clean", "notify", "export", "compare", "baseline", "gate", "keep", "pack"}
)
"""Verbs that are of use only on the machine of the run."""


def carried_out(options: argparse.Namespace, parse: Callable[[list[str]], argparse.Namespace]) -> int | None:
    """Carry a verb out on another machine, where it names a run there; None where it is to be done here.

    Args:
        options: the options of the verb.
        parse: parses a line as this one was.

    Raises:
        Unreachable: the machine cannot be reached.
    """
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
    if options.verb == "ps" and where.run:
        return complain(f"ps: {named}: all runs of a machine are listed: `ddptop ps {where.host}:`", 2)
    if options.verb == "attach":
        if options.slurm is not None:
            return complain("attach: HOST:RUN and --slurm: give one of them", 2)
        if options.screenshot is not None:
            there = f"ssh {where.host} ddptop attach {where.run} --screenshot {options.screenshot}"
            return complain(f"attach: --screenshot writes on the machine of the run: `{there}`", 2)
    if options.verb == "profile" and options.out is not None:
        there = f"ssh {where.host} ddptop profile {where.run} --out {options.out}"
        return complain(f"profile: --out writes on the machine of the run: `{there}`", 2)
    from ddptop.tui.remote import ssh

    place = next(
        at
        for at, word in enumerate(options.line)
        # The same word may be the value of an option.
        if word == named and parse([*options.line[:at], "x", *options.line[at + 1 :]]).run == "x"
    )
    line = [*options.line[:place], *filter(None, [where.run]), *options.line[place + 1 :]]
    return ssh.carry_out(where, _without(line, "--remote-command"), options.remote_command)


def attach_to_job(options: argparse.Namespace) -> int:
    """Attach to the run of a Slurm job.

    Raises:
        Unreachable: it cannot be reached.
    """
    from ddptop.tui.remote import slurm

    if options.screenshot is not None:
        return complain("attach: --screenshot writes on the job's node; with --slurm give none", 2)
    line = _without(_without(options.line, "--slurm"), "--remote-command")
    return slurm.attach(options.slurm, line[1:], options.remote_command)


def _without(line: Sequence[str], option: str) -> list[str]:
    """Return the words of a line without an option and its value."""
    for at, word in enumerate(line):
        if word == option or word.startswith(f"{option}="):
            return [*line[:at], *line[at + (2 if word == option else 1) :]]
    return list(line)
