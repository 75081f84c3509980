"""`attach` and `logs`: look at a run."""

from __future__ import annotations

import argparse

from ddptop.tui.verbs.options import Verbs, add_run, add_view, chosen, complain, live_runs, on_terminal, show


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    attach = verbs.add_parser("attach", help="watch a run that is going on, or look at one that has ended")
    add_run(attach)
    add_view(attach)
    attach.set_defaults(carry=_attach)

    logs = verbs.add_parser("logs", help="print what the ranks wrote")
    add_run(logs)
    logs.add_argument("--rank", type=int, metavar="N", help="this rank only, without its number before each line")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.set_defaults(carry=_logs)


def _attach(options: argparse.Namespace) -> int:
    if options.run is None and on_terminal(options):
        live = live_runs()
        if len(live) > 1:
            from ddptop.tui import view

            return view.show_dashboard(live[0], listed=True)
    return show(options, chosen(options.run, ended=True))


def _logs(options: argparse.Namespace) -> int:
    from ddptop.tui import logs

    directory = chosen(options.run, ended=True)
    run = directory.read()
    if not run.launched:
        return complain(f"run {run.run} was started by hand: its output is on the terminal that started it", 1)
    if options.rank is not None and not 0 <= options.rank < run.world:
        return complain(f"run {run.run} has ranks 0 to {run.world - 1}, no rank {options.rank}", 2)
    logs.show(directory, options.rank, follow=options.follow, say=lambda line: print(line, flush=True))
    return 0
