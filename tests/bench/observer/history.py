"""How long the plot of a whole run takes from the question to the columns, alive and ended, by the length of the run.

    python tests/bench/observer/history.py [--world 64] [--steps 36000] [--times 10] [--rounds 15]

The history is filled as an observer fills it, but many steps at a time. Of the run that goes on, the question and its
answer are encoded and read as over a socket; of the ended one, the file is opened and read, as `ddptop attach` does.
Each length is measured in turns with the others and twice, so that the last line says what the noise is.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from ddptop.agent import wire
from ddptop.agent.observer.history.answers import answer
from ddptop.agent.observer.history.kept import Kept
from ddptop.agent.observer.history.numbers import RECORDED
from ddptop.agent.observer.history.saved import Saving, opened
from ddptop.agent.observer.history.series import Course
from ddptop.agent.observer.record.ring import Ring
from ddptop.tui.model.history.asked import Asked

START_S = 1_800_000_000
STEP_S = 0.1
PIECE = 256
"""Steps of each rank that are taken in together."""


def filled(world: int, steps: int) -> Kept:
    """Return the history of a run of so many steps."""
    kept = Kept(world)
    rng = np.random.default_rng(world)
    course = Course(kept.by_step.capacity)
    for first in range(1, steps + 1, PIECE):
        numbers = np.arange(first, min(first + PIECE, steps + 1))
        rows = np.empty((len(numbers) * world, 3 + len(RECORDED)))
        rows[:, 0] = np.tile(np.arange(world), len(numbers))
        rows[:, 1] = np.repeat(numbers, world)
        rows[:, 2] = START_S + rows[:, 1] * STEP_S
        rows[:, 3:] = rng.normal(100, 5, (len(rows), len(RECORDED)))
        course.extend(rows)
    kept.by_step.restore("", course, dict.fromkeys(range(world), 1), dict.fromkeys(range(world), steps))
    return kept


def drawn(asked: Asked, world: int, steps: int) -> None:
    """Read the whole run, as a plot does, and check that it is all there."""
    _, series = asked.by_step.read_many(range(world), "loss", 1, steps)
    assert round(series.count.sum()) == world * steps


def alive(kept: Kept, steps: int) -> int:
    """Ask, answer and draw as over a socket; return the bytes of the answer."""
    asked = Asked(kept.world)
    size = 0
    for query in asked.wanted():
        command = wire.read_command(wire.encode(query))
        assert isinstance(command, wire.History)
        for each in answer(kept, command):
            payload = wire.encode(each)
            size += len(payload)
            asked.take(wire.read_history(payload))
    drawn(asked, kept.world, steps)
    return size


def ended(database: Path, world: int, steps: int) -> None:
    """Open the file of the run, and draw."""
    asked = Asked(world, opened(database, world, ended=True))
    asked.end()
    asked.ask_source()
    drawn(asked, world, steps)


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
            kept = filled(options.world, steps)
            database = Path(folder) / f"{steps}.db"
            ring, saving = Ring(database, options.world), Saving(kept)
            snapshot = saving.snapshot(whole=True)
            assert snapshot is not None
            began = time.perf_counter()
            rows = saving.rows(snapshot, 1 << 30)
            packed_s = time.perf_counter() - began
            ring.write(rows, 1 << 30)
            ring.close()
            with closing(sqlite3.connect(database)) as connection:
                (size,) = connection.execute("SELECT sum(length(payload)) FROM series").fetchone()
            print(
                f"{options.world} ranks x {steps:,} steps: {kept.by_step.nbytes / 2**20:.1f} MiB in memory, "
                f"{size / 2**20:.1f} MiB in the file, packed in {packed_s:.2f} s, "
                f"an answer of {alive(kept, steps) / 1024:.0f} KiB"
            )
            for turn in ("", " again"):
                cases[f"alive {steps:,}{turn}"] = partial(alive, kept, steps)
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
