"""A recording within its room: what stays, what goes, and what its readers see meanwhile."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.values.messages import read_steps

from ddptop.agent import wire
from ddptop.agent.observer.record import recording, thinning
from ddptop.agent.observer.record.ring import Ring
from ddptop.agent.observer.record.thinning import DEEPEST, Stored, thinned
from ddptop.agent.sampling import next_sampled

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
    """The file stays within its budget and a stated slack; steps thin out with age, evenly, the same on all ranks."""
    database = memory / "run.db"
    ring = Ring(database, WORLD)
    written = count = largest = 0
    events = [wire.Event(number, f"event {number}", number % WORLD, "warning") for number in range(200)]
    while written < 50 * BUDGET:
        count += 16
        rows = [row(rank, step(n)) for n in range(count - 15, count + 1) for rank in range(WORLD)]
        rows += [recording.row(each, wire.encode(each)) for each in events[count // 16 - 1 : count // 16]]
        written += sum(len(values[-1]) for _, values in rows)
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
    # The older, the further apart, without a hole; each is in every larger sample, so that what stays was timed.
    apart = [(after - before) / 8 for before, after in zip(kept[0], kept[0][8:], strict=False)][::8]
    assert apart[-1] == 1
    assert apart[0] >= 64
    assert all(later <= 1.5 * before for before, later in pairwise(apart))
    old = [number for number in kept[0] if number < count / 2]
    assert old == [number for number in old if next_sampled(number, 64) == number]
    # Only where a stretch ends a rank may have a few more.
    common = set.intersection(*map(set, kept))
    assert len(common) >= 0.8 * max(map(len, kept))


def test_what_stands_out_stays(tmp_path: Path) -> None:
    """The slowest step, the highest loss and the first that is no number survive among steps that are all alike."""
    stretch = [step(number) for number in range(1, 257)]
    stretch[99] = step(100, wall_ns=10**10)
    stretch[149] = step(150, loss=77.0)
    stretch[203:] = [step(number, loss=float("nan")) for number in range(204, 257)]
    rows = [Stored(0, 0, each.seq, each.seq, wire.encode(wire.Steps(0, (each,)))) for each in stretch]
    left = {}
    for level in range(4):
        rows = thinned(rows, level)
        left = {each.step: each for stored in rows for each in read_steps(stored.payload)}
    assert {100, 150, 204} <= left.keys()
    usual = sorted(left.keys() - {100, 150, 204})
    # One in each sixteen, and not always the same one.
    assert {number // 16 for number in usual} >= set(range(1, 16))
    assert len(usual) in (16, 17)
    assert len({number % 16 for number in usual}) > 4
    assert left[100] == stretch[99]


@pytest.mark.parametrize("every", [1, 2, 8, 64])
def test_steps_that_are_not_all_recorded_are_thinned_alike(every: int) -> None:
    """Where only one step in k is recorded, half of the records stay, on every rank the same."""
    steps = [0]
    while len(steps) < 129:
        steps.append(next_sampled(steps[-1] + 1, every))
    rows = [
        Stored(rank, 0, seq, seq, wire.encode(wire.Steps(rank, (wire.Step(seq, steps[seq], 0, 9, 1, 1, 1, 1, 1, 4),))))
        for seq in range(1, 129)
        for rank in range(2)
    ]
    left: dict[int, list[int]] = {0: [], 1: []}
    for kept in thinned(rows, 0):
        left[kept.rank] += [each.step for each in read_steps(kept.payload)]
    assert left[0] == left[1]
    assert 63 <= len(left[0]) <= 65
    # Nowhere is more than a few in a row left out.
    kept_of = [number in left[0] for number in steps[1:]]
    assert all(any(kept_of[begin : begin + 3]) for begin in range(len(kept_of) - 2))


_WRITER = """
import sys
from pathlib import Path
from ddptop.agent import wire
from ddptop.agent.observer.record import recording
from ddptop.agent.observer.record.ring import Ring

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


def test_a_reader_gets_each_step_once_while_rows_move(tmp_path: Path) -> None:
    """Who reads slowly, while the writer thins, gets steps in order, none twice."""
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
    assert found[-1] == 4000
    assert found[:700] == list(range(1, 701))


def test_a_database_without_levels_is_read(tmp_path: Path) -> None:
    """Files of older versions have the one table of steps."""
    database = tmp_path / "run.db"
    with sqlite3.connect(database) as connection:
        connection.execute(
            "CREATE TABLE steps(rank INTEGER, generation INTEGER, first_seq INTEGER, last_seq INTEGER, payload BLOB)"
        )
        for number in range(1, 11):
            connection.execute(*row(0, step(number)))
    connection.close()
    assert numbers(database) == list(range(1, 11))
    assert len(list(recording.read_newest_steps(database, 3))) == 3
    assert len(list(recording.read_history(database))) == 10
    ring = Ring(database, 1)
    ring.write([row(0, step(11))], BUDGET)
    ring.close()
    assert numbers(database) == list(range(1, 12))


def test_the_newest_of_each_rank_is_known_also_when_it_was_thinned(tmp_path: Path) -> None:
    """A successor of the recorder asks for what is not there, by generation and number, whatever the level."""
    database = tmp_path / "run.db"
    ring = Ring(database, 2)
    ring.write([row(1, step(9), generation=1), row(1, step(3), generation=2)], BUDGET)
    for first in range(1, 8001, 100):
        ring.write([row(0, step(number)) for number in range(first, first + 100)], BUDGET)
        ring.limit_to(BUDGET, 60.0)
    assert recording.last_recorded(database)[0] == (0, 8000)
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


_hostile = st.integers(0, 2**63 - 1) | st.integers(0, 3)
_spans = st.integers(-(2**53), 2**53) | st.integers(0, 3)
"""Durations that the wire lets in."""


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), _hostile, _hostile, _spans, st.floats() | st.none()), max_size=40),
    st.integers(0, DEEPEST),
)
def test_whatever_steps_a_rank_sends_thinning_ends(
    steps: list[tuple[int, int, int, int, float | None]], level: int
) -> None:
    """From level to level no more of them stay, and at the deepest none; what stays was there and can be read."""
    rows = []
    for rank, seq, number, wall, loss in steps:
        message = wire.Steps(rank, (wire.Step(seq, number, 0, wall, 1, 1, 1, 1, 1, 1, loss),))
        rows.append(Stored(rank, 0, seq, seq, wire.encode(message)))
    sent = Counter((rank, seq) for rank, seq, *_ in steps)
    for depth in range(level, DEEPEST + 1):
        rows = thinned(rows, depth)
        left = Counter((kept.rank, each.seq) for kept in rows for each in read_steps(kept.payload))
        assert left <= sent
        sent = left
    assert rows == []


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_rows_that_cannot_be_read_go(noise: bytes) -> None:
    """A damaged row costs itself."""
    good = wire.encode(wire.Steps(0, (step(1),)))
    assert {kept.first_seq for kept in thinned([Stored(0, 0, 5, 5, noise), Stored(0, 0, 1, 1, good)], 0)} >= {1}


def test_the_light_reading_of_a_step_is_its_first_fields() -> None:
    """What thinning reads of a step are the first fields of the wire's, in their order: a new one goes to the end."""
    light = thinning._Light.__struct_fields__
    assert light == wire.Step.__struct_fields__[: len(light)]
