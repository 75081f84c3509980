"""What the observer of a run costs: the CPU of its process, all threads, by /proc.

    python tests/bench/observer/cpu.py [8x10 1024x10 …] [--seconds 10] [--windows 5] [--quick]

A case is ranks x records a second of each; the ranks are those of `load.py`.  The share of a core is taken in several
windows, once the observer has come to rest; printed are their median, the least and the most.  The control is the same
number of ranks that beat, and make no step: what is left without a record.  Nobody looks on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load

CASES: Final = {"8x10": "1 %", "1024x10": "12 %"}
"""Cases and their targets."""
SETTLE_S: Final = 10.0


def shares(world: int, rate: float, given: argparse.Namespace) -> tuple[list[float], float, float]:
    """Return the percentages of a core in each window, sorted, the memory in MiB, and the records a second."""
    with load.started(world=world, rate=rate, step_ms=1000 / rate if rate else 100.0, keep=True) as run:
        process = psutil.Process(run.observer.pid)
        time.sleep(given.settle)
        database, found = run.directory.database, []
        before, since = load.recorded(database), time.monotonic()
        for _ in range(given.windows):
            spent, began = sum(process.cpu_times()[:2]), time.monotonic()
            time.sleep(given.seconds)
            found.append(100 * (sum(process.cpu_times()[:2]) - spent) / (time.monotonic() - began))
        come = (load.recorded(database) - before) / (time.monotonic() - since)
        return sorted(found), process.memory_info().rss / 2**20, come


def main() -> None:
    """Measure the cases asked for."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("cases", nargs="*", metavar="RANKSxRATE", help=f"without any: {', '.join(CASES)}")
    options.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    options.add_argument("--windows", type=int, default=5)
    options.add_argument("--settle", type=float, default=SETTLE_S)
    options.add_argument("--quick", action="store_true", help="four ranks, a few seconds: does it work?")
    given = options.parse_args()
    load.allow_files()
    cases = given.cases or list(CASES)
    if given.quick:
        cases, given.seconds, given.windows, given.settle = ["4x10"], 1.0, 3, 2.0
    print("| observer | CPU of one core | control: no steps | memory | records/s | target |\n|---|---|---|---|---|---|")
    for case in cases:
        world, rate = int(case.partition("x")[0]), float(case.partition("x")[2])
        idle, _, _ = shares(world, 0, given)
        busy, memory, come = shares(world, rate, given)
        figures = [f"{statistics.median(each):.2f} % ({each[0]:.2f} to {each[-1]:.2f})" for each in (busy, idle)]
        print(
            f"| {world:,} ranks x {rate:g}/s | {figures[0]} | {figures[1]} | {memory:.0f} MiB "
            f"| {come:,.0f} | {CASES.get(case, '')} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
