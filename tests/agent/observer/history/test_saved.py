"""The history in the run's file: as it was in memory, after a takeover and after the end, or made anew."""

from __future__ import annotations

import random
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent import wire
from ddptop.agent.observer.history import packing
from ddptop.agent.observer.history.answers import answer
from ddptop.agent.observer.history.columns import table_of
from ddptop.agent.observer.history.kept import Kept
from ddptop.agent.observer.history.numbers import CUSTOM
from ddptop.agent.observer.history.saved import Saving, opened
from ddptop.agent.observer.record import recording
from ddptop.agent.observer.record.ring import Ring

BASE_S = 1_800_000_000
ROOM = 64 << 20
WORLD = 3


class Run:
    """A run whose steps are recorded and kept as an observer does it."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.ring = Ring(database, WORLD)
        self.kept = Kept(WORLD)
        self.saving = Saving(self.kept)
        self.rng = random.Random(7)
        self.number = 0
        self.generation = 0

    def train(self, steps: int, *, record: bool = True) -> None:
        """Let all ranks do so many steps."""
        rows = []
        for _ in range(steps):
            self.number += 1
            for rank in range(WORLD):
                step = wire.Step(
                    self.number, self.number, (BASE_S + self.number) * 10**9, 10**9, 10**7, 10**7, 10**7, 10**7, 10**7,
                    10**7, self.rng.uniform(0, 9), 32, metrics={"accuracy": self.rng.random()},
                )  # fmt: skip
                message = wire.Steps(rank, (step,), self.generation)
                self.kept.steps(rank, message.steps, message.generation)
                rows.append(recording.row(message, wire.encode(message)))
        if record:
            self.ring.write(rows, ROOM)

    def restart(self) -> None:
        """Start all ranks anew."""
        self.generation += 1
        self.number = 0

    def save(self, *, whole: bool = False, room: int = ROOM) -> None:
        """Write what has changed."""
        snapshot = self.saving.snapshot(whole=whole)
        assert snapshot is not None
        self.ring.write(self.saving.rows(snapshot, room), ROOM)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run.db")


def answers(kept: Kept) -> list[wire.HistoryAnswer]:
    """Return what is told of all numbers that differ from step to step."""
    end = BASE_S + 4000
    queries = [
        wire.History(1, "loss"),
        wire.History(2, CUSTOM + "accuracy", (1, 2), 100, 900, most=64),
        wire.History(3, "loss", None, end - 4000, end, "time"),
    ]
    return [each for query in queries for each in answer(kept, query)]


def alike(found: Kept, wanted: Kept) -> bool:
    """Say whether two histories tell the same, but for how single precision rounds."""
    for one, other in zip(answers(found), answers(wanted), strict=True):
        if isinstance(one, wire.HistoryPart) and isinstance(other, wire.HistoryPart):
            tables = zip(table_of(one), table_of(other), strict=True)
            if (one.begin, one.width) != (other.begin, other.width) or not all(
                mine.shape == theirs.shape and np.allclose(mine, theirs, rtol=1e-4, equal_nan=True)
                for mine, theirs in tables
            ):
                return False
        elif one != other:
            return False
    return True


def advanced(kept: Kept) -> Kept:
    """Return a history with all that is recorded."""
    while not kept.complete:
        kept.advance(0.0, lambda: 1.0)
    return kept


def test_an_ended_run_tells_what_its_observer_told(run: Run) -> None:
    """At once, and without reading a step: the file has no more of them."""
    for _ in range(4):
        run.train(300)
        run.save()
    run.restart()
    run.train(200)
    run.save(whole=True)
    run.ring.close()
    with closing(sqlite3.connect(run.database)) as connection, connection:
        connection.execute("DELETE FROM steps")
    found = opened(run.database, WORLD, ended=True)
    assert found.complete
    assert alike(found, run.kept)
    assert found.last == 1400


def test_an_observer_that_came_back_is_believed(run: Run) -> None:
    """Steps that were recorded after the last writing of one that thought that the run was over are not lost."""
    run.train(100)
    run.save()
    run.save(whole=True)
    run.train(50)
    found = opened(run.database, WORLD, ended=True)
    assert not found.complete
    assert alike(advanced(found), run.kept)


def test_a_takeover_misses_no_step(run: Run) -> None:
    """After a kill between two savings the rest comes from the recorded steps, and what came meanwhile after them."""
    run.train(500)
    run.save()
    run.train(300)
    run.save()
    run.train(123)
    successor = opened(run.database, WORLD)
    assert not successor.complete
    observed, run.kept = run.kept, successor
    run.train(5, record=False)
    advanced(successor)
    # The first observer, had it lived, would tell the same of the steps up to its end.
    for rank in range(WORLD):
        assert successor.by_step.span(rank) == (1, 928)
        _, found = successor.read_many([rank], "loss", 0, 923)
        _, wanted = observed.read_many([rank], "loss", 0, 923)
        assert found.count.sum() == wanted.count.sum() == 923
        assert (found.low.min(), found.high.max()) == (wanted.low.min(), wanted.high.max())
    whose, last = successor.read_many([0, 1, 2], "loss", 924, 928)
    assert np.bincount(whose).tolist() == [5, 5, 5]
    assert last.count.sum() == 15


def test_a_takeover_after_a_restart_counts_on(run: Run) -> None:
    """Also where the restart is not in what was saved."""
    run.train(200)
    run.save()
    run.save()
    run.restart()
    run.train(100)
    successor = advanced(opened(run.database, WORLD))
    assert successor.generation == 1
    assert alike(successor, run.kept)


def test_a_takeover_finds_steps_that_were_thinned_meanwhile(run: Run) -> None:
    """Where the file is so small that newer steps than the saved ones have gone to another table, they count too."""
    run.train(200)
    run.save()
    run.save()
    run.train(100)
    run.ring.close()
    with closing(sqlite3.connect(run.database)) as connection, connection:
        recording.make_table(connection, 1)
        connection.execute("INSERT INTO steps_1 SELECT * FROM steps WHERE rowid <= 800 ORDER BY rowid")
        connection.execute("DELETE FROM steps WHERE rowid <= 800")
    assert alike(advanced(opened(run.database, WORLD)), run.kept)


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE series",
        "DELETE FROM series WHERE key = 'state'",
        "DELETE FROM series WHERE key = 'step/0//index'",
        "UPDATE series SET payload = substr(payload, 1, length(payload) / 2) WHERE key = 'step/1//3'",
        "UPDATE series SET payload = 'text' WHERE key = 'state'",
        "UPDATE series SET payload = NULL",
        "UPDATE series SET payload = (SELECT payload FROM series WHERE key = 'state') WHERE key = 'step/0//0'",
    ],
)
def test_a_damaged_table_is_made_anew_from_the_steps(run: Run, damage: str) -> None:
    """Whatever is missing or damaged, nothing is raised, and in the end all numbers are there."""
    run.train(700)
    run.save()
    run.ring.close()
    with closing(sqlite3.connect(run.database)) as connection, connection:
        connection.execute(damage)
    found = opened(run.database, WORLD)
    assert not found.complete
    extent = next(answer(found, wire.History(1)))
    assert isinstance(extent, wire.Extent)
    assert not extent.complete
    assert alike(advanced(found), run.kept)


def test_a_damaged_number_of_an_ended_run_is_made_anew(run: Run) -> None:
    """It is noticed when the number is asked for; the next answer says that it is being read."""
    run.train(700)
    run.save(whole=True)
    run.ring.close()
    with closing(sqlite3.connect(run.database)) as connection, connection:
        connection.execute("UPDATE series SET payload = x'00' WHERE key = 'step/0//0'")
    found = opened(run.database, WORLD, ended=True)
    assert found.complete
    answers(found)
    assert not found.complete
    assert alike(advanced(found), run.kept)


def test_a_writing_that_failed_is_made_up_for(run: Run) -> None:
    """The next one has all of it."""
    run.train(400)
    assert run.saving.snapshot() is not None
    run.saving.fail()
    run.train(3)
    run.save(whole=True)
    assert alike(opened(run.database, WORLD, ended=True), run.kept)


def test_only_what_has_changed_is_written(run: Run) -> None:
    """Wide buckets of long ago are left alone."""
    run.train(3000)
    run.save()
    run.train(10)
    snapshot = run.saving.snapshot()
    assert snapshot is not None
    assert {key for key in snapshot.levels if key.endswith("/")} == {"step/0/"}
    assert len(snapshot.blocks) < 16


def test_the_table_keeps_to_its_room(run: Run) -> None:
    """With too little of it the numbers over time go first; with far too little all is made from the steps."""
    run.train(3000)
    run.save()
    query = "SELECT coalesce(sum(length(payload)), 0) FROM series WHERE key LIKE '{}%'"
    with closing(sqlite3.connect(run.database)) as connection:
        steps, times = (connection.execute(query.format(kind)).fetchone()[0] for kind in ("step", "time"))
        assert min(steps, times) > 0
        run.train(20)
        run.save(room=steps + times // 2)
        assert connection.execute(query.format("time")).fetchone()[0] == 0
        assert connection.execute(query.format("step")).fetchone()[0] > 0
        assert opened(run.database, WORLD).last == 3020
        run.train(20)
        run.save(room=steps // 2)
        assert connection.execute(query.format("")).fetchone()[0] == 0
    assert run.saving.snapshot() is None
    assert advanced(opened(run.database, WORLD)).last == 3040


def test_the_history_of_a_large_group_is_made_anew_from_some_of_its_records(tmp_path: Path) -> None:
    """All of them would take longer to read than they took to come."""
    world = 4 * wire.EACH_RECORD
    ring = Ring(tmp_path / "run.db", world)
    rows = []
    for number in range(1, 41):
        for rank in range(0, world, 50):
            phases = 10**7, 10**7, 10**7, 10**7, 10**7, 10**7
            message = wire.Steps(rank, (wire.Step(number, number, (BASE_S + number) * 10**9, 10**9, *phases, 1.0),))
            rows.append(recording.row(message, wire.encode(message)))
    ring.write(rows, ROOM)
    found = advanced(opened(tmp_path / "run.db", world))
    whose, series = found.read_many([0, 50], "loss", 0, 100)
    assert np.bincount(whose)[[0, 50]].tolist() == [10, 10]
    assert series.steps.max() >= 37


def test_a_file_of_another_world_is_no_history_of_this_run(run: Run) -> None:
    """What was saved for another number of ranks is not taken for it."""
    run.train(100)
    run.save(whole=True)
    found = opened(run.database, WORLD + 1)
    assert not found.complete
    assert advanced(found).last == 100


def test_a_run_without_a_file_has_no_history(tmp_path: Path) -> None:
    """Nothing is raised, and nothing is made."""
    found = advanced(opened(tmp_path / "run.db", WORLD))
    assert found.last == 0
    assert not (tmp_path / "run.db").exists()


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200))
def test_no_bytes_of_a_file_raise_anything_but_damaged(payload: bytes) -> None:
    """As an array, or as the state."""
    with pytest.raises(packing.Damaged):
        packing.unpacked(payload, ("<f4", (None,)), ("<i8", (2, 2)))


def test_arrays_are_read_as_they_were() -> None:
    """Of any type and shape, and only where these are the expected ones; no small file takes much memory."""
    arrays = np.arange(12.0).reshape(3, 4), np.array([2**63 - 1, -5]), np.empty((0, 3), np.float32)
    payload = packing.packed(*arrays)
    found = packing.unpacked(payload, ("<f8", (3, 4)), ("<i8", (None,)), ("<f4", (0, 3)))
    assert all(np.array_equal(one, other) for one, other in zip(found, arrays, strict=True))
    for wanted in (("<f8", (4, 3)), ("<f4", (3, 4)), ("<f8", (12,))):
        with pytest.raises(packing.Damaged):
            packing.unpacked(payload, wanted, ("<i8", (None,)), ("<f4", (0, 3)))
    bomb = msgspec.msgpack.encode([["<f8", [4], zlib.compress(bytes(1 << 23))]])
    assert len(bomb) < 1 << 14
    with pytest.raises(packing.Damaged):
        packing.unpacked(bomb, ("<f8", (4,)))
