"""`profile`: torch's profiler over the same steps of some ranks, and what it shows."""

from __future__ import annotations

import argparse
import gzip
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.tui.cli.parsing import complain
from ddptop.tui.cli.verbs import control
from ddptop.tui.cli.verbs.diagnosis import add_kept, add_ranks, diagnose, is_elsewhere, print_kept, print_made
from ddptop.tui.cli.verbs.options import AWAITED, Verbs, add_run, add_verb, chosen, typed

if TYPE_CHECKING:
    from ddptop.agent.control.waiting import Waiting
    from ddptop.tui.link.control import RunControl


def add(verbs: Verbs) -> None:
    profile = add_verb(
        verbs, "profile", "profile the same steps of some ranks, and say in what two of them differ",
        "Runs torch's profiler over the same whole steps of the rank that a verdict accuses and of an ordinary one, or "
        "of the ranks named; no rank is held. Writes one trace of all of them, and says which operators take longer.",
        """
        ddptop profile resnet-7f                # the accused rank and another one
        ddptop profile resnet-7f --ranks 0,2 --steps 5
        ddptop profile resnet-7f --out p.json   # copy the trace to here
        ddptop profile resnet-7f --list         # the profiles kept with the run
        """,
        AWAITED,
    )  # fmt: skip
    add_run(profile)
    add_ranks(profile, "profile")
    profile.add_argument(
        "--out", type=typed(_target), metavar="FILE", help="copy the trace to this file, .json or .json.gz"
    )
    add_kept(profile, "profiles")
    profile.set_defaults(carry=_profile, printing=_print)


def _target(text: str) -> Path:
    path = Path(text)
    if not path.name.endswith((".json", ".json.gz")):
        raise ValueError("a name that ends in .json or .json.gz")
    if not path.parent.is_dir():
        raise ValueError("a file in a folder that exists")
    return path


def _profile(options: argparse.Namespace) -> int:
    return _list(options) if options.list else control.carry_out(options)


def _list(options: argparse.Namespace) -> int:
    from ddptop.agent.observer.record.profiles import kept
    from ddptop.tui.model.diagnosis import profile

    return print_kept(options, kept.kept(chosen(options.run, last=True).profiles), profile)


def _print(options: argparse.Namespace, action: RunControl, waiting: Waiting, run: str) -> int:
    """Profile, and print what it shows."""
    from ddptop.agent.observer.record.profiles import kept
    from ddptop.tui.model.diagnosis import profile

    done = diagnose(options, action, waiting)
    found = kept.read(Path(done))
    if found is None:
        return is_elsewhere(options, run, done)
    if options.out is not None:
        # Before anything is printed, whose reader may be gone.
        try:
            _copy(found.trace, options.out)
        except OSError as problem:
            return complain(f"profile {run}: {options.out}: {problem.strerror}; the trace is {found.trace}", 1)
    code = print_made(options, found, profile)
    if not options.json and options.ranks is None and (missing := profile.left_out(found, action.world)):
        print(missing)
    return code


def _copy(trace: Path, target: Path) -> None:
    """Copy a trace to a file, unpacked where its name does not end in `.gz`.

    Raises:
        OSError: it cannot be written.
    """
    with open(trace, "rb") as packed, open(target, "wb") as file:
        if target.suffix == ".gz":
            shutil.copyfileobj(packed, file)
        else:
            with gzip.open(packed) as unpacked:
                shutil.copyfileobj(unpacked, file)
