"""A recording within its room: what stays, what goes, and what its readers see meanwhile."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.record.history.stored import Stored
from ddptop.agent.record.ring import Ring

BUDGET = 512 << 10
SLACK = BUDGET // 4 + (32 << 10)
"""For the journal, in which a transaction may reach beyond its share, and for its index."""
WORLD = 4
CALLS = tuple(wire.Collective("all_reduce", number, 3 * 10**6, 25 << 20, 1) for number in range(32))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: thousands of transactions wait for no disk there."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def step(number: int, *, wall_ns: int = 10**8, loss: float | None = 1.0) -> wire.Step:
    """Return the record of a step."""
    return wire.Step(number, number, number * 10**8, wall_ns, 1, 2, 3, 4, 0, 5, loss, 32, CALLS)


def row(rank: int, *steps: wire.Step, generation: int = 0) -> recording.Row:
    """Return the row of a message with these steps."""
    message = wire.Steps(rank, steps, generation)
    return recording.row(message, wire.encode(message))


def numbers(database: Path, rank: int = 0) -> list[int]:
    """Return the step numbers that a reader gets of a rank, in order."""
    return [
        each.step
        for message in recording.read_steps(database)
        if isinstance(message, wire.Steps) and message.rank == rank
        for each in message.steps
    ]


def test_of_rows_that_are_written_together_each_odd_one_costs_itself(memory: Path) -> None:
    """Wherever they are among hundreds: the others are stored, in order, and the odd ones are counted."""
    database = memory / "run.db"
    ring = Ring(database, WORLD)
    rows = [row(0, step(number)) for number in range(1, 301)]
    odd = {0, 63, 64, 130, 131, 299}
    for index in odd:
        statement, (_, *rest) = rows[index]
        rows[index] = statement, (2**70, *rest)
    rows.insert(150, recording.row(wire.Event(1, "between"), wire.encode(wire.Event(1, "between"))))
    assert ring.write(rows, BUDGET) == len(odd)
    assert numbers(database) == [number for number in range(1, 301) if number - 1 not in odd]
    assert list(recording.read_events(database)) == [wire.Event(1, "between")]
    ring.close()


def disk(database: Path) -> int:
    """Return the bytes of the file and of what SQLite keeps beside it."""
    return sum(path.stat().st_size for path in database.parent.iterdir())


def test_fifty_times_its_budget_leaves_every_event_and_the_newest_steps(memory: Path) -> None:
    """The file stays within its budget and a stated slack; of older steps there are the numbers, of all ranks."""
    database = memory / "run.db"
    ring = Ring(database, WORLD)
    written = count = largest = 0
    events = [wire.Event(number, f"event {number}", number % WORLD, "warning") for number in range(200)]
    while written < 50 * BUDGET:
        count += 16
        rows = [row(rank, step(n)) for n in range(count - 15, count + 1) for rank in range(WORLD)]
        rows += [recording.row(each, wire.encode(each)) for each in events[count // 16 - 1 : count // 16]]
        written += sum(len(values[-1]) for _, values in rows)
        _, history = ring.open(BUDGET)
        for rank in range(WORLD):
            history.rows.steps(rank, [step(n) for n in range(count - 15, count + 1)], 0)
        history.settle()
        ring.write(rows, BUDGET)
        assert ring.limit_to(BUDGET, 60.0)
        largest = max(largest, disk(database))
    late = events[count // 16 :]
    ring.write([recording.row(event, wire.encode(event)) for event in late], BUDGET)
    ring.close()
    assert largest < BUDGET + SLACK
    assert list(recording.read_events(database)) == events
    kept = [numbers(database, rank) for rank in range(WORLD)]
    newest = [number for number in kept[0] if number > count - 30]
    assert newest == list(range(count - 29, count + 1))
    assert kept[0] == list(range(kept[0][0], count + 1))
    assert len(kept[0]) > 30
    with closing(sqlite3.connect(database)) as connection:
        whose, series = Stored(connection, WORLD).by_step("step", 0, 1 << 53)
    assert [series.count[whose == rank].sum() for rank in range(WORLD)] == [count] * WORLD


@pytest.mark.parametrize(("longer", "budget", "kept"), [(1, 64 * BUDGET, 20_000), (1000, BUDGET, BUDGET // 4 // 1000)])
def test_of_a_flood_of_events_the_newest_are_kept(memory: Path, longer: int, budget: int, kept: int) -> None:
    """As many as is said, and fewer of long ones: a quarter of the budget is for them."""
    ring = Ring(memory / "run.db", 1)
    for first in range(0, 30_000, 3_000):
        events = [wire.Event(number, f"{number} {'x' * longer}", 0) for number in range(first, first + 3_000)]
        ring.write([recording.row(each, wire.encode(each)) for each in events], budget)
        assert ring.limit_to(budget, 60.0)
    ring.close()
    found = [each.at_ns for each in recording.read_events(memory / "run.db") if isinstance(each, wire.Event)]
    assert found == list(range(found[0], 30_000))
    assert kept / 2 < len(found) <= kept


_WRITER = """
import sys
from contextlib import closing
from pathlib import Path
from ddptop.agent import wire
from ddptop.agent.record.history.stored import Stored
from ddptop.agent.record import recording
from ddptop.agent.record.ring import Ring

