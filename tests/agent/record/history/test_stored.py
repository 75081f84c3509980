"""The history in the run's file: whole where it is new, ever coarser behind, and never lost with its observer."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.locking import held

from ddptop.agent import wire
from ddptop.agent.record.history.answers import answer, from_file
from ddptop.agent.record.history.stored import Writer, steps_for
from ddptop.agent.wire.steps.numbers import CUSTOM

BASE_S = 1_800_000_000
WORLD = 3
ROOM = 64 << 20


class Observer:
    """An observer that writes a history as the recorder does, a batch a second, and may be killed at any moment."""

    def __init__(self, database: Path, world: int = WORLD) -> None:
        self.world = world
        self.connection = sqlite3.connect(database)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = OFF")
        self.writer = Writer(self.connection, world)
        self.number = 0

    def train(self, steps: int, *, generation: int = 0, room: int = ROOM) -> None:
        """Let all ranks do so many steps of 100 ms, with the step's number as the loss of rank 0."""
        for _ in range(steps):
            self.number += 1
            for rank in range(self.world):
                end_ns = BASE_S * 10**9 + self.number * 10**8
                step = wire.Step(
                    self.number, self.number, end_ns, 10**8, 10**7, 10**7, 10**7, 10**7, 10**7, 5 * 10**7,
                    float(self.number + rank), 32, metrics={"accuracy": 0.5},
                )  # fmt: skip
                self.writer.rows.steps(rank, [step], generation)
            if self.number % 10 == 0:
                self.write(room)

    def write(self, room: int = ROOM) -> None:
        """Write what has come."""
        self.writer.settle()
        with self.connection:
            self.writer.write()
        self.writer.written()
        while self.writer.fold(room):
            pass

    def steps_of(self, rank: int) -> np.ndarray:
        """Return the steps of each bucket of a rank, in order: the last one, and how many."""
        whose, found = self.writer.by_step("loss", 0, 1 << 53)
        mine = found.part(whose == rank)
        order = np.argsort(mine.steps)
        assert (mine.low <= mine.mean).all()
        assert (mine.mean <= mine.high).all()
        return np.stack((mine.steps, mine.count), axis=1)[order]

    def end(self) -> None:
        """End without another word."""
        self.connection.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def queries() -> list[wire.History]:
    """Return questions for numbers of all kinds."""
    return [
        wire.History(1, "loss"),
        wire.History(2, CUSTOM + "accuracy", (1, 2), 100, 900, most=64),
        wire.History(3, "own", None, BASE_S, BASE_S + 100, "time"),
    ]


