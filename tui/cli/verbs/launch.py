"""`launch` and `restart`: start a training group and watch it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ddptop.tui.cli.complaint import complain
from ddptop.tui.cli.verbs.options import Verbs, add_view, chosen, configured, seconds, show

if TYPE_CHECKING:
    from ddptop.agent.run.rundir import RunDir


def add(verbs: Verbs) -> None:
    """Add the verb."""
    launch = verbs.add_parser("launch", help="start a training group and watch it")
    launch.set_defaults(carry=_run)
    launch.usage = "ddptop launch [options] (PROGRAM | -m MODULE) [-- ARGS ...]"
    launch.add_argument("program", metavar="PROGRAM", nargs="?", help="a name from `ddptop programs`, or a script")
    launch.add_argument("-m", dest="module", metavar="MODULE", help="a module to run, instead of PROGRAM")
    launch.add_argument("--world", type=int, metavar="N", help="number of ranks (default: one for each GPU, else 2)")
    launch.add_argument("--name", help="name of the run (default: the program's, and four digits)")
    launch.add_argument(
        "--backend", choices=("gloo", "nccl", "mpi"), help="default: nccl with a GPU for each rank, else gloo"
    )
    launch.add_argument(
        "--start", choices=("torchrun", "spawn"), default="torchrun",
        help="who starts the ranks: torchrun, or the program itself by torch.multiprocessing (default torchrun)",
    )  # fmt: skip
    launch.add_argument("--grace", type=seconds, default=5.0, metavar="S", help="seconds between TERM and KILL (5)")
    launch.add_argument(
        "--on-term",
        choices=("checkpoint",),
        default="",
        help="what a TERM from outside (a scheduler that needs the machine) leads to: all ranks save a checkpoint at "
        "the same step, where the script has said how, and end there",
    )
    launch.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="FAULT",
        help="put a fault into a rank, to see what it looks like: rank=2,phase=backward,ms=30[,every=K][,from=STEP] "
        "with phase data, forward, backward, optimizer or comm, or rank=1,crash[,from=STEP], "
        "as well hang, nan, skip-collective; may be repeated",
    )
    launch.add_argument(
        "--max-restarts",
        type=_restarts,
        default=0,
        metavar="N",
        help="start all ranks anew when one has failed, N times at most (0)",
    )
    launch.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="put this into the environment of the ranks, the value that KEY has here where none is given (so that a "
        "secret stands on no command line); may be repeated",
    )
    _add_watching(launch)

    restart = verbs.add_parser("restart", help="start an ended run again, with the same settings")
    restart.add_argument("run", metavar="RUN", help="name of the run or the beginning of it")
    restart.add_argument("--resume", action="store_true", help="go on from its checkpoint, where its program can")
    restart.set_defaults(carry=_restart)
    _add_watching(restart)


def _add_watching(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--detach", action="store_true", help="return once all ranks are up, printing the run's name")
    add_view(verb)


def _restarts(text: str) -> int:
    from ddptop.tui.control.launch.launch import restarts

    try:
        return restarts(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from problem


def _run(options: argparse.Namespace) -> int:
    from ddptop.agent.observer import launcher
    from ddptop.trainers import CATALOGUE
    from ddptop.tui.control.actor import who
    from ddptop.tui.control.launch.launch import Request, RequestError, launch

    if (options.program is None) == (options.module is None):
        return complain("launch: give one program: a name from `ddptop programs`, a script, or -m MODULE", 2)
    if options.program in CATALOGUE and {"-h", "--help"} & set(options.arguments):
        # Its options are its own to tell, and need no group.
        os.execv(sys.executable, [*launcher.isolated(CATALOGUE[options.program].module), "--help"])
    # Before anything starts: what the dashboard could not work with is told now.
    settings = configured(options)
    request = Request(
        program=options.module or options.program,
        as_module=options.module is not None,
        arguments=options.arguments,
        world=options.world,
        name=options.name,
        backend=options.backend,
        start=options.start,
        grace_s=options.grace,
        on_term=options.on_term,
        who=who("shell"),
        inject=tuple(options.inject),
        max_restarts=options.max_restarts,
        environment=tuple(options.env),
    )
    try:
        directory = launch(request, _tell)
    except RequestError as problem:
        return complain(problem, 2)
    if options.detach:
        return _detach(directory)
    return show(options, directory, settings)


def _restart(options: argparse.Namespace) -> int:
    from ddptop.tui.control.actor import who
    from ddptop.tui.control.launch.launch import RequestError, restart

    settings = configured(options)
    try:
        directory = restart(chosen(options.run), resume=options.resume, who=who("shell"), tell=_tell)
    except RequestError as problem:
        return complain(problem, 1)
    print(f"ddptop: started again as {directory.name}", file=sys.stderr)
    return _detach(directory) if options.detach else show(options, directory, settings)


def _tell(line: str) -> None:
    print(f"ddptop: {line}", file=sys.stderr)


def _detach(directory: RunDir) -> int:
    """Wait until every rank has reported, then print the run's name alone."""
    import time

    from ddptop.agent.observer.status import survey
    from ddptop.agent.run.rundir import ENDED_STATES

    world = directory.read().world
    while True:
        state = survey.look(directory)
        if state.state == "finished" or len(directory.members()) == world:
            print(directory.name)
            return 0
        if state.state in ENDED_STATES:
            cause = state.cause or f"see {directory.torchrun_log}"
            return complain(f"run {directory.name} {state.state} before its ranks were up: {cause}", 1)
        time.sleep(0.05)
