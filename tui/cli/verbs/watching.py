"""`attach`, `watch` and `logs`: look at a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from ddptop.tui.cli.parsing import complain, whole
from ddptop.tui.cli.verbs import control
from ddptop.tui.cli.verbs.options import (
    RUNS_OWN,
    Verbs,
    add_interval,
    add_run,
    add_verb,
    add_view,
    chosen,
    configured,
    on_terminal,
    show,
)

VIEWS: Final = ("panels", "table", "heatmap", "timeline")
LEVELS: Final = ("debug", "info", "warning", "error")


def add(verbs: Verbs) -> None:
    attach = add_verb(
        verbs, "attach", "watch a live run, or look at one that has ended",
        "Shows a run on the dashboard with its whole history; without a terminal, as lines. A training that was "
        "started without ddptop is shown as far as it can be seen from outside.",
        """
        ddptop attach                       # the only live run
        ddptop attach resnet-7f --view heatmap
        ddptop attach 21869                    # by pid, also of a plain torchrun
        ddptop attach 7f3a --screenshot a.svg  # its last 4 digits
        ddptop attach ada@node1:resnet-7f      # of another machine, over ssh
        """,
        RUNS_OWN,
    )  # fmt: skip
    add_run(attach)
    add_view(attach)
    attach.add_argument("--view", choices=VIEWS, help="the first view of the ranks")
    attach.add_argument("--screenshot", type=Path, metavar="FILE", help="write a snapshot (SVG) and return at once")
    attach.add_argument("--size", type=_size, default=(120, 40), metavar="WxH", help="of the snapshot (120x40)")
    attach.add_argument(
        "--join",
        action="store_true",
        help="first have the agent join the ranks of a job that nobody prepared (Python 3.14 and newer); `leave` takes "
        "it out again",
    )
    attach.add_argument("--slurm", metavar="JOB", help="the run of this job, by an overlapping step on its first node")
    attach.set_defaults(carry=_attach)

    watch = add_verb(
        verbs, "watch", "print a run as a stream of lines, for scripts and pipes",
        "Writes a line every few seconds and at each event, until the run ends.",
        """
        ddptop watch resnet-7f --interval 10
        ddptop watch resnet-7f --json --count 1
        """,
        {**RUNS_OWN, "0": "the run has finished or stopped, or all lines of --count are written"},
    )  # fmt: skip
    add_run(watch)
    watch.add_argument("--json", action="store_true", help="one JSON object per line, as in `status --json`")
    watch.add_argument("--count", type=whole(1), metavar="N", help="end after so many lines (with --json)")
    add_interval(watch)
    watch.set_defaults(carry=_watch, plain=True)

    logs = add_verb(
        verbs, "logs", "print the output of the ranks",
        "Prints stdout and stderr of the ranks as one log, by time where the lines have one; what several ranks print "
        "alike stands once, a traceback stays together. Before each line: its time (that in the line, else when it was "
        "seen with --follow, else a dash) and its ranks.",
        """
        ddptop logs resnet-7f
        ddptop logs resnet-7f --rank 1 -f  # as it is written
        ddptop logs resnet-7f --level warning --grep nccl
        """,
        {0: "printed", 1: "its output is elsewhere", 2: "wrong options, or no such run or rank", 130: "Ctrl-C"},
    )  # fmt: skip
    add_run(logs, last=True)
    logs.add_argument(
        "--rank", type=int, metavar="N", action="append", default=[],
        help="this rank only, without time and rank before each line; several: --rank 0 --rank 5",
    )  # fmt: skip
    logs.add_argument("-f", "--follow", action="store_true", help="follow until the run ends")
    logs.add_argument(
        "--level", choices=LEVELS, help="only lines that say they are of this level or above, and whole tracebacks"
    )
    logs.add_argument("--grep", metavar="TEXT", help="only lines with this text, in any case, and whole tracebacks")
    logs.set_defaults(carry=_logs)


def home(options: argparse.Namespace) -> int:
    """List all runs on the dashboard, which is what `ddptop` alone does on a terminal."""
    from ddptop.tui.cli import view

    return view.show_dashboard(None, configured(options))


def _attach(options: argparse.Namespace) -> int:
    settings = configured(options)
    if options.slurm is not None:
        from ddptop.tui.cli import elsewhere

        return elsewhere.attach_to_job(options)
    if options.run is None and options.screenshot is None and on_terminal(options):
        from ddptop.agent.client import runs

        live = runs.live()
        if len(live) > 1:
            return show(options, live[0], settings, listed=True)
    run = chosen(options.run, looks=not options.join)
    if options.join and (code := control.carry_out(options)):
        return code
    if options.screenshot is None:
        return show(options, run, settings)
    from ddptop.tui.cli import view

    return view.write_snapshot(run, options.screenshot, options.size, settings)


def _watch(options: argparse.Namespace) -> int:
    from ddptop.tui.cli import view

    settings = configured(options)
    run = chosen(options.run, looks=True)
    if options.json:
        return view.stream_json(run, settings, options.count)
    if options.count is not None:
        return complain("watch: --count goes with --json", 2)
    return show(options, run, settings)


def _size(text: str) -> tuple[int, int]:
    """Read `120x40`, as a type of argparse."""
    try:
        width, height = (int(each) for each in text.split("x"))
    except ValueError:
        width = height = 0
    if not (20 <= width <= 1000 and 5 <= height <= 1000):
        raise argparse.ArgumentTypeError(f"{text!r}: say WIDTHxHEIGHT, from 20x5 to 1000x1000")
    return width, height


def _logs(options: argparse.Namespace) -> int:
    from ddptop.agent.client.logs.lines import Level
    from ddptop.agent.client.logs.matching import Wanted
    from ddptop.tui.cli.output import logs

    if options.grep is not None and not options.grep.strip():
        return complain("logs: --grep: give the text to look for", 2)
    run = chosen(options.run, last=True)
    record = run.record()
    if not run.prints_to_files():
        return complain(f"run {run.name} was started by hand: its output is on the terminal that started it", 1)
    for rank in options.rank:
        if not 0 <= rank < record.world:
            return complain(f"run {run.name} has ranks 0 to {record.world - 1}, no rank {rank}", 2)
    logs.show(
        run,
        sorted(set(options.rank)),
        follow=options.follow,
        say=lambda line: print(line, flush=True),
        note=lambda line: print(f"ddptop: {line}", file=sys.stderr),
        wanted=Wanted(Level[options.level.upper()] if options.level else None, options.grep or ""),
    )
    return 0
