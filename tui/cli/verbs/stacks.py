"""`stacks`: where each rank of a run stands."""

from __future__ import annotations

import argparse
import sys

from ddptop.tui.cli.complaint import complain
from ddptop.tui.cli.verbs.options import Verbs, add_run, add_verb, chosen, print_json


def add(verbs: Verbs) -> None:
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
    from ddptop.agent.run.rundir import ENDED_STATES
    from ddptop.tui.cli import parsing
    from ddptop.tui.cli.output import stacks
    from ddptop.tui.control.actor import who
    from ddptop.tui.link import look
    from ddptop.tui.link.live import Link
    from ddptop.tui.link.source import Refused
    from ddptop.tui.settings import load_or_default

    directory = chosen(options.run, last=True)
    run = directory.read()
    for rank in options.rank or ():
        if not 0 <= rank < run.world:
            return complain(f"run {run.run} has ranks 0 to {run.world - 1}, no rank {rank}", 2)
    thresholds = load_or_default()[0].thresholds
    link = Link(directory, who("shell"), thresholds)
    try:
        frame = look.heard([link], thresholds.silent_s)[0]
        taken = link.inspector.recorded(0.0) if frame.state in ENDED_STATES else None
        taken = taken or link.inspector.ask(options.rank, native=options.native)
    except Refused as refusal:
        return complain(refusal, 1)
    finally:
        link.close()
    taken = taken if options.rank is None else taken.of(set(options.rank))
    if options.json:
        print_json(stacks.as_json(frame, taken))
    else:
        print("\n".join(stacks.text(frame, taken, parsing.columns() if sys.stdout.isatty() else None)))
    return 0 if taken.inspections else 1
