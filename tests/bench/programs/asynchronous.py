"""What one slow rank costs, and what helps: `python tests/bench/programs/asynchronous.py [--quick]`.

Images a second of the whole group, median of several rounds in turn. First `paramserver`: the
same job on as many processes by DDP, by a server that waits for nobody, and with bounds on how far a
worker may be ahead; all well, and with a worker that sleeps in each step. Then `rebalance`: equal
shares against shares that follow the speed, with a rank that takes several times as long.
"""

from __future__ import annotations

import argparse
import re
from statistics import median

from allreduce import run

RATE = re.compile(r"([\d,]+) images/s")
WAYS = {
    "DDP": ("--sync",),
    "server, in step": ("--staleness", "0"),
    "server, 4 ahead": ("--staleness", "4"),
    "server, no bound": (),
}
SLOW = {"all well": (), "a rank 50 ms slower": ("--slow", "1:50"), "200 ms slower": ("--slow", "1:200")}
FACTORS = {"all well": (), "a rank 3 times as slow": ("--slow", "1:3"), "10 times": ("--slow", "1:10")}
SHARES = {"equal shares": ("--fixed",), "by speed": ()}


def rate(program: str, world: int, *arguments: str) -> float:
    """Return the last images a second that a program tells."""
    return float(RATE.findall(run(program, world, *arguments))[-1].replace(",", ""))


def compare(
    program: str,
    world: int,
    rounds: int,
    steps: int,
    ways: dict[str, tuple[str, ...]],
    cases: dict[str, tuple[str, ...]],
) -> None:
    """Print a line for each way and a column for each case."""
    found: dict[tuple[str, str], list[float]] = {(way, case): [] for way in ways for case in cases}
    for _ in range(rounds):
        for way, case in found:
            arguments = (*ways[way], *cases[case], "--steps", str(steps), "--samples", "60000")
            found[way, case].append(rate(program, world, *arguments))
    print(f"{program}, {world} ranks, {steps} steps, images/s\n{'':<20}" + "".join(f"{case:>25}" for case in cases))
    for way in ways:
        print(f"{way:<20}" + "".join(f"{median(found[way, case]):>25,.0f}" for case in cases), flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of few steps: to see that it works")
    quick = parser.parse_args().quick
    rounds, steps = (1, 40) if quick else (3, 100)
    compare("paramserver", 4, rounds, steps, WAYS, SLOW)
    compare("rebalance", 4, rounds, 2 * steps, SHARES, FACTORS)


if __name__ == "__main__":
    main()
