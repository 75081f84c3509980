"""`launch` and `restart`: start a training group and watch it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptop.agent.client.start.request import Request
from ddptop.tui.cli.parsing import complain
from ddptop.tui.cli.verbs.options import (
    LAUNCHED,
    RUN_HELP,
    Verbs,
    add_verb,
    add_view,
    chosen,
    configured,
    is_detached,
    on_terminal,
    show_launched,
    typed,
)
from ddptop.tui.launch.options import OPTIONS, LaunchOption, whole

if TYPE_CHECKING:
    from ddptop.agent.client.host.settings import Settings
    from ddptop.tui.cli.parsing import Parser

_NOTIFY: Final = "DDPTOP_NOTIFY"
"""Environment variable with addresses, a line each, for the launch on each node of an allocation: a command line can be
read by everybody."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    launch = add_verb(
        verbs, "launch", "start a training group and watch it",
        "Starts a program as a group of ranks and shows it: as the dashboard on a terminal, else as lines. To leave "
        "the dashboard does not end the run.",
        """
        ddptop launch --world 4 resnet         # a program of `ddptop programs`
        ddptop launch train.py -- --lr 0.1     # your script; its options after --
        ddptop launch --detach -m pkg.train    # a module; back once it makes steps
        ddptop launch --slurm train.py         # on all nodes of this allocation
        """,
        LAUNCHED,
    )  # fmt: skip
    launch.more = partial(_advise, launch)
    launch.set_defaults(carry=_run)
    launch.usage = "ddptop launch [options] (PROGRAM | -m MODULE) [-- ARGS ...]"
    launch.add_argument("program", metavar="PROGRAM", nargs="?", help="a name from `ddptop programs`, or a script")
    launch.add_argument("-m", dest="module", metavar="MODULE", help="a module to run, instead of PROGRAM")
    for option in OPTIONS:
        _add_option(launch, option)
    launch.add_argument("--gate", metavar="FILE", type=Path, help="check the run at its end, as `ddptop gate` does")
    _add_slurm(launch)
    _add_watching(launch)

    restart = add_verb(
        verbs, "restart", "restart an ended run with the same settings",
        "Starts a run that has ended again, as a new run with the same program, arguments and options; the old one "
        "stays.",
        """
        ddptop restart resnet-7f
        ddptop restart resnet-7f --resume  # from its last checkpoint
        """,
        {**LAUNCHED, "1": f"refused; {LAUNCHED['1']}"},
    )  # fmt: skip
    restart.add_argument("run", metavar="RUN", help=RUN_HELP)
    restart.add_argument("--resume", action="store_true", help="resume from its checkpoint, if its program can")
    restart.set_defaults(carry=_restart)
    _add_watching(restart)


def _add_slurm(launch: argparse.ArgumentParser) -> None:
    number = typed(whole("a whole number", most=65536))
    launch.add_argument(
        "--slurm",
        action="store_true",
        help="on the nodes of the Slurm allocation that this is typed in, by srun (`ddptop help many-machines`)",
    )
    launch.add_argument(
        "--nodes", type=number, metavar="N", help="with --slurm: so many of its nodes (default: all of them)"
    )
    launch.add_argument(
        "--ntasks-per-node",
        type=number,
        metavar="M",
        help="with --slurm: ranks on each node (default: one for each GPU, else as many tasks as the allocation has)",
    )
    launch.add_argument("--dry-run", action="store_true", help="print the command lines that would run, and no more")


def _advise(parser: Parser, given: Sequence[str]) -> str:
    line = _divided(parser, given) or "ddptop launch train.py -- --lr 0.1"
    return f" (arguments of the program go after --: `{line}`)"


def _divided(parser: Parser, given: Sequence[str]) -> str | None:
    """Return the user's line with all that is not ours behind `--`; None where no program stands before that."""
    ours, theirs, has_program = [], [], False
    words = iter(given)
    for word in words:
        option = parser._option_string_actions.get(word.partition("=")[0])
        if option is not None:
            ours.append(word)
            if option.nargs is None and "=" not in word:
                ours += [value for value in (next(words, None),) if value is not None]
            has_program |= option.dest == "module"
        elif has_program:
            theirs.append(word)
        elif word.startswith("-"):
            return None
        else:
            ours.append(word)
            has_program = True
    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    return shlex.join(["ddptop", "launch", *ours, "--", *theirs, *behind])


def _add_watching(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--detach",
        action="store_true",
        help="return once all ranks have made a step, printing the run's name; with exit code 1 where one has failed",
    )
    verb.add_argument("--no-wait", action="store_true", help="print the run's name and return at once")
    verb.add_argument(
        "--notify",
        action="append",
        default=[],
        metavar="URL",
        help="send messages on the run there (`ddptop help notify`): https://HOST/..., exec:COMMAND; may be repeated",
    )
    verb.add_argument("-v", "--verbose", action="store_true", help="say which ended runs were removed to make room")
    add_view(verb)


