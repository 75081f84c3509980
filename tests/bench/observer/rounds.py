"""What a round of the judge of a large group takes: the summaries of all ranks for one second, and the verdicts.

    python tests/bench/observer/rounds.py [--worlds 1024,10000] [--rounds 70] [--memory]

All in one process, without sockets. Rank 17 becomes slow by 22 ms after 40 rounds, and is to be named. `--memory`
counts the bytes that the judge keeps, which slows it down several times: times are for runs without it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import tracemalloc
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.judge.judge import Judge

RANKS_A_HOST: Final = 8
SLOW: Final = 17
SECOND_NS: Final = 10**9


def summaries(world: int, number: int, begins_ns: int, chance: random.Random) -> list[wire.Summary]:
    """Return what all ranks say in one second."""
    late = 22_000_000 if number > 40 else 0
    return [
        wire.Summary(
            rank, number, begins_ns + number * SECOND_NS, number * 10, number * 10, 10, 100_000_000,
            int(1e7 * chance.uniform(0.95, 1.05)) + (late if rank == SLOW else 0), 20_000_000, 35_000_000, 5_000_000,
            6_000_000, 2_000_000, loss=0.5, samples=32,
        )
        for rank in range(world)
    ]  # fmt: skip


def measure(world: int, rounds: int, *, memory: bool) -> None:
    """Judge so many rounds, and print what one takes."""
    if memory:
        tracemalloc.start()
    judge, chance, begins_ns, took = Judge(world), random.Random(1), time.time_ns(), []
    ranks = [tuple(range(first, min(world, first + RANKS_A_HOST))) for first in range(0, world, RANKS_A_HOST)]
    judge.hosts([wire.HostFrame(f"node{number}", "linked", each) for number, each in enumerate(ranks)])
    found: tuple[wire.Verdict, ...] = ()
    for number in range(1, rounds + 1):
        told = summaries(world, number, begins_ns, chance)
        began = time.process_time()
        for message in told:
            judge.summary(message)
        found = judge.verdicts(begins_ns + number * SECOND_NS)
        took.append(1e3 * (time.process_time() - began))
        del told
    kept = ""
    if memory:
        kept = f" | {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MiB"
        tracemalloc.stop()
    named = found[0].text if found else "nobody"
    print(f"| {world:,} ranks | {statistics.median(took):.1f} ms (max {max(took):.1f}){kept} | {named} |", flush=True)


def main() -> None:
    """Measure groups of several sizes."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--worlds", default="1024,10000")
    options.add_argument("--rounds", type=int, default=70)
    options.add_argument("--memory", action="store_true")
    given = options.parse_args()
    for world in given.worlds.split(","):
        measure(int(world), given.rounds, memory=given.memory)


if __name__ == "__main__":
    main()
