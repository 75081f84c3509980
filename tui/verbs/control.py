"""`pause`, `resume` and `kill`: act on a run, by the same functions as the keys."""

from __future__ import annotations

import argparse
import sys

from ddptop.tui.verbs.options import Verbs, add_run, chosen, complain, seconds


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    pause = verbs.add_parser("pause", help="hold all ranks at the same step, for as long as you like")
    resume = verbs.add_parser("resume", help="let a paused run go on")
    for verb in (pause, resume):
        add_run(verb)
        verb.set_defaults(carry=_control)

    kill = verbs.add_parser("kill", help="end a run and everything that belongs to it")
    kill.add_argument("run", metavar="RUN", help="name of the run or the beginning of it")
    kill.add_argument(
        "--rank", type=int, metavar="N", help="end this rank only; the others fail at their next collective"
    )
    kill.add_argument("--grace", type=seconds, default=None, metavar="S", help="seconds between TERM and KILL (5)")
    kill.set_defaults(carry=_control)


def _control(options: argparse.Namespace) -> int:
    from ddptop.tui import view
    from ddptop.tui.link import Link
    from ddptop.tui.source import Refused

    directory = chosen(options.run)
    link = Link(directory, view.who())
    try:
        if options.verb == "kill":
            grace = directory.read().grace_s if options.grace is None else options.grace
            print(link.victims(options.rank), file=sys.stderr)
            done = link.kill(grace, options.rank, lambda line: print(line, file=sys.stderr))
        else:
            done = link.pause() if options.verb == "pause" else link.resume()
    except Refused as refusal:
        return complain(f"{options.verb} {directory.name}: {refusal}", 1)
    finally:
        link.close()
    print(f"{directory.name}: {done}")
    return 0
