"""`launch`: start a training group and watch it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ddptop.tui.verbs.options import Verbs, add_view, complain, configured, seconds, show

if TYPE_CHECKING:
    from ddptop.agent.rundir import RunDir


def add(verbs: Verbs) -> None:
    """Add the verb."""
    launch = verbs.add_parser("launch", help="start a training group and watch it")
    launch.set_defaults(carry=_run)
    launch.usage = "ddptop launch [options] (PROGRAM | -m MODULE) [-- ARGS…]"
    launch.add_argument("program", metavar="PROGRAM", nargs="?", help="a name from `ddptop programs`, or a script")
    launch.add_argument("-m", dest="module", metavar="MODULE", help="a module to run, instead of PROGRAM")
    launch.add_argument("--world", type=int, metavar="N", help="number of ranks (default: one for each GPU, else 2)")
    launch.add_argument("--name", help="name of the run (default: the program's, and four digits)")
    launch.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl with a GPU for each rank, else gloo")
    launch.add_argument("--grace", type=seconds, default=5.0, metavar="S", help="seconds between TERM and KILL (5)")
    launch.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="FAULT",
        help="put a fault into a rank, to see what it looks like: rank=2,phase=backward,ms=30[,every=K][,from=STEP] "
        "with phase data, forward, backward, optimizer or comm, or rank=1,crash[,from=STEP], "
        "as well hang, nan, skip-collective; may be repeated",
    )
    launch.add_argument("--detach", action="store_true", help="return once all ranks are up, printing the run's name")
    add_view(launch)


def _run(options: argparse.Namespace) -> int:
    from ddptop.trainers import CATALOGUE
    from ddptop.tui.launch import Request, RequestError, launch

    if (options.program is None) == (options.module is None):
        return complain("launch: give one program: a name from `ddptop programs`, a script, or -m MODULE", 2)
    if options.program in CATALOGUE and {"-h", "--help"} & set(options.arguments):
        # Its options are its own to tell, and need no group.
        os.execv(sys.executable, [sys.executable, "-m", CATALOGUE[options.program].module, "--help"])
    # Before anything starts: what the dashboard could not work with is told now.
    settings = configured(options)
    request = Request(
        program=options.module or options.program,
        as_module=options.module is not None,
        arguments=options.arguments,
        world=options.world,
        name=options.name,
        backend=options.backend,
        grace_s=options.grace,
        inject=tuple(options.inject),
    )
    try:
        directory = launch(request)
    except RequestError as problem:
        return complain(problem, 2)
    if options.detach:
        return _detach(directory)
    return show(options, directory, settings)


def _detach(directory: RunDir) -> int:
    """Wait until every rank has reported, then print the run's name alone."""
    import time

    from ddptop.agent.group import census
    from ddptop.agent.rundir import ENDED_STATES

    world = directory.read().world
    while True:
        state = census.survey(directory)
        if state.state == "finished" or len(directory.members()) == world:
            print(directory.name)
            return 0
        if state.state in ENDED_STATES:
            cause = state.cause or f"see {directory.torchrun_log}"
            return complain(f"run {directory.name} {state.state} before its ranks were up: {cause}", 1)
        time.sleep(0.05)
