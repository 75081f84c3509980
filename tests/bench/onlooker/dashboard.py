"""What the dashboard costs at scale: `python tests/bench/onlooker/dashboard.py [CASE…] [--seconds 20] [--quick]`.

Fake ranks (`load.py`) speak the wire protocol to the real observer; the dashboard is the real one, attached in a
pseudo-terminal of 200 x 50.  CPU is that of its process and of the observer's, user and system, in five windows
after it has settled, as a share of one core: their median, and the least and the most.  Without a case, all of them;
`hour` takes the longest and needs no terminal: an hour of 1,024 ranks goes into a store as fast as it takes it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load
from onlooker.terminal import Terminal

SETTLE_S = 6.0
WINDOWS = 5


@dataclass(frozen=True)
class Case:
    """A group to look at."""

    world: int
    rate: float
    keys: bytes
    target: str
    step_ms: float = 100.0


CASES = {
    "4-panels": Case(4, 10, b"1", "4 %"),
    "64-panels": Case(64, 10, b"1", "7 %"),
    "1024-table": Case(1024, 10, b"2", "8 %"),
    "1024-table-sorted": Case(1024, 10, b"2ooooo", "8 %"),
    "1024-heatmap": Case(1024, 10, b"3", "8 %"),
    "4096-table": Case(4096, 2, b"2", "14 %", 500.0),
    "4-dialog": Case(4, 10, b"1k", "8 %"),
    "64-dialog": Case(64, 10, b"1k", "12 %"),
}


def cost(name: str, case: Case, seconds: float, world: int) -> None:
    """Print the CPU and memory of one case, and for large groups how soon a key is seen."""
    with load.started(world=world, rate=case.rate, step_ms=case.step_ms, keep=True) as run:
        terminal, observer = Terminal(run.name), psutil.Process(run.observer.pid)
        try:
            terminal.drain(SETTLE_S)
            terminal.press(case.keys)
            terminal.drain(SETTLE_S)
            shares = [terminal.cpu(seconds / WINDOWS, observer) for _ in range(WINDOWS)]
            figure, beside = (
                f"{statistics.median(each):.1f} % ({min(each):.1f} to {max(each):.1f})"
                for each in zip(*shares, strict=True)
            )
            print(f"| {name} | {figure}, {terminal.memory():.0f} MiB | {case.target} | {beside} |", flush=True)
            if world >= 1024 and case.keys.startswith(b"2"):
                print(f"{'':<18} {heard(terminal)}", flush=True)
            if name == "1024-table":
                print(f"{'':<18} {latency(terminal, 40)}", flush=True)
        finally:
            terminal.leave()


def heard(terminal: Terminal) -> str:
    """Return how many ranks the table says are running."""
    terminal.press(b"/running")
    found = ""

    def shown(text: str) -> bool:
        nonlocal found
        line = next((line for line in text.splitlines() if "/running" in line), "")
        found = line.partition("/running")[2].strip(" ▏─") or found
        return False

    terminal.wait(shown, 2.5)
    terminal.press(b"\x1b")
    terminal.drain(1.5)
    return f"heard: {found}"


def latency(terminal: Terminal, times: int) -> str:
    """Return how long a key takes until the change it asks for is painted: another rank is chosen, its log named."""
    took = []
    rng = random.Random(1)
    terminal.press(b"\x1b[H")
    terminal.drain(1.0)
    for rank in range(1, times + 1):
        terminal.drain(0.2 + rng.random() * 0.3)
        wanted = f"log of rank {rank}".encode()
        began = time.monotonic()
        terminal.press(b"\x1b[B")
        while wanted not in terminal.output and time.monotonic() - began < 2:
            terminal.read(0.05)
        took.append(1e3 * (time.monotonic() - began))
    took.sort()
    return (
        f"key to painted change: {statistics.median(took):.0f} ms median, {took[int(0.95 * len(took))]:.0f} ms p95, "
        f"{took[-1]:.0f} ms worst of {times} (target 50, 100)"
    )


def hour(minutes: int) -> None:
    """Print the memory of a store after an hour of 1,024 ranks, time sped up."""
    from ddptop.agent import wire
    from ddptop.agent.observer.model.framer import Framer
    from ddptop.agent.observer.model.store import Store
    from ddptop.agent.run.rundir import Run

    world = 1024
    began = time.time()
    run = Run("hour", "id", "load", (), world, "gloo", "cpu", int(began * 1e9), False)
    process = psutil.Process()
    start = process.memory_info().rss
    store = Store(run, brief=True)
    framer = Framer(store)
    store.watch(frozenset(range(40)))
    spent = -time.process_time()
    for second in range(60 * minutes):
        now = began + second
        for rank in range(world):
            at = int(now * 1e9)
            step = 10 * (second + 1)
            for message in (
                wire.Summary(rank, second + 1, at, step, step, 10, 10**8, 10**7, 2 * 10**7, 3 * 10**7, 10**6, 10**7,
                             2 * 10**7, 1.0 / (second + 1), 32, 0, 10**6, 10**7, {"accuracy": 0.5}),
                wire.Beat(rank, at, "running", "backward", step, at, step, memory_bytes=900 << 20),
            ):  # fmt: skip
                # Through the wire's own form: every message is an object of its own.
                store.apply(wire.read_telemetry(wire.encode(message)), now)
        store.advance(now)
        framer.frame()
        for rank in range(world):
            framer.rank(rank)
        if (second + 1) % 600 == 0:
            grown = (process.memory_info().rss - start) / 2**20
            print(f"{'hour':<18} after {(second + 1) // 60} min: {grown:.0f} MiB for {world} ranks", flush=True)
    spent += time.process_time()
    print(f"{'hour':<18} {spent / (60 * minutes) * 100:.1f} % of one core, encoding included, without a screen")


def main() -> None:
    """Run the cases asked for."""
    options = argparse.ArgumentParser(description="what the dashboard costs at scale")
    options.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}, hour; all without any")
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--minutes", type=int, default=60, help="of the hour")
    options.add_argument("--quick", action="store_true", help="eight ranks at most, a few seconds: does it work?")
    chosen = options.parse_args()
    load.allow_files()
    if chosen.quick:
        chosen.seconds, chosen.minutes = 2.0, 1
    print("| dashboard | CPU of one core | target | observer |\n|---|---|---|---|")
    for name in chosen.cases or [*CASES, "hour"]:
        if name == "hour":
            hour(chosen.minutes)
        else:
            case = CASES[name]
            cost(name, case, chosen.seconds, min(case.world, 8) if chosen.quick else case.world)


if __name__ == "__main__":
    main()
