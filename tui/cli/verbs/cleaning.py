"""`clean`: list ended runs, ask, and remove them."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from ddptop.agent.text import plural
from ddptop.tui.cli.parsing import complain, whole
from ddptop.tui.cli.verbs.options import Verbs, add_verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.agent.client.runs import Record, Run

_DAY_S = 86_400


class Candidate(NamedTuple):
    """An ended run that may go."""

    run: Run
    record: Record
    size: int
    """Bytes on the disk."""

    def age_s(self, now: float) -> float:
        """Return the seconds since its end."""
        ended_ns = self.record.created_at_ns if self.record.ended_at_ns is None else self.record.ended_at_ns
        return max(0.0, now - ended_ns / 1e9)


def add(verbs: Verbs) -> None:
    clean = add_verb(
        verbs, "clean", "remove ended runs with their logs and records, after listing them",
        "Lists the ended runs that would go, asks, and removes them with their logs and records. A live run stays.",
        """
        ddptop clean                 # all that have ended
        ddptop clean --keep 5 --yes  # all but the last five, without a question
        """,
        {0: "removed, or nothing to remove", 1: "a run could not be removed", 2: "wrong options, or no such run"},
    )  # fmt: skip
    clean.add_argument("runs", metavar="RUN", nargs="*", help="only these; without a name, all ended runs")
    clean.add_argument("--keep", type=whole(0), metavar="N", help="keep the N that ended most recently")
    clean.add_argument("--older", type=_days, metavar="DAYS", help="only those that ended at least so many days ago")
    clean.add_argument("--yes", action="store_true", help="do not ask")
    clean.set_defaults(carry=_clean)


def _days(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 36_500:
        raise argparse.ArgumentTypeError(f"{text!r}: say a number of days, from 0 to 36,500")
    return value


def _clean(options: argparse.Namespace) -> int:
    from ddptop.tui.drawing.units import size

    if options.runs and (options.keep is not None or options.older is not None):
        return complain("clean: name the runs, or choose them with --keep and --older", 2)
    now = time.time()
    chosen = _named(options.runs) if options.runs else _all(options.keep or 0, options.older or 0.0, now)
    if not chosen:
        print("no ended run to remove; `ddptop ps` lists all runs")
        return 0
    print("\n".join(_table(chosen, now)))
    if not options.yes:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            print("ddptop: nothing was removed; say --yes to remove these", file=sys.stderr)
            return 0
        if not _agrees(f"Remove {'this run' if len(chosen) == 1 else f'these {len(chosen)} runs'}? [y/N] "):
            print("nothing was removed")
            return 0
    removed, code = _remove(chosen)
    print(f"removed {plural(len(removed), 'run')}: {size(sum(each.size for each in removed)).strip()} came free")
    return code


def _agrees(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _all(keep: int, older_days: float, now: float) -> list[Candidate]:
    """Return the ended runs but those that are retained, the newest end first."""
    from ddptop.agent.client import runs

    found = [each for run in runs.listed() if (each := _candidate(run)) is not None]
    found.sort(key=lambda each: each.age_s(now))
    return [each for each in found[keep:] if each.age_s(now) >= older_days * _DAY_S]


def _named(names: Sequence[str]) -> list[Candidate]:
    """Return the runs of these names.

    Raises:
        RunDirError: there is no such run, or it has not ended.
    """
    from ddptop.agent.client import runs

    found: dict[str, Candidate] = {}
    for name in names:
        run = runs.find(name)
        candidate = _candidate(run)
        if candidate is None:
            raise runs.RunDirError(
                f"run {run.name}: it has not ended, and nothing was removed; `ddptop kill {run.name}` ends it"
            )
        found[run.name] = candidate
    return list(found.values())


def _candidate(run: Run) -> Candidate | None:
    """Return a run that has ended, None for any other."""
    record = run.ended()
    return None if record is None else Candidate(run, record, run.size())


def _table(chosen: Sequence[Candidate], now: float) -> list[str]:
    from ddptop.tui.drawing.units import aligned, duration, size

    rows = [("RUN", "STATE", "ENDED", "SIZE")]
    rows += [
        (each.run.name, each.record.state, f"{duration(each.age_s(now)).strip()} ago", size(each.size).strip())
        for each in chosen
    ]
    return [*aligned(rows), f"{plural(len(chosen), 'run')}, {size(sum(each.size for each in chosen)).strip()} together"]


def _remove(chosen: Sequence[Candidate]) -> tuple[list[Candidate], int]:
    """Remove the runs, the oldest first; return those that are gone, and the exit code."""
    from ddptop.agent.client.runs import RunDirError

    removed, code = [], 0
    for each in reversed(chosen):
        try:
            each.run.remove(each.record.run_id)
        except RunDirError as problem:
            code = complain(problem, 1)
            continue
        removed.append(each)
    return removed, code
