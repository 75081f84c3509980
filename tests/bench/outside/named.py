"""Is the slow rank of a job that nobody prepared named, and nobody of a healthy one?

    python tests/bench/outside/named.py [--slow 10] [--healthy 20] [--world 2] [--ms 25] [--places forward,loader]
                                        [--model linear] [--seconds 75]

`faulty/programs/delays.py` trains under plain torchrun, is met by the pid of that, and is watched by
`ddptop watch --json`.  Seconds are from the first looks at its ranks to the first verdict on the slow one; a line is
right where it is the one that the program has noted itself, before anybody looked.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faulty.runs import START_S, Watched, command, watched

PLACES = ["forward", "loader", "optimizer", "logging"]
"""Lines of `delays.py` that take long; they take turns."""
WITHIN_S = 60.0
SLOW_RANK = 1


class Found(NamedTuple):
    """What was said of one run."""

    ranks: frozenset[int]
    """Those that were said to be slow."""
    seconds: float | None
    """Until the first of them was."""
    line: str
    said: str
    cost_percent: float
    """CPU of the looks at a rank at last."""
    others: frozenset[str]
    """Kinds of all other verdicts."""


def once(place: str, given: argparse.Namespace) -> tuple[str, Found]:
    """Make one run; return the line that is right, and what was said."""
    with tempfile.TemporaryDirectory(prefix="do-", dir="/tmp") as folder:
        note, base = Path(folder) / "note", Path(folder) / "base"
        base.mkdir(mode=0o700)
        arguments = (place, "--model", given.model, "--ms", str(given.ms), "--note", str(note))
        with watched(base, command("plain", given.world, "delays", arguments), plain=True) as run:
            found = _watch(run, given.seconds)
        return note.read_text() if note.exists() else "", found


def _watch(run: Watched, seconds: float) -> Found:
    began: float | None = None
    deadline = time.time() + START_S
    ranks: set[int] = set()
    others: set[str] = set()
    first: float | None = None
    line = said = ""
    cost = 0.0
    while time.time() < deadline and not run.over:
        frame = run.next_line(1.0)
        looks = frame and frame["by_looks"]
        if not frame or not looks or not looks["looks"]:
            continue
        if began is None:
            began = frame["at"]
            deadline = began + seconds
        cost = looks["cost_percent"]
        for verdict in frame["verdicts"]:
            if verdict["kind"] != "slow_rank":
                others.add(verdict["kind"])
                continue
            ranks.add(verdict["rank"])
            first = frame["at"] - began if first is None else first
            line, said = verdict["line"] or "", verdict["text"]
    return Found(frozenset(ranks), first, line, said, cost, frozenset(others))


def main() -> None:
    """Print a row for each run, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slow", type=int, default=10, help="runs with a slow rank")
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--ms", type=float, default=25.0, help="that rank 1 takes longer in each step")
    parser.add_argument(
        "--places", type=lambda text: text.split(","), default=["forward", "loader", "optimizer", "logging"]
    )
    parser.add_argument("--model", default="linear")
    parser.add_argument("--seconds", type=float, default=75.0, help="for which each is watched")
    given = parser.parse_args()
    named, right, times = 0, 0, []
    print("place      ranks  seconds  line   cost  said", flush=True)
    for place in itertools.islice(itertools.cycle(given.places), given.slow):
        line, found = once(place, given)
        in_time = found.seconds is not None and found.seconds <= WITHIN_S and found.ranks == {SLOW_RANK}
        named, right = named + in_time, right + (in_time and found.line == line)
        times += [found.seconds] if found.seconds is not None else []
        print(_row(place, found, "yes" if found.line == line else "NO"), flush=True)
    accused = 0
    for _ in range(given.healthy):
        _, found = once("nowhere", given)
        accused += bool(found.ranks)
        print(_row("healthy", found, "–"), flush=True)
    middle = f"after {statistics.median(times):.0f} s, at most {max(times):.0f} s" if times else "never"
    print(f"slow: {named} of {given.slow} named within {WITHIN_S:.0f} s, {middle}; line right {right}")
    print(f"healthy: {accused} of {given.healthy} accused")


def _row(place: str, found: Found, line: str) -> str:
    seconds = "–" if found.seconds is None else f"{found.seconds:.1f}"
    ranks = ",".join(map(str, sorted(found.ranks))) or "–"
    others = f"  ALSO {', '.join(sorted(found.others))}" if found.others else ""
    return f"{place:<10} {ranks:>5}  {seconds:>7}  {line:<5} {found.cost_percent:4.1f}%  {found.said}{others}"


if __name__ == "__main__":
    main()
