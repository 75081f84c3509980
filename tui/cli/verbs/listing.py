"""`ps`, `status`, `events`, `report`, `programs` and `stacks`: print what there is, and end."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ddptop.agent.text import clean
from ddptop.tui.cli.parsing import complain
from ddptop.tui.cli.verbs.options import PRINTED, Verbs, add_remote, add_run, add_verb, chosen, print_json

if TYPE_CHECKING:
    from ddptop.agent.client.frame import Frame
    from ddptop.agent.client.runs import Run

_THREADS: Final = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"
"""Environment variables that set the number of threads, one for each library that NumPy may be built with."""


def add(verbs: Verbs) -> None:
    ps = add_verb(
        verbs, "ps", "list live and recent runs",
        "Lists the runs of this machine, the newest first, with state, step, time, size, and the cause of a failure; "
        "training groups that nobody prepared, too.",
        """
        ddptop ps
        sudo ddptop ps --all  # of all users
        ddptop ps node1:      # of another machine, over ssh
        """,
        PRINTED,
    )  # fmt: skip
    ps.add_argument("--json", action="store_true", help="as JSON: a list of objects (see `ddptop help json`)")
    ps.add_argument("--all", action="store_true", help="runs of all users (root only)")
    ps.add_argument("run", metavar="HOST:", nargs="?", help="the runs of another machine, over ssh")
    add_remote(ps)
    ps.set_defaults(carry=_ps)

    status = add_verb(
        verbs, "status", "show the status of a run and its ranks",
        "Prints what is wrong with a run first, then its progress, then a line for each rank. On a terminal, columns "
        "that do not fit are left out.",
        """
        ddptop status                   # the only live run
        ddptop status resnet-7f --json  # for scripts
        """,
        {0: "printed", 1: "the run was removed just now", 2: PRINTED[2]},
    )  # fmt: skip
    add_run(status, last=True)
    status.add_argument("--json", action="store_true", help="as JSON: one object (see `ddptop help json`)")
    status.set_defaults(carry=_status)

    events = add_verb(
        verbs, "events", "print the events of a run and who acted on it",
        "Prints the events of a run, the oldest first: starts, ends, verdicts, and who paused, stepped or killed it.",
        "ddptop events resnet-7f",
        PRINTED,
    )  # fmt: skip
    add_run(events, last=True)
    events.add_argument("--json", action="store_true", help="as JSON: a list of objects (see `ddptop help json`)")
    events.set_defaults(carry=_events)

    report = add_verb(
        verbs, "report", "explain why a run died, ready for an issue tracker",
        "Prints the first cause of a run's end, what kind of an end it is and what to do about it, the stack, the last "
        "output, the other ranks, versions, verdicts and events. Secrets in the command line are masked.",
        """
        ddptop report                         # the only live run, or the last one
        ddptop report resnet-7f --markdown    # for an issue tracker
        ddptop report --html report.html      # with plots, for a browser
        """,
        PRINTED,
    )  # fmt: skip
    add_run(report, last=True)
    form = report.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON: one object (see `ddptop help json`)")
    form.add_argument("--markdown", action="store_true", help="as Markdown, for an issue tracker")
    form.add_argument("--html", metavar="FILE", help="as one page with plots and all events, for a browser")
    report.add_argument(
        "--against", metavar="NAME", help="with --html: compare it with this baseline, kept run, run or packed file"
    )
    report.set_defaults(carry=_report)

    programs = add_verb(
        verbs, "programs", "list the training programs that come with ddptop",
        "Lists the training programs that come with ddptop, each with what it shows of distributed training.",
        "ddptop programs",
        {0: "printed"},
    )  # fmt: skip
    programs.set_defaults(carry=_programs)
    _add_stacks(verbs)


def _frames(found: list[Run], *, measured: bool) -> list[Frame]:
    import gc

    # What is imported and taken in stays, and need not be looked through for garbage.
    collects = gc.isenabled()
    gc.disable()
    try:
        from ddptop.agent.client import look
        from ddptop.agent.client.acting.actor import who

        return look.frames(found, who("shell"), measured=measured)
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def _no_threads_of_numpy() -> Iterator[None]:
    """Let NumPy be imported without the threads that its linear algebra starts for each core."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _others() -> list[Frame]:
    """Return the runs of other users, and print whose runs could not be read."""
    with _no_threads_of_numpy():
        from ddptop.agent.client.acting.actor import who
        from ddptop.agent.client.sources import other_users

    shown, problems = other_users.frames(who("shell"))
    for line in problems:
        print(f"ddptop: {line}", file=sys.stderr)
    return shown


