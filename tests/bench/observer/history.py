"""How long the plot of a whole run takes from the question to the columns, alive and ended, by the length of the run.

    python tests/bench/observer/history.py [--world 64] [--steps 36000] [--times 10] [--rounds 15]

The history is recorded as an observer records it. Of the run that goes on, the question and its
answer are encoded and read as over a socket; of the ended one, the file is opened and read, as `ddptop attach` does.
Each length is measured in turns with the others and twice, so that the last line says what the noise is.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ddptop.agent import wire
from ddptop.agent.client.history.history import History
from ddptop.agent.record.history.answers import answer, from_file
from ddptop.agent.record.history.stored import Writer

START_S = 1_800_000_000
STEP_S = 0.1
PIECE = 10
"""Steps of each rank that are written together."""
ROOM = 64 << 20
"""Bytes of a history."""


def recorded(database: Path, world: int, steps: int) -> Writer:
    """Record a run of so many steps, `PIECE` of each rank in a batch; print what a batch takes."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    writer, rng = Writer(connection, world), random.Random(world)
    began, batches = time.process_time(), 0
    for first in range(1, steps + 1, PIECE):
        for number in range(first, min(first + PIECE, steps + 1)):
            for rank in range(world):
                end_ns = START_S * 10**9 + round(number * STEP_S * 1e9)
                wall = rng.randrange(10**8)
                phases = wall // 5, wall // 5, wall // 5, wall // 5, wall // 5
                if world <= wire.EACH_RECORD:
                    step = wire.Step(number, number, end_ns, wall, *phases, 0, rng.random(), 32)
                    writer.rows.steps(rank, [step], 0)
                else:
                    means = wire.Summary(rank, number, end_ns, number, number, 1, wall, *phases, 0, rng.random(), 32)
                    writer.rows.summary(means)
        writer.settle()
        with connection:
            writer.write()
        writer.written()
        while writer.fold(ROOM):
            pass
        batches += 1
    took = (time.process_time() - began) / batches
    print(
        f"{world:,} ranks x {steps:,} steps: {1e3 * took:.1f} ms of CPU a batch of {PIECE} steps, "
        f"{writer.bytes / 2**20:.1f} MiB in the file"
    )
    return writer


def drawn(history: History, world: int, steps: int) -> None:
    """Read the whole run, as a plot does, and check that it is all there."""
    _, series = history.by_step.read_many(range(world), "loss", 1, steps)
    assert round(series.count.sum()) == world * steps


def alive(writer: Writer, steps: int) -> None:
    """Ask, answer and draw as over a socket."""
    history = History(writer.world)
    history.by_step.read_many(range(writer.world), "loss", 1, steps)
    for query in history.asked.wanted():
        command = wire.read_command(wire.encode(query))
        assert isinstance(command, wire.History)
        for each in answer(writer, command):
            history.asked.take(wire.read_history(wire.encode(each)))
    drawn(history, writer.world, steps)


def ended(database: Path, world: int, steps: int) -> None:
    """Open the file of the run, and draw."""
    history = History(world)
    history.asked.end(partial(from_file, database, world))
    drawn(history, world, steps)


def main() -> None:
    """Measure, and print a line for each case."""
    given = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    given.add_argument("--world", type=int, default=64)
    given.add_argument("--steps", type=int, default=36_000)
    given.add_argument("--times", type=int, default=10, help="the longer run has so many times the steps")
    given.add_argument("--rounds", type=int, default=15)
    options = given.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases: dict[str, Callable[[], object]] = {}
        lengths = options.steps, options.steps * options.times
        for steps in lengths:
            database = Path(folder) / f"{steps}.db"
            writer = recorded(database, options.world, steps)
            for turn in ("", " again"):
                cases[f"alive {steps:,}{turn}"] = partial(alive, writer, steps)
                cases[f"ended {steps:,}{turn}"] = partial(ended, database, options.world, steps)
        took: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(options.rounds):
            for name, case in cases.items():
                began = time.perf_counter()
                case()
                took[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) for name, each in took.items()}
    for name, median in medians.items():
        print(f"{name:<24} {1e3 * median:7.1f} ms")
    for kind in ("alive", "ended"):
        short, long = (medians[f"{kind} {steps:,}"] for steps in lengths)
        print(
            f"{kind}: {options.times} times the steps take {long / short:.2f} times as long; "
            f"the same again {medians[f'{kind} {lengths[0]:,} again'] / short:.2f}"
        )


if __name__ == "__main__":
    main()
