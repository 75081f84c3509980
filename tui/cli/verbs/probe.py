"""`probe`: experiments of all ranks while they are held, and which rank or connection is slower than its like."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.tui.cli.verbs import control
from ddptop.tui.cli.verbs.diagnosis import add_kept, is_elsewhere, print_kept, print_made
from ddptop.tui.cli.verbs.options import AWAITED, Verbs, add_run, add_verb, chosen

if TYPE_CHECKING:
    from ddptop.agent.control.waiting import Waiting
    from ddptop.tui.link.control import RunControl


def add(verbs: Verbs) -> None:
    probe = add_verb(
        verbs, "probe", "hold all ranks and try what each can do, and say which is slow, and why",
        "Pauses all ranks at a step, for ten seconds at most. Alone and together they multiply matrices, copy memory, "
        "write and read a file, and send each other messages by the script's own group; then they go on. Nothing of "
        "the training changes.",
        """
        ddptop probe resnet-7f                  # ctrl-c lets the run go on at once
        ddptop probe resnet-7f --list           # the probes kept with the run
        """,
        AWAITED,
    )  # fmt: skip
    add_run(probe)
    add_kept(probe, "probes")
    probe.set_defaults(carry=_probe, printing=_print)


def _probe(options: argparse.Namespace) -> int:
    return _list(options) if options.list else control.carry_out(options)


def _list(options: argparse.Namespace) -> int:
    from ddptop.agent.observer.record import probes
    from ddptop.tui.model.diagnosis import probe

    return print_kept(options, probes.kept(chosen(options.run, last=True).probes), probe)


def _print(options: argparse.Namespace, action: RunControl, waiting: Waiting, run: str) -> int:
    """Probe, and print what was found."""
    from ddptop.agent.observer.record import probes
    from ddptop.tui.model.diagnosis import probe

    done = action.diagnose("probe", waiting)
    found = probes.read(Path(done))
    return is_elsewhere(options, run, done) if found is None else print_made(options, found, probe)