def _add_option(verb: argparse.ArgumentParser, option: LaunchOption) -> None:
    said = option.help.replace("%", "%%") + (f" (default: {option.usual})" if option.usual else "")
    verb.add_argument(
        option.flag,
        dest=option.key,
        metavar=option.metavar,
        choices=option.choices or None,
        type=typed(option.read),
        action="append" if option.repeats else "store",
        # To which nothing can be appended where it is a tuple.
        default=list(option.default) if option.repeats else option.default,
        help=f"{said}; may be repeated" if option.repeats else said,
    )


def requested(options: argparse.Namespace, who: str) -> Request:
    """Return what a command line asks for."""
    values = {option.key: getattr(options, option.key) for option in OPTIONS}
    values |= {option.key: tuple(values[option.key]) for option in OPTIONS if option.repeats}
    program, as_module = options.module or options.program, options.module is not None
    return Request(program, as_module, options.arguments, who, **values)


def _run(options: argparse.Namespace) -> int:
    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.client.host.program import isolated
    from ddptop.agent.client.start import notifier
    from ddptop.agent.client.start import run as start
    from ddptop.agent.client.start.request import RequestError
    from ddptop.trainers import CATALOGUE
    from ddptop.tui.cli.verbs import slurm
    from ddptop.tui.launch.launch import checked, launch

    if (options.program is None) == (options.module is None):
        return complain("launch: give one program: a name from `ddptop programs`, a script, or -m MODULE", 2)
    if options.program in CATALOGUE and {"-h", "--help"} & set(options.arguments):
        # Its options are its own to show, and need no group.
        os.execv(sys.executable, [*isolated(CATALOGUE[options.program].module), "--help"])
    # Before anything starts: what the dashboard could not work with is said now.
    settings = configured(options)
    request = requested(options, who("shell"))
    notify = addresses(options.notify, settings)
    limits = None
    if options.gate is not None:
        from ddptop.agent.client.comparison import gate

        if is_detached(options) or options.slurm:
            return complain("launch: --gate waits for the end of the run; later: `ddptop gate RUN FILE`", 2)
        limits = gate.read(options.gate)
        if limits.compares:
            from ddptop.agent.client.keeping import kept

            # What it is to be compared with has to be there, before hours are spent.
            with kept.against(limits.against):
                pass
    try:
        if options.slurm:
            os.environ[_NOTIFY] = "\n".join(notify)
            return slurm.launch(options, request, settings)
        if options.nodes is not None or options.ntasks_per_node is not None:
            return complain("launch: --nodes and --ntasks-per-node need --slurm; else: --nnodes, --nproc-per-node", 2)
        if options.dry_run:
            print(shlex.join(start.command(request, checked(request))))
            return 0
        watched = is_detached(options) or on_terminal(options) or sys.stdin.isatty()
        belongs = not watched and start.belongs_here()
        asked = slurm.after_requeue(request) if belongs else request
        run = launch(asked, _tell if options.verbose else _be_quiet, belongs=belongs, notify=notify)
    except RequestError as problem:
        return complain(problem, 2)
    code = show_launched(options, run, settings)
    if belongs:
        # A scheduler ends all that is left once this process has ended.
        notifier.await_change(run, to_live=False)
    if limits is None or code == 130:
        return code
    from ddptop.tui.cli.verbs import comparing

    # Its own code says more of how a run has failed.
    return comparing.judge(run, limits) if code == 0 else code


def addresses(given: Sequence[str], settings: Settings) -> list[str]:
    """Return where messages go besides what the settings say, and hide that where others can read the command line.

    Raises:
        TargetError: an address is none, given here or set.
    """
    inherited = os.environ.pop(_NOTIFY, "")
    found = [*given, *filter(None, inherited.split("\n"))]
    if found or settings.notify.is_wanted:
        # Here, because it loads what talks to servers.
        from ddptop.agent.onlookers.notify.targets import masked, target
        from ddptop.tui.cli.arguments import conceal

        conceal({url: masked(url) for url in found})
        for url in filter(None, (*found, *settings.notify.to, settings.notify.heartbeat)):
            target(url)
    return found


def _restart(options: argparse.Namespace) -> int:
    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.client.start.request import RequestError
    from ddptop.agent.client.start.run import restart

    settings = configured(options)
    tell, notify = _tell if options.verbose else _be_quiet, addresses(options.notify, settings)
    try:
        run = restart(chosen(options.run), resume=options.resume, who=who("shell"), tell=tell, notify=notify)
    except RequestError as problem:
        return complain(problem, 1)
    print(f"ddptop: restarted as {run.name}", file=sys.stderr)
    return show_launched(options, run, settings)


def _be_quiet(_: str) -> None:
    """Leave out what was done besides: the events of the run have it."""


def _tell(line: str) -> None:
    print(f"ddptop: {line}", file=sys.stderr)
