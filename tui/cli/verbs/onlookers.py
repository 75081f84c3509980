"""`notify`: have others told of a run, who do not look at it."""

from __future__ import annotations

import argparse

from ddptop.tui.cli.parsing import complain
from ddptop.tui.cli.verbs.options import RUN_HELP, Verbs, add_verb, chosen


def add(verbs: Verbs) -> None:
    notify = add_verb(
        verbs, "notify", "send messages when something is wrong with a run",
        "Starts a process beside a live run that looks on until its end, and sends a message when it hangs, loses a "
        "rank, computes NaN, is slow for long, grows in memory or is over, and once more when that is over. `launch "
        "--notify URL` and the settings do the same for a run from its start.",
        """
        ddptop notify --test https://example.org/hook   # does a message arrive?
        ddptop notify resnet-7f --to ntfy://my-topic    # pip install 'ddptop[notify]'
        ddptop notify resnet-7f --to 'exec:page --loud' # JSON on its standard input
        ddptop notify resnet-7f --off
        """,
        {0: "done; --test: delivered", 1: "--test: not delivered", 2: "wrong options, no such run or address"},
    )  # fmt: skip
    notify.add_argument("run", metavar="RUN", nargs="?", help=f"{RUN_HELP}; without it the only live run")
    what = notify.add_mutually_exclusive_group()
    what.add_argument(
        "--to", action="append", default=[], metavar="URL", help="where to (besides the settings); may be repeated"
    )
    what.add_argument("--test", metavar="URL", help="send one message there now, and say whether it was taken")
    what.add_argument("--off", action="store_true", help="send no more to what was given for this run")
    notify.set_defaults(carry=_notify, remote_command=None)


def _notify(options: argparse.Namespace) -> int:
    from ddptop.agent.client.host import settings
    from ddptop.agent.client.start import notifier
    from ddptop.agent.onlookers.notify.targets import target
    from ddptop.tui.cli.verbs.launch import addresses

    chosen_settings = settings.load()
    given = addresses([*options.to, *filter(None, [options.test])], chosen_settings)
    if options.test is not None:
        return _test(options.test)
    run = chosen(options.run)
    if options.off:
        notifier.set_targets(run, ())
        print(f"nothing more is sent on {run.name}" + (", but to what is set" if chosen_settings.notify.to else ""))
        return 0
    if run.has_ended():
        return complain(f"run {run.name} has ended: there is nothing to come", 2)
    known = [*dict.fromkeys((*chosen_settings.notify.to, *notifier.targets(run), *given))]
    if not known:
        return complain("notify: nobody is to be told: give --to URL, or set `to` in [notify] of the settings", 2)
    notifier.start(run, given)
    if not notifier.await_start(run):
        return complain(f"run {run.name}: its notifier does not start; {notifier.log(run)} may tell why", 1)
    print(f"messages on {run.name} go to {', '.join(target(url).shown for url in known)}, until it is over")
    return 0


def _test(url: str) -> int:
    from ddptop.agent.onlookers.notify.notifier import trial
    from ddptop.agent.onlookers.notify.targets import Undelivered, target

    there = target(url)
    try:
        there.send(trial())
    except Undelivered as problem:
        return complain(problem, 1)
    print(f"{there.shown} has taken a message")
    return 0