ring = Ring(Path(sys.argv[1]), 1)
number = 0
while True:
    rows = []
    for number in range(number + 1, number + 101):
        message = wire.Steps(0, (wire.Step(number, number, 0, 9, 1, 1, 1, 1, 1, 4),))
        rows.append(recording.row(message, wire.encode(message)))
    ring.write(rows, 1 << 19)
    print(number, flush=True)
    ring.limit_to(1 << 19, 60.0)
"""


def test_a_writer_that_is_killed_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """Killed while it thins, the file is sound, its steps stand in order, and the last that was written is there."""
    database = tmp_path / "run.db"
    told = 0
    with subprocess.Popen([sys.executable, "-c", _WRITER, database], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        while told < 10_000:
            told = int(writer.stdout.readline())
        writer.kill()
        told = int((writer.stdout.read().splitlines() or [str(told)])[-1])
    found = numbers(database)
    assert found == sorted(set(found))
    assert found[-1] >= told
    assert len(found) < told
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_reader_gets_each_step_once_while_rows_go(tmp_path: Path) -> None:
    """Who reads slowly, while the writer removes the oldest, gets steps in order, none twice."""
    database = tmp_path / "run.db"
    ring = Ring(database, 1)
    for first in range(1, 4001, 100):
        ring.write([row(0, step(number)) for number in range(first, first + 100)], 64 << 20)
    reading = recording.read_steps(database)
    got = [next(reading) for _ in range(700)]
    assert ring.limit_to(0, 60.0)
    got += list(reading)
    ring.close()
    found = [each.seq for message in got if isinstance(message, wire.Steps) for each in message.steps]
    assert found == sorted(set(found))
    assert found[:700] == list(range(1, 701))


def test_the_newest_of_each_rank_is_known_also_when_it_was_removed(tmp_path: Path) -> None:
    """A successor of the recorder asks for what is not there; the last steps of each generation stay as well."""
    database = tmp_path / "run.db"
    ring = Ring(database, 2)
    ring.write([row(1, step(9), generation=1), row(1, step(3), generation=2)], BUDGET)
    for first in range(1, 8001, 100):
        ring.write([row(0, step(number)) for number in range(first, first + 100)], BUDGET)
        ring.limit_to(BUDGET, 60.0)
    assert recording.last_recorded(database) == {0: (0, 8000), 1: (2, 3)}
    assert numbers(database, 1) == []
    assert list(recording.read_last_steps(database, 1, 5)) == [wire.Steps(1, (step(9),), 1)]
    ring.close()


def test_an_old_reader_does_not_let_the_journal_grow(tmp_path: Path) -> None:
    """While a read transaction stays open, the ring says so, and goes on as soon as it is closed."""
    database = tmp_path / "run.db"
    ring = Ring(database, 1)
    ring.write([row(0, step(1))], BUDGET)
    reader = sqlite3.connect(database)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM steps").fetchone()
    number = 1
    while not ring.is_held_up():
        number += 100
        assert number < 100_000
        ring.write([row(0, step(each)) for each in range(number, number + 100)], BUDGET)
    assert disk(database) < 2 * BUDGET
    reader.close()
    assert not ring.is_held_up()
    ring.close()
