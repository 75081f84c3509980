"""The command line. Imports only what the verb at hand needs: `--help` loads no ZeroMQ, no Textual, no torch."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ddptop.agent.rundir import RunDir
    from ddptop.tui.frame import Frame

EPILOG = """\
first steps:
  ddptop launch --world 4 resnet          train a ResNet on four ranks and watch it
  ddptop launch train.py -- --lr 0.1      any script, unmodified; its own options after --
  ddptop attach                           come back to it from any terminal
  ddptop kill RUN                         end it, and everything that belongs to it
"""

RUN_HELP = "name of the run or the beginning of it; may be left out when only one is alive"


def main() -> None:
    """Run `ddptop` and exit with its code: 0 done, 1 refused or failed, 2 bad input."""
    arguments, program_arguments = _split(sys.argv[1:])
    parser = _parser()
    options = parser.parse_args(arguments)
    if program_arguments and options.verb != "launch":
        parser.error(f"nothing can follow -- for {options.verb}")
    options.arguments = tuple(program_arguments)
    try:
        code = _run(options)
    except BrokenPipeError:
        # The reader of our pipe has gone, as `head` does; nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Divide at the first `--`: ours before it, the program's after it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


class _Parser(argparse.ArgumentParser):
    """Complains in one line that says what to do."""

    def error(self, message: str) -> NoReturn:
        if "unrecognized arguments" in message and self.prog == "ddptop":
            message += " (options of the program itself go after --, as in `ddptop launch train.py -- --lr 0.1`)"
        print(f"{self.prog}: {message}; `{self.prog} --help` tells more", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ddptop",
        description="htop for a distributed PyTorch run: launch a training group, watch every rank, pause or kill it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=_Parser)
    _add_launch(verbs.add_parser("launch", help="start a training group and watch it"))

    attach = verbs.add_parser("attach", help="watch a run that is going on, or look at one that has ended")
    _add_run(attach)
    _add_view(attach)

    ps = verbs.add_parser("ps", help="list runs, live and lately ended")
    ps.add_argument("--json", action="store_true", help="as JSON: a list of objects (see README)")

    status = verbs.add_parser("status", help="say how a run and each of its ranks are")
    _add_run(status)
    status.add_argument("--json", action="store_true", help="as JSON: one object (see README)")

    _add_run(verbs.add_parser("pause", help="hold all ranks at the same step, for as long as you like"))
    _add_run(verbs.add_parser("resume", help="let a paused run go on"))

    kill = verbs.add_parser("kill", help="end a run and everything that belongs to it")
    kill.add_argument("run", metavar="RUN", help="name of the run or the beginning of it")
    kill.add_argument(
        "--rank", type=int, metavar="N", help="end this rank only; the others fail at their next collective"
    )
    kill.add_argument("--grace", type=_seconds, default=None, metavar="S", help="seconds between TERM and KILL (5)")

    logs = verbs.add_parser("logs", help="print what the ranks wrote")
    _add_run(logs)
    logs.add_argument("--rank", type=int, metavar="N", help="this rank only, without its number before each line")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")

    verbs.add_parser("programs", help="list the training programs that come with ddptop")
    return parser


def _add_launch(launch: argparse.ArgumentParser) -> None:
    launch.usage = "ddptop launch [options] (PROGRAM | -m MODULE) [-- ARGS…]"
    launch.add_argument("program", metavar="PROGRAM", nargs="?", help="a name from `ddptop programs`, or a script")
    launch.add_argument("-m", dest="module", metavar="MODULE", help="a module to run, instead of PROGRAM")
    launch.add_argument("--world", type=int, metavar="N", help="number of ranks (default: one for each GPU, else 2)")
    launch.add_argument("--name", help="name of the run (default: the program's, and four digits)")
    launch.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl with a GPU for each rank, else gloo")
    launch.add_argument("--grace", type=_seconds, default=5.0, metavar="S", help="seconds between TERM and KILL (5)")
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
    _add_view(launch)


def _add_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", nargs="?", help=RUN_HELP)


def _add_view(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--plain", action="store_true", help="lines of text instead of the dashboard; so without a terminal"
    )
    verb.add_argument("--interval", type=_seconds, default=2.0, metavar="S", help="seconds between lines (2)")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be between 0 and 3600 seconds")
    return value


def _run(options: argparse.Namespace) -> int:
    if options.version:
        from ddptop.agent.version import VERSION

        print(f"ddptop {VERSION}")
        return 0
    if options.verb is None:
        _parser().print_help()
        return 0
    from ddptop.agent.rundir import RunDirError

    try:
        return _dispatch(options)
    except RunDirError as problem:
        return _complain(problem, 2)


def _complain(problem: object, code: int) -> int:
    print(f"ddptop: {problem}", file=sys.stderr)
    return code


def _dispatch(options: argparse.Namespace) -> int:
    match options.verb:
        case "launch":
            return _launch(options)
        case "attach":
            return _view(options, _chosen(options.run, ended=True))
        case "ps":
            return _ps(options)
        case "status":
            return _status(options)
        case "pause" | "resume" | "kill":
            return _control(options)
        case "logs":
            return _logs(options)
    return _programs()


def _launch(options: argparse.Namespace) -> int:
    from ddptop.trainers import CATALOGUE
    from ddptop.tui.launch import Request, RequestError, launch

    if (options.program is None) == (options.module is None):
        return _complain("launch: give one program: a name from `ddptop programs`, a script, or -m MODULE", 2)
    if options.program in CATALOGUE and {"-h", "--help"} & set(options.arguments):
        # Its options are its own to tell, and need no group.
        os.execv(sys.executable, [sys.executable, "-m", CATALOGUE[options.program].module, "--help"])
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
        return _complain(problem, 2)
    if options.detach:
        return _detach(directory)
    return _view(options, directory)


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
            return _complain(f"run {directory.name} {state.state} before its ranks were up: {cause}", 1)
        time.sleep(0.05)


def _view(options: argparse.Namespace, directory: RunDir) -> int:
    from ddptop.tui import view

    plain = options.plain or not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if plain:
        return view.follow_plainly(directory, options.interval, launched_here=options.verb == "launch")
    return view.show_dashboard(directory)


def _chosen(name: str | None, *, ended: bool = False) -> RunDir:
    """Return the run that is meant.

    Raises:
        RunDirError: it is not clear, or there is none.
    """
    from ddptop.agent import rundir
    from ddptop.agent.group import census

    if name is not None:
        return rundir.find(name)
    live = [run for run in rundir.runs() if census.settle(run).state not in rundir.ENDED_STATES]
    if len(live) == 1:
        return live[0]
    if live:
        names = ", ".join(run.name for run in live)
        raise rundir.RunDirError(f"{len(live)} runs are alive: name one of {names}")
    more = "; `ddptop ps` lists ended ones, which can be looked at by name" if ended and rundir.runs() else ""
    raise rundir.RunDirError(f"no run is alive{more}; `ddptop launch --world 4 resnet` starts one")


def _frames(directories: list[RunDir]) -> list[Frame]:
    from ddptop.tui import status, view

    return status.frames(directories, view.who())


def _ps(options: argparse.Namespace) -> int:
    import time

    from ddptop.agent import rundir
    from ddptop.tui import status

    pictures = _frames(rundir.runs())
    if options.json:
        _print_json([status.run_json(frame) for frame in pictures])
    elif pictures:
        print("\n".join(status.table(pictures, time.time())))
    else:
        print("no runs yet; `ddptop launch --world 4 resnet` starts one")
    return 0


def _status(options: argparse.Namespace) -> int:
    from ddptop.tui import status

    directory = _chosen(options.run)
    pictures = _frames([directory])
    if not pictures:
        return _complain(f"run {directory.name} was removed just now", 1)
    if options.json:
        _print_json(status.as_json(pictures[0]))
    else:
        print("\n".join(status.card(pictures[0])))
    return 0


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _control(options: argparse.Namespace) -> int:
    from ddptop.tui import view
    from ddptop.tui.link import Link
    from ddptop.tui.source import Refused

    directory = _chosen(options.run)
    link = Link(directory, view.who())
    try:
        if options.verb == "kill":
            grace = directory.read().grace_s if options.grace is None else options.grace
            print(link.victims(options.rank), file=sys.stderr)
            done = link.kill(grace, options.rank, lambda line: print(line, file=sys.stderr))
        else:
            done = link.pause() if options.verb == "pause" else link.resume()
    except Refused as refusal:
        return _complain(f"{options.verb} {directory.name}: {refusal}", 1)
    finally:
        link.close()
    print(f"{directory.name}: {done}")
    return 0


def _logs(options: argparse.Namespace) -> int:
    from ddptop.tui import logs

    directory = _chosen(options.run, ended=True)
    run = directory.read()
    if not run.launched:
        return _complain(f"run {run.run} was started by hand: its output is on the terminal that started it", 1)
    if options.rank is not None and not 0 <= options.rank < run.world:
        return _complain(f"run {run.run} has ranks 0 to {run.world - 1}, no rank {options.rank}", 2)
    logs.show(directory, options.rank, follow=options.follow, say=lambda line: print(line, flush=True))
    return 0


def _programs() -> int:
    from ddptop.trainers import CATALOGUE

    for program in CATALOGUE.values():
        print(f"{program.name:<12}{program.technique}")
        print(f"{'':<12}{program.defaults}")
        print(f"{'':<12}source: {program.source}")
    print("\nlaunch one: ddptop launch --world 4 NAME      its options: ddptop launch NAME -- --help")
    return 0


if __name__ == "__main__":
    main()