def _ps(options: argparse.Namespace) -> int:
    import time

    from ddptop.agent.client import runs
    from ddptop.agent.client.sources import unprepared
    from ddptop.agent.text import clean_line
    from ddptop.tui.cli.output import status

    if options.run is not None:
        return complain(f"ps: {options.run!r}: a host is named with a colon: `ddptop ps {options.run}:`", 2)
    others: list[Frame] = []
    if options.all and os.getuid() != 0:
        print("ddptop: only root sees the runs of others: sudo ddptop ps --all", file=sys.stderr)
    elif options.all:
        # Before anything else: the processes that do it are forked, and what a thread holds then is held for ever.
        others = _others()
    removed = len(runs.tidy())
    damaged: list[str] = []
    own = runs.listed(damaged)
    for line in damaged:
        print(f"ddptop: {clean_line(line)}", file=sys.stderr)
    found = _frames(own, measured=True) + [unprepared.frame_of(group) for group in unprepared.found()] + others
    shown = sorted(found, key=lambda frame: frame.started_at or 0.0, reverse=True)
    if options.json:
        print_json([status.run_json(frame) for frame in shown])
    elif shown:
        print("\n".join(status.table(shown, time.time())))
        _say_removed(removed, own)
    else:
        print("no runs yet; `ddptop launch --world 4 resnet` starts one")
    return 0


def _say_removed(removed: int, own: list[Run]) -> None:
    """Print how many ended runs were removed to make room, by this call and by the launches of these runs."""
    from ddptop.agent.client import runs
    from ddptop.agent.text import plural

    for run in own:
        with contextlib.suppress(runs.RunDirError):
            removed += run.record().removed
    if removed:
        was = "was" if removed == 1 else "were"
        line = (
            f"{plural(removed, 'ended run')} {was} removed to make room; "
            f"the last {runs.KEEP_ENDED} stay, within `all_mib` (ddptop help settings)"
        )
        print(f"\x1b[2m{line}\x1b[0m" if sys.stdout.isatty() else line)


def _status(options: argparse.Namespace) -> int:
    from ddptop.tui.cli import parsing
    from ddptop.tui.cli.output import card, status

    run = chosen(options.run, last=True)
    shown = _frames([run], measured=False)
    if not shown:
        return complain(f"run {run.name} was removed just now", 1)
    for line in run.lacks():
        print(f"ddptop: {line}", file=sys.stderr)
    if options.json:
        print_json(status.as_json(shown[0]))
    else:
        lines = card.card(shown[0], parsing.columns() if sys.stdout.isatty() else None)
        print(*map(parsing.as_called, lines), sep="\n")
    return 0


def _events(options: argparse.Namespace) -> int:
    from ddptop.agent import wire
    from ddptop.tui.cli.output import status
    from ddptop.tui.model.documented import event_json, interval_json

    run = chosen(options.run, last=True)
    found = run.happened()
    if options.json:
        print_json([interval_json(each) if isinstance(each, wire.Verdict) else event_json(each) for each in found])
    else:
        hosts = status.hosts_of(run.hosts())
        for each in found:
            if isinstance(each, wire.Verdict):
                print(status.interval_line(each, hosts))
            else:
                print(status.event_line(each, hosts))
    return 0


