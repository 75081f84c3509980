"""How many step records a second the recorder takes in while its file is full and older steps are thinned.

    python tests/bench/recording.py [--world 1024] [--rate 10] [--mib 64] [--seconds 60]

The ranks are those of `load.py`: real sockets, real records with four collectives.  The file is full once `--mib`
MiB have come; from then on each record that comes in takes the place of older ones.  Printed every five seconds:
what came, the processor time of the recorder's process, and the file.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import zmq

sys.path.insert(0, str(Path(__file__).parent))
import load

from ddptop.agent import wire
from ddptop.agent.observer.record import recording
from ddptop.agent.observer.record.recorder import Recorder


def newest(database: Path) -> int:
    """Return the records that the ranks have sent and the file has known, by their numbers."""
    return sum(seq for _, seq in recording.last_recorded(database).values())


def kept(database: Path) -> int:
    """Return the rows of steps in the file."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = map(recording.table, recording.levels(connection))
        return sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)


def main() -> None:
    """Record fake ranks and print what it costs."""
    own = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    own.add_argument("--world", type=int, default=1024)
    own.add_argument("--rate", type=float, default=10.0, help="messages with steps a second, each rank")
    own.add_argument("--mib", type=int, default=64, help="room of the recording")
    own.add_argument("--seconds", type=float, default=60.0)
    given = own.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = ["--world", str(given.world), "--rate", str(given.rate), "--step-ms", str(1000 / given.rate)]
    directory, ranks = load.begin(load.parser().parse_args([*wanted, "--seconds", str(given.seconds + 30)]))
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * given.world + 64)
    database = directory.path / "bench.db"
    recorder = Recorder(
        context, database, given.world, lambda text, level: print(level, text), budget=given.mib << 20
    )  # fmt: skip
    recorder.start()
    for member in directory.members().values():
        recorder.follow(member)
    try:
        before, spent, began = 0, time.process_time(), time.monotonic()
        while time.monotonic() - began < given.seconds:
            at = time.monotonic()
            time.sleep(5)
            mine = time.process_time() - spent
            come = newest(database)
            took = time.monotonic() - at
            print(
                f"{time.monotonic() - began:5.0f} s  {(come - before) / took:8,.0f} records/s  "
                f"{100 * mine / took:4.0f} % of a core  file {database.stat().st_size / 2**20:6.1f} MiB  "
                f"{kept(database):8,} rows  refused {recorder.refused}  left out {recorder.skipped}",
                flush=True,
            )
            before, spent = come, time.process_time()
    finally:
        recorder.close(30)
        load.end(ranks)
        context.destroy(linger=0)
    steps = [
        step.step
        for message in recording.read_steps(database)
        if isinstance(message, wire.Steps) and message.rank == 0
        for step in message.steps
    ]
    print(f"rank 0: {len(steps)} of {steps[-1] if steps else 0} steps left, from step {steps[0] if steps else 0} on")


if __name__ == "__main__":
    main()
