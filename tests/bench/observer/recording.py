"""How many step records a second the observer takes in while its file is full and the oldest steps are removed.

    python tests/bench/observer/recording.py [--world 1024] [--rate 10] [--mib 64] [--seconds 60] [--quick]

The ranks are those of `load.py`: real sockets, real records with four collectives.  The file is full once `--mib`
MiB have come; from then on each record that comes in takes the place of older ones.  Printed every five seconds:
what came, the processor time of the observer, and the file.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load

from ddptop.agent import wire
from ddptop.agent.record import recording


def kept(database: Path) -> int:
    """Return the rows of steps in the file."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM steps").fetchone()[0])


def main() -> None:
    """Record fake ranks and print what it costs."""
    own = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    own.add_argument("--world", type=int, default=1024)
    own.add_argument("--rate", type=float, default=10.0, help="messages with steps a second, each rank")
    own.add_argument("--mib", type=int, default=64, help="room of the recording")
    own.add_argument("--seconds", type=float, default=60.0)
    own.add_argument("--quick", action="store_true", help="eight ranks, a few seconds: does it work?")
    given = own.parse_args()
    load.allow_files()
    if given.quick:
        given.world, given.mib, given.seconds = 8, 1, 10.0
    with load.started(world=given.world, rate=given.rate, step_ms=1000 / given.rate, run_mib=given.mib) as run:
        database = run.directory.database
        observer = psutil.Process(run.observer.pid)
        before, spent, began = 0, sum(observer.cpu_times()[:2]), time.monotonic()
        while time.monotonic() - began < given.seconds:
            at = time.monotonic()
            time.sleep(5)
            mine = sum(observer.cpu_times()[:2])
            come = load.recorded(database)
            took = time.monotonic() - at
            rows = 0
            with contextlib.suppress(sqlite3.Error):  # it is made with the first record
                rows = kept(database)
            print(
                f"{time.monotonic() - began:5.0f} s  {(come - before) / took:8,.0f} records/s  "
                f"{100 * (mine - spent) / took:4.0f} % of a core  file {database.stat().st_size / 2**20:6.1f} MiB  "
                f"{rows:8,} rows",
                flush=True,
            )
            before, spent = come, mine
        run.finish()
        steps = [
            step.step
            for message in recording.read_steps(database)
            if isinstance(message, wire.Steps) and message.rank == 0
            for step in message.steps
        ]
    print(f"rank 0: {len(steps)} of {steps[-1] if steps else 0} steps left, from step {steps[0] if steps else 0} on")


if __name__ == "__main__":
    main()
