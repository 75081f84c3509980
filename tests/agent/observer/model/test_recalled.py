"""The recording of an earlier observer, as the model of the next one takes it in."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import pytest

from ddptop.agent import wire
from ddptop.agent.observer.model.run_model import RECENT_RECORDS, RunModel
from ddptop.agent.observer.model.store import Store
from ddptop.agent.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir


def restarted_run(name: str, steps: list[int]) -> RunDir:
    """Make a run of two ranks that was started anew after so many steps, of which the first are removed."""
    directory = rundir.create(
        Run(name, name, "toy.py", (), 2, "gloo", "cpu", 10**9, True, state="running", max_restarts=3)
    )
    with closing(recording.open_file(directory.database)) as connection, connection:
        for generation, last in enumerate(steps):
            for rank in range(2):
                hello = wire.Hello(
                    wire.PROTOCOL, name, name, rank, rank, 2, 7, generation + 5, "h", "p", "0", "3", generation
                )
                connection.execute(*recording.row(hello, wire.encode(hello)))
            for number in range(1, last + 1):
                step = wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, 1.0, 32)
                # Rank 1 was ahead of the other when they were ended.
                for rank in range(2) if number < last else (1,):
                    message = wire.Steps(rank, (step,), generation)
                    connection.execute(*recording.row(message, wire.encode(message)))
            if not generation:
                # Of the first start no step is left but the last of each rank.
                connection.execute(recording.KEEP_LAST, (1 << 60,))
                connection.execute("DELETE FROM steps")
    return directory


def test_earlier_generations_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each restart is marked where the ranks had come, and for any number of steps only the newest are read."""
    recalled: list[wire.Telemetry] = []
    recall = Store.recall

    def noting(store: Store, message: wire.Telemetry, now: float) -> None:
        recalled.append(message)
        recall(store, message, now)

    monkeypatch.setattr(Store, "recall", noting)
    for steps in (300, 3000):
        recalled.clear()
        directory = restarted_run(f"again-{steps}", [steps, steps // 2, 20])
        model = RunModel(directory, directory.read())
        model.recall(math.inf)
        restarts = model.framer.frame().restarts
        assert [(each.generation, each.step) for each in restarts] == [(1, steps), (2, steps * 3 // 2)]
        assert sum(isinstance(each, wire.Steps) for each in recalled) <= RECENT_RECORDS + 16


def test_a_damaged_recording_gives_what_can_be_read() -> None:
    """Rows that are no messages are left out; a file cut short ends no observer."""
    directory = restarted_run("damaged", [50, 600])
    with closing(sqlite3.connect(directory.database)) as connection, connection:
        connection.execute("UPDATE steps SET payload = ? WHERE rowid % 7 = 0", (b"\xff" * 9,))
        connection.execute("UPDATE steps SET payload = NULL WHERE rowid % 11 = 0")
    model = RunModel(directory, directory.read())
    model.recall(math.inf)
    assert model.framer.rank(0).loss == 1.0
    directory.database.write_bytes(directory.database.read_bytes()[:9000])
    model = RunModel(directory, directory.read())
    model.recall(math.inf)
    assert model.is_recalled