def _report(options: argparse.Namespace) -> int:
    from ddptop.tui.model.diagnosis import report

    run = chosen(options.run, last=True)
    if options.html is not None:
        return _page(run, options.html, options.against)
    if options.against is not None:
        return complain("report: --against goes with --html; `ddptop compare` prints a comparison", 2)
    found = run.report()
    if options.json:
        print_json(report.as_json(found))
    else:
        print(report.markdown(found) if options.markdown else report.text(found))
    return 0


def _page(run: Run, name: str, other: str | None) -> int:
    from pathlib import Path

    from ddptop.agent.client.acting.actor import who

    file = Path(name)
    try:
        from ddptop.tui.cli.output.html import page

        comparison = None
        if other is not None:
            from ddptop.tui.cli.verbs.comparing import beside

            comparison = beside(run, other)
        for line in page.write(run, who("shell"), file, comparison):
            print(f"ddptop: {line}", file=sys.stderr)
    except ModuleNotFoundError as missing:
        if missing.name != "jinja2":
            raise
        return complain("report: jinja2 is not installed; pip install 'ddptop[html]'", 2)
    except OSError as problem:
        return complain(f"{file}: {problem.strerror}", 2)
    print(clean(str(file)))
    return 0


def _programs(_: argparse.Namespace) -> int:
    from ddptop.trainers import CATALOGUE

    for program in CATALOGUE.values():
        print(f"{program.name:<12}{program.technique}")
        print(f"{'':<12}{program.defaults}")
        print(f"{'':<12}source: {program.source}")
    print("\nlaunch one: ddptop launch --world 4 NAME      its options: ddptop launch NAME -- --help")
    return 0


def _add_stacks(verbs: Verbs) -> None:
    stacks = add_verb(
        verbs, "stacks", "show where each rank stands: its stack and its collectives",
        "Asks the ranks where they stand, and prints it: ranks at the same place together, the odd ones first; frames "
        "of libraries folded, the innermost call first. Of an ended run it prints what was recorded when it hung.",
        """
        ddptop stacks                      # all ranks of the only live run
        ddptop stacks resnet-7f --rank 3   # one of them; --rank may be given again
        ddptop stacks resnet-7f --native   # with frames of C and C++
        """,
        {0: "printed", 1: "no rank has sent its stack", 2: "wrong options, or no such run"},
    )  # fmt: skip
    add_run(stacks, last=True)
    stacks.add_argument(
        "--rank", type=int, action="append", metavar="N", help="only this rank; may be given more than once"
    )
    stacks.add_argument(
        "--native", action="store_true", help="frames of C and C++, too; stops each rank for about a second"
    )
    stacks.add_argument("--json", action="store_true", help="as JSON: one object (see `ddptop help json`)")
    stacks.set_defaults(carry=_stacks)


def _stacks(options: argparse.Namespace) -> int:
    from ddptop.agent.client import look
    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.client.watch import Watch
    from ddptop.agent.wire.frames import ENDED
    from ddptop.tui.cli import parsing
    from ddptop.tui.cli.output import stacks
    from ddptop.tui.link.source import Refused

    run = chosen(options.run, last=True)
    world = run.record().world
    for rank in options.rank or ():
        if not 0 <= rank < world:
            return complain(f"run {run.name} has ranks 0 to {world - 1}, no rank {rank}", 2)
    watch = Watch(run, who("shell"))
    try:
        frame = look.heard([watch])[0]
        taken = watch.inspector.recorded(0.0) if frame.state in ENDED else None
        taken = taken or watch.inspector.ask(options.rank, native=options.native)
    except Refused as refusal:
        return complain(refusal, 1)
    finally:
        watch.close()
    taken = taken if options.rank is None else taken.of(set(options.rank))
    if options.json:
        print_json(stacks.as_json(frame, taken))
    else:
        print("\n".join(stacks.text(frame, taken, parsing.columns() if sys.stdout.isatty() else None)))
    return 0 if taken.inspections else 1
