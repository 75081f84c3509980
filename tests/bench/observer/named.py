"""How soon one slow rank of a large group is named, and whether a latecomer's first `status` names it.

    python tests/bench/observer/named.py [--world 1024] [--slow 0.22] [--after 40] [--times 3] [--quick]

The ranks are those of `load.py`: alike for the first `--after` seconds, and from then on rank 17 loads its data for
longer, by so large a share of the step.  The time is that from this moment to the observer's word, heard at its socket.
In the control the ranks stay alike for as long: nobody may be accused in it.  Then `status --json` is typed for the
first time, by somebody who was not there before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load
from observer.heard import Heard, Word
from onlooker.status import answer

PATIENCE_S: Final = 120.0


def blames(word: Word) -> bool:
    """Say whether the verdict that onlookers show is that of the slow rank."""
    return word.first is not None and word.first.rank == load.SLOW


def once(given: argparse.Namespace, number: int) -> tuple[float | None, bool]:
    """Run one group, print what happened; return the seconds to its name, and whether the latecomer read it."""
    with load.started(world=given.world, slow=given.slow, slow_after=given.after, keep=True) as run:
        heard = Heard(run.directory)
        try:
            begins = run.began_ns / 1e9 + given.after
            named = heard.wait(blames, begins - time.time() + PATIENCE_S)
            early = sum(word.first is not None and word.at < begins for word in heard.words)
        finally:
            heard.close()
        took, text = answer("status", run.name, "--json")
        verdict = json.loads(text)["verdict"]
    seconds = None if named is None else named.at - begins
    told = verdict is not None and verdict["rank"] == load.SLOW
    said = "not named" if seconds is None or named is None or named.first is None else named.first.text
    after = "never" if seconds is None else f"{seconds:.1f} s"
    print(
        f"{number}: {after}: {said}; {early} of {len(heard.words)} words accused "
        f"before the delay; first status after {took:.2f} s: {None if verdict is None else verdict['text']}",
        flush=True,
    )
    return seconds, told


def healthy(given: argparse.Namespace) -> int:
    """Run a group in which all are alike, for as long, and return the words that accused somebody."""
    with load.started(world=given.world, slow=0, keep=True) as run:
        heard = Heard(run.directory)
        try:
            time.sleep(given.after + given.control)
        finally:
            heard.close()
        accused = sum(word.first is not None for word in heard.words)
    print(f"control, all alike for {given.after + given.control:.0f} s: {accused} of {len(heard.words)} words accuse")
    return accused


def main() -> None:
    """Measure, and print a row for the table of the manual."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--world", type=int, default=1024)
    options.add_argument("--slow", type=float, default=0.22, help="the delay, as a share of the step")
    options.add_argument("--after", type=float, default=40.0, help="seconds without the delay")
    options.add_argument("--control", type=float, default=60.0, help="seconds that the control goes on after those")
    options.add_argument("--times", type=int, default=3)
    options.add_argument("--quick", action="store_true", help="twenty ranks, once: does it work?")
    given = options.parse_args()
    load.allow_files()
    if given.quick:
        given.world, given.after, given.control, given.times = 20, 15.0, 5.0, 1
    found = [once(given, number + 1) for number in range(given.times)]
    accused = healthy(given)
    seconds = sorted(took for took, _ in found if took is not None)
    spread = f"{statistics.median(seconds):.1f} s ({seconds[0]:.1f} to {seconds[-1]:.1f})" if seconds else "never"
    late = sum(told for _, told in found)
    case = f"{given.world:,} ranks, one slow by {given.slow:.0%}"
    print(f"| {case}: named after | {spread}, {len(seconds)} of {len(found)} | 8 s |")
    print(f"| named in the first status of a latecomer | {late} of {len(found)} | at once |")
    print(f"| words that accuse in the control | {accused} | 0 |")


if __name__ == "__main__":
    main()