def test_the_newest_steps_are_single_and_older_ones_ever_wider(database: Path) -> None:
    """No step is lost, and a bucket is nowhere wider than a part of its distance from the end."""
    observer = Observer(database, 1)
    observer.train(10_000)
    found = observer.steps_of(0)
    assert found[:, 1].sum() == 10_000
    assert (found[-steps_for(1) // 2 :, 1] == 1).all()
    assert (found[:, 1] <= 1 + (10_000 - found[:, 0]) * 16 / steps_for(1)).all()
    assert found[0, 1] >= 16
    _, series = observer.writer.by_step("loss", 0, 1 << 53)
    assert (series.low.min(), series.high.max()) == (1, 10_000)


def test_ten_times_the_steps_take_little_more_room(database: Path) -> None:
    """Each level has its share: the file grows with the logarithm of the run."""
    observer = Observer(database, 2)
    observer.train(1_500)
    before = observer.writer.bytes
    observer.train(13_500)
    assert observer.writer.bytes < 3 * before


def test_a_successor_goes_on_where_the_observer_was_killed(database: Path) -> None:
    """What was written is there, what comes again is not counted twice, and a restart of the ranks is counted on."""
    first = Observer(database)
    first.train(500)
    first.end()
    second = Observer(database)
    second.train(700)
    assert second.steps_of(1)[:, 1].sum() == 700
    assert second.writer.span(range(WORLD)) == (1, 700)
    second.end()
    third = Observer(database)
    third.train(100, generation=1)
    assert third.writer.last == 800
    assert third.steps_of(2)[:, 1].sum() == 800


def test_an_ended_run_tells_what_its_observer_told(database: Path) -> None:
    """Of every number, and only what was committed."""
    observer = Observer(database)
    observer.train(3000)
    for query in queries():
        told = [wire.encode(each) for each in answer(observer.writer, query)]
        assert len(told) == 3
        assert [wire.encode(each) for each in from_file(database, WORLD, query)] == told
    observer.train(5)
    extent, _ = from_file(database, WORLD, wire.History(1))
    assert isinstance(extent, wire.Extent)
    assert (extent.newest, extent.complete, extent.names) == (3000, True, ("accuracy",))


def test_what_cannot_be_written_is_written_later(database: Path) -> None:
    """A batch that fails is in the next one."""
    observer = Observer(database)
    observer.train(10)
    for number in range(11, 20):
        observer.train(1)
        observer.writer.settle()
        observer.writer.write()
        observer.connection.rollback()
        observer.writer.failed()
        assert number == observer.number
    observer.train(1)
    assert observer.steps_of(0)[:, 1].sum() == 20


def test_a_folding_that_fails_leaves_all_as_it_was(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one has the same to do."""
    observer = Observer(database)
    observer.train(500)
    before = observer.writer.bytes
    monkeypatch.setattr(Writer, "_put", lambda *_: observer.connection.execute("SELECT nothing"))
    with pytest.raises(sqlite3.OperationalError):
        observer.writer.fold(100)
    assert observer.writer.bytes == before
    assert observer.steps_of(0)[:, 1].sum() == 500


def test_the_history_keeps_to_its_room(database: Path) -> None:
    """With less room its buckets are wider, and still of all steps."""
    observer = Observer(database)
    observer.train(1500)
    room = observer.writer.bytes // 3
    observer.train(1000, room=room)
    assert observer.writer.bytes <= room
    found = observer.steps_of(0)
    assert found[:, 1].sum() == 2500
    assert len(found) < 1000
    observer.train(500, room=100)
    assert observer.writer.last == 3000


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE progress",
        "DELETE FROM progress",
        "UPDATE progress SET payload = 'text'",
        "UPDATE progress SET payload = x'93010203'",
        "UPDATE buckets SET payload = NULL",
        "UPDATE buckets SET payload = x'00' WHERE piece % 2",
        "UPDATE buckets SET payload = x'00' WHERE number = ''",
        "UPDATE buckets SET level = 'deep'",
        "UPDATE buckets SET level = 1000000",
        "UPDATE buckets SET kind = 7, number = NULL",
        "DELETE FROM buckets WHERE number = ''",
        "DROP TABLE buckets",
        "UPDATE buckets SET payload = zeroblob(2400)",
        "UPDATE buckets SET payload = randomblob(2400)",
    ],
)
def test_whatever_is_damaged_costs_itself(database: Path, damage: str) -> None:
    """Nothing is raised but that the file is unusable, each question is answered, and what comes later is written."""
    observer = Observer(database)
    observer.train(300)
    observer.end()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(damage)
    for query in queries():
        *_, reply = from_file(database, WORLD, query)
        assert isinstance(reply, wire.Reply)
    successor = Observer(database)
    successor.number = 300
    successor.train(1000)
    assert successor.writer.last == 1300
    _, series = successor.writer.by_step("loss", 1200, 1300)
    assert series.count.sum() >= 3 * 90


def test_a_file_of_another_world_is_no_history_of_this_run(database: Path) -> None:
    """What was recorded for another number of ranks is not taken for it."""
    observer = Observer(database)
    observer.train(100)
    observer.end()
    assert Observer(database, WORLD + 1).writer.last == 0


def test_a_lock_is_no_damage(database: Path) -> None:
    """Nothing is told of a file that another process holds but that it is not read, and all of it once it is free."""
    observer = Observer(database)
    observer.train(40)
    observer.end()
    with held(database):
        extent, reply = from_file(database, WORLD, wire.History(1, "loss"))
        assert isinstance(extent, wire.Extent)
        assert isinstance(reply, wire.Reply)
        assert (extent.complete, reply.done) == (False, True)
    assert len(from_file(database, WORLD, wire.History(1, "loss"))) == 3


def test_a_run_without_a_file_has_no_history(database: Path) -> None:
    """Nothing is raised, and nothing is made."""
    extent, reply = from_file(database, WORLD, wire.History(1, "loss"))
    assert extent == wire.Extent(1)
    assert isinstance(reply, wire.Reply)
    assert not reply.done
    assert not database.exists()


def test_steps_far_apart_end_no_folding(database: Path) -> None:
    """A rank that counts in leaps fills no bucket with two steps; the levels end, and the newest steps are there."""
    observer = Observer(database, 1)
    writer, number = observer.writer, 1
    for seq in range(1, 3000):
        number = math.ceil(number * 1.01) + 1
        step = wire.Step(seq, min(number, 10**12 + seq), BASE_S * 10**9, 1, 0, 0, 0, 0, 0, 1, 1.0)
        writer.rows.steps(0, [step], 0)
        if seq % 20 == 0:
            observer.write(1 << 14)
    observer.write()
    assert observer.steps_of(0)[-1, 0] == writer.last
