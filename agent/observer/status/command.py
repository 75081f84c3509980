"""The command line that starts a run of the same kind again. Pure."""

from __future__ import annotations

import shlex
from itertools import takewhile
from typing import Final

from ddptop.agent.run.records import TORCHRUN, Run
from ddptop.agent.run.switches import checking, injection

_GRACE_S: Final = 5.0
"""Seconds that a launch gives the ranks of a run where it is not told otherwise."""


def launching(run: Run) -> str:
    """Return the line for a shell, masked as the record is; of a job started by hand, program and arguments alone.

    The name is left out, because the run still has it, and so is the environment of a program that spawns its ranks,
    most of which is made by the launch.
    """
    if not run.launched:
        return shlex.join((run.program, *run.arguments))
    words = ["ddptop", "launch", *(_hosts(run) or ("--world", str(run.world)))]
    if run.backend:
        words += ["--backend", run.backend]
    if run.leader != "torchrun":
        words += ["--start", "spawn"]
    if run.grace_s != _GRACE_S:
        words += ["--grace", f"{run.grace_s:g}"]
    if run.on_term:
        words += ["--on-term", run.on_term]
    if run.max_restarts:
        words += ["--max-restarts", str(run.max_restarts)]
    for fault in filter(None, run.environment.get(injection.VARIABLE, "").split(";")):
        words += ["--inject", fault]
    if every := run.environment.get(checking.VARIABLE):
        words += ["--check-parameters", every]
    if run.leader == "torchrun":
        for name, value in run.environment.items():
            if not name.startswith("DDPTOP_"):
                words += ["--env", f"{name}={value}"]
    words += run.program.split(" ", 1) if run.program.startswith("-m ") else [run.program]
    return shlex.join((*words, *(("--", *run.arguments) if run.arguments else ())))


_OF_HOSTS: Final = ("--nnodes", "--nproc-per-node", "--node-rank", "--rdzv-endpoint", "--rdzv-id")


def _hosts(run: Run) -> list[str]:
    """Return the options with which each host of a run on several is launched, as torchrun got them; else none."""
    if TORCHRUN not in run.command:
        return []
    options = takewhile(lambda word: word.startswith("-"), run.command[run.command.index(TORCHRUN) + 1 :])
    given = dict(word.split("=", 1) for word in options if "=" in word)
    if "--nnodes" not in given:
        return []
    return [word for name in _OF_HOSTS if name in given for word in (name, given[name])]
