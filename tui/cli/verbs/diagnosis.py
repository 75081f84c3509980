"""What the verbs of a diagnosis share: of which ranks it is made, over how many steps, and the printing of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ddptop.tui.cli.parsing import complain
from ddptop.tui.cli.verbs.options import print_json, typed
from ddptop.tui.model.diagnosis.kinds import KINDS, first_ranks

if TYPE_CHECKING:
    from ddptop.agent.control.waiting import Waiting
    from ddptop.tui.link.control import RunControl

_Kept = TypeVar("_Kept", contravariant=True)


class Lines(Protocol[_Kept]):
    """A module that makes lines of the diagnoses of one kind."""

    def text(self, kept: _Kept, /) -> list[str]:
        """Return the lines of one."""
        ...

    def listing(self, kept: Sequence[_Kept], /) -> list[str]:
        """Return the lines of all."""
        ...

    def as_json(self, kept: _Kept, /) -> dict[str, Any]:
        """Return one for JSON."""
        ...


def add_ranks(verb: argparse.ArgumentParser, kind: str) -> None:
    """Let the verb take ranks and a number of steps."""
    verb.add_argument(
        "--ranks",
        type=typed(_ranks),
        metavar="RANKS",
        help=f"ranks as 0,2 or 0-3; `culprit`: {KINDS[kind].culprit}; `all`",
    )
    steps, most = KINDS[kind].steps, KINDS[kind].most_steps
    verb.add_argument(
        "--steps",
        type=typed(partial(_steps, most)),
        metavar="N",
        help=f"number of steps, 1 to {most:,} ({steps})",
    )


def add_kept(verb: argparse.ArgumentParser, plural: str) -> None:
    """Let the verb list what is kept with a run, and print JSON."""
    verb.add_argument(
        "--list", action="store_true", help=f"list the {plural} that are kept with the run, also an ended one"
    )
    verb.add_argument("--json", action="store_true", help="as JSON (see `ddptop help json`)")


def print_kept(options: argparse.Namespace, found: Sequence[_Kept], lines: Lines[_Kept]) -> int:
    """Print the list of what is kept, and return the exit code."""
    given = (name for name in ("ranks", "steps", "out") if getattr(options, name, None) is not None)
    if (other := next(given, None)) is not None:
        return complain(f"{options.verb}: --list and --{other}: give one of them", 2)
    if options.json:
        print_json([lines.as_json(each) for each in found])
    elif found:
        print("\n".join(lines.listing(found)))
    else:
        print(KINDS[options.verb].none, file=sys.stderr)
    return 0


def print_made(options: argparse.Namespace, found: _Kept, lines: Lines[_Kept]) -> int:
    """Print a diagnosis that was made, and return the exit code."""
    if options.json:
        print_json(lines.as_json(found))
    else:
        print("\n".join(lines.text(found)))
    return 0


def is_elsewhere(options: argparse.Namespace, run: str, folder: str) -> int:
    """Say that the observer which made a diagnosis is on another host, and return the exit code."""
    said = f"it is in {folder} on the host of rank 0; `ddptop {options.verb} {run} --list` there"
    return complain(f"{options.verb} {run}: {said}", 1)


def diagnose(options: argparse.Namespace, action: RunControl, waiting: Waiting) -> str:
    """Have the diagnosis of the verb made, of the ranks that `--ranks` names; returns its folder.

    Raises:
        Refused, Cancelled: as `Control.diagnose`.
    """
    named = options.ranks
    ranks = first_ranks(action.world) if named is None else None if isinstance(named, str) else named
    steps = options.steps or KINDS[options.verb].steps
    return action.diagnose(options.verb, waiting, steps=steps, ranks=ranks, culprit=named in (None, "culprit"))


def _ranks(text: str) -> str | tuple[int, ...]:
    if text in ("culprit", "all"):
        return text
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or len(part) > 11:
            raise ValueError("ranks as 0,2 or 0-3, or `culprit`, or `all`")
        if not int(first) <= int(last or first) <= int(first) + 1023:
            raise ValueError("a range as 0-3, of up to 1,024 ranks")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def _steps(most: int, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"a number of steps, 1 to {most:,}")
    return int(text)
