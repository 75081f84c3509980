"""`profile`, `probe`, `memory`: a diagnosis of some ranks, or of all, made on request and kept with the run."""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptop.agent.client.diagnosis.kinds import DIAGNOSES, first_ranks
from ddptop.tui.cli.parsing import complain, whole
from ddptop.tui.cli.verbs import control
from ddptop.tui.cli.verbs.options import AWAITED, Verbs, add_run, add_verb, chosen, print_json, typed

if TYPE_CHECKING:
    from ddptop.agent.client.acting.control import RunControl
    from ddptop.agent.client.acting.waiting import Waiting

_OPTIONS: Final = ("ranks", "steps", "out", "limit")
"""Of how a diagnosis is made; not each kind has each of them."""


def add(verbs: Verbs) -> None:
    for name, each in DIAGNOSES.items():
        verb = add_verb(verbs, name, each.does, each.about, each.examples, AWAITED)
        add_run(verb)
        if each.steps is not None:
            ranks = f"ranks as 0,2 or 0-3; `culprit`: {each.culprit}; `all`"
            verb.add_argument("--ranks", type=typed(_ranks), metavar="RANKS", help=ranks)
            steps = f"number of steps, 1 to {each.most_steps:,} ({each.steps})"
            verb.add_argument("--steps", type=whole(1, each.most_steps), metavar="N", help=steps)
        verb.add_argument(
            "--list", action="store_true", help=f"list the {each.several} kept with the run, also an ended one"
        )
        verb.add_argument("--json", action="store_true", help="as JSON (see `ddptop help json`)")
        if each.held_ms is not None:
            usual, most = (ms / 1e3 for ms in each.held_ms)
            seconds = f"seconds for which a rank is held at most, 0.1 to {most:g} ({usual:g})"
            verb.add_argument("--limit", type=typed(partial(_limit, each.held_ms[1])), metavar="S", help=seconds)
        if each.has_trace:
            to = "copy the trace to this file, .json or .json.gz"
            verb.add_argument("--out", type=typed(_target), metavar="FILE", help=to)
        verb.set_defaults(carry=_carry, printing=_print, **dict.fromkeys(_OPTIONS))


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


def _limit(most: int, text: str) -> int:
    """Return the milliseconds of a number of seconds."""
    try:
        if 100 <= (ms := round(float(text) * 1e3)) <= most:
            return ms
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"a number of seconds, 0.1 to {most / 1e3:g}")


def _target(text: str) -> Path:
    path = Path(text)
    if not path.name.endswith((".json", ".json.gz")):
        raise ValueError("a name that ends in .json or .json.gz")
    if not path.parent.is_dir():
        raise ValueError("a file in a folder that exists")
    return path


def _carry(options: argparse.Namespace) -> int:
    return _list(options) if options.list else control.carry_out(options)


def _list(options: argparse.Namespace) -> int:
    from ddptop.tui.model.diagnosis.kept import lines_of

    for other in _OPTIONS:
        if getattr(options, other) is not None:
            return complain(f"{options.verb}: --list and --{other}: give one of them", 2)
    lines = lines_of(options.verb)
    found = chosen(options.run, last=True).diagnoses(options.verb)
    if options.json:
        print_json([lines.as_json(each) for each in found])
    elif found:
        print("\n".join(lines.listing(found)))
    else:
        print(DIAGNOSES[options.verb].none, file=sys.stderr)
    return 0


def _print(options: argparse.Namespace, action: RunControl, waiting: Waiting, run: str) -> int:
    """Have the diagnosis made, and print it."""
    from ddptop.agent.client.diagnosis import kinds
    from ddptop.tui.model.diagnosis.kept import lines_of
    from ddptop.tui.model.diagnosis.report import plain

    named, lines, kind = options.ranks, lines_of(options.verb), DIAGNOSES[options.verb]
    folder = action.diagnose(
        options.verb,
        waiting,
        steps=options.steps or kind.steps or 1,
        ranks=first_ranks(action.world) if named is None else None if isinstance(named, str) else named,
        culprit=named in (None, "culprit"),
        **({} if options.limit is None else {"most_ms": options.limit}),
    )
    found = kinds.read(options.verb, Path(folder))
    if found is None:
        # The observer that made it is on another host.
        said = f"it is in {folder} on the host of rank 0; `ddptop {options.verb} {run} --list` there"
        return complain(f"{options.verb} {run}: {said}", 1)
    if options.out is not None:
        # Before anything is printed, whose reader may be gone.
        try:
            _copy(found.file, options.out)
        except OSError as problem:
            said = f"the trace is {found.file}; it was not copied to {options.out}: {problem.strerror}"
            return complain(f"profile {run}: {said}", 1)
    if options.json:
        print_json(lines.as_json(found))
    else:
        print("\n".join(map(plain, lines.lines(found, action.world))))
    return 0


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
