"""`memory`: the objects that live in some ranks, and those that came within some steps."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.tui.cli.verbs import control
from ddptop.tui.cli.verbs.diagnosis import add_kept, add_ranks, diagnose, is_elsewhere, print_kept, print_made
from ddptop.tui.cli.verbs.options import AWAITED, Verbs, add_run, add_verb, chosen

if TYPE_CHECKING:
    from ddptop.agent.control.waiting import Waiting
    from ddptop.tui.link.control import RunControl


def add(verbs: Verbs) -> None:
    memory = add_verb(
        verbs, "memory", "say what lives in the memory of some ranks, and what grows",
        "Counts the tensors, arrays and Python objects of some ranks before and behind the same steps, and says what "
        "there is more of: the line that made it, and its place. The ranks are held for the counts alone.",
        """
        ddptop memory resnet-7f          # the rank that grows, or the first 8
        ddptop memory resnet-7f --ranks 0,2 --steps 20
        ddptop memory resnet-7f --list   # those that are kept with the run
        """,
        AWAITED,
    )  # fmt: skip
    add_run(memory)
    add_ranks(memory, "memory")
    add_kept(memory, "looks at the memory")
    memory.set_defaults(carry=_memory, printing=_print)


def _memory(options: argparse.Namespace) -> int:
    return _list(options) if options.list else control.carry_out(options)


def _list(options: argparse.Namespace) -> int:
    from ddptop.agent.observer.record import memory as record
    from ddptop.tui.model.diagnosis import memory

    return print_kept(options, record.kept(chosen(options.run, last=True).memory), memory)


def _print(options: argparse.Namespace, action: RunControl, waiting: Waiting, run: str) -> int:
    """Take the censuses, and print what they show."""
    from ddptop.agent.observer.record import memory as record
    from ddptop.tui.model.diagnosis import memory

    done = diagnose(options, action, waiting)
    found = record.read(Path(done))
    return is_elsewhere(options, run, done) if found is None else print_made(options, found, memory)
