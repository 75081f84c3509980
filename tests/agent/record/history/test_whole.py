"""Whole steps out of the record: what ranks have told is answered by number and range, and compared."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from support.values.histories import Kept

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.record.history.answers import MOST_CALLS, from_file
from ddptop.agent.record.history.whole import LEAST, RECORDS, WholeSteps
from ddptop.agent.wire.frames import HostFrames
from ddptop.agent.wire.hosts import HostFrame

MS = 10**6


def step(number: int, *, seq: int | None = None, late: int = 0, calls: int = 1) -> wire.Step:
    """A step of 100 ms in which the rank comes so late, in ms, to its first collective."""
    called = tuple(wire.Collective("all_reduce", (50 + late + each) * MS, 20 * MS, 8, 1, "0") for each in range(calls))
    end = number * 100 * MS + 1_000_000 * MS
    return wire.Step(number if seq is None else seq, number, end, 100 * MS, 0, 0, 0, 0, 0, 0, collectives=called)


class Answer:
    """One answer, as it comes over the wire."""

    def __init__(self, answer: Iterator[wire.HistoryAnswer] | list[wire.HistoryAnswer]) -> None:
        payloads = [wire.encode(each) for each in answer]
        assert all(len(payload) <= wire.MAX_MESSAGE_BYTES for payload in payloads)
        kept, *parts, reply = map(wire.read_history, payloads)
        assert isinstance(kept, wire.KeptSteps)
        assert isinstance(reply, wire.Reply)
        self.kept, self.reply = kept, reply
        self.numbers = list(kept.numbers)
        self.steps = [each for part in parts if isinstance(part, wire.AlignedSteps) for each in part.steps]
        self.told = [(each.step.step, each.rank) for each in self.steps]


def ask(kept: Kept, ranks: tuple[int, ...], first: int = 0, last: int = 1 << 53, most: int = wire.MOST_WHOLE) -> Answer:
    return Answer(kept.answer(wire.WholeSteps(7, ranks, first, last, most)))


def trained(kept: Kept, numbers: range, *ranks: int, generation: int = 0) -> None:
    for number in numbers:
        for rank in ranks:
            kept.take(rank, step(number, late=10 * rank), generation=generation)


def test_the_newest_steps_that_all_have_made_are_offered() -> None:
    """A rank that is behind decides for those it is asked with; a range and a number bound what is sent."""
    kept = Kept(3)
    trained(kept, range(1, 1001), 0, 1)
    trained(kept, range(1, 991), 2)
    assert ask(kept, (0, 1)).numbers == list(range(761, 1001))
    both = ask(kept, (0, 2), first=980, most=3)
    assert both.numbers[-1] == 990
    assert both.told == [(number, rank) for number in (990, 989, 988) for rank in (0, 2)]
    assert not ask(kept, (0, 1), last=0).steps
    trained(kept, range(1001, 1003), 0, 1)
    assert ask(kept, (0, 1), first=1001).told == [(1002, 0), (1002, 1), (1001, 0), (1001, 1)]


def test_what_is_answered_is_what_was_recorded_and_compared() -> None:
    """The other waits for the late one; where it is asked for alone, nobody is known to have come last."""
    kept = Kept(2)
    trained(kept, range(1, 3), 0, 1)
    early, late = ask(kept, (0, 1), first=2).steps
    assert (early.step, late.step) == (step(2), step(2, late=10))
    assert [each.splits for each in (early, late)] == [(wire.Split(60 * MS, 1),)] * 2
    assert early.begin_ns == early.step.end_at_ns - 100 * MS
    (alone,) = ask(kept, (1,), first=2).steps
    assert alone.splits == (None,)


def test_moments_are_by_the_clock_of_the_head() -> None:
    """One clock is ahead, of another nothing is known: that one begins by its own."""
    kept = Kept(3)
    trained(kept, range(1, 2), 0, 1, 2)
    hosts = HostFrames(
        (
            HostFrame("a", ranks=(0,), offset_ms=0.0, offset_error_ms=0.0),
            HostFrame("b", ranks=(1,), offset_ms=7.0, offset_error_ms=0.5),
            HostFrame("c", ranks=(2,)),
        )
    )
    answer = Answer(kept.answer(wire.WholeSteps(1, (0, 1, 2)), hosts))
    begun = step(1).end_at_ns - 100 * MS
    assert [each.begin_ns - begun for each in answer.steps] == [0, -7 * MS, 0]
    assert [each.is_compared for each in answer.steps] == [True, True, False]
    assert {each.error_ns for each in answer.steps} == {MS // 2}
    assert answer.kept.compared == 2


def test_a_rank_that_counts_anew_has_no_steps_of_the_count_before() -> None:
    """Whether it goes on with its records, another process has taken its place, or the whole group was restarted."""
    kept = Kept(2)
    trained(kept, range(1, 101), 0, 1)
    assert ask(kept, (0, 1)).numbers[-1] == 100
    for seq in range(101, 106):
        for rank in (0, 1):
            kept.take(rank, step(seq - 100, seq=seq))
    assert ask(kept, (0, 1)).numbers == [1, 2, 3, 4, 5]
    trained(kept, range(1, 4), 0)
    assert ask(kept, (0, 1)).numbers == [1, 2, 3]
    trained(kept, range(1, 3), 0, 1, generation=1)
    trained(kept, range(50, 60), 1)
    again = ask(kept, (0, 1))
    assert (again.numbers, again.kept.generation) == ([1, 2], 1)


def test_where_no_step_is_whole_any_is_offered() -> None:
    """A rank without a record is missing in the answer, and what is said of waiting is an estimate."""
    kept = Kept(2)
    trained(kept, range(1, 4), 1)
    answer = ask(kept, (0, 1))
    assert answer.numbers == [1, 2, 3]
    assert answer.told == [(3, 1), (2, 1), (1, 1)]
    assert ask(Kept(2), (0, 1)).numbers == []


def test_a_large_answer_ends_with_the_newest_steps() -> None:
    """It is cut below the bound on messages, and the oldest steps are left out; one is always there."""
    kept = Kept(2)
    calls = MOST_CALLS // 5
    for number in range(1, 9):
        for rank in (0, 1):
            kept.take(rank, step(number, calls=calls))
    answer = ask(kept, (0, 1))
    assert answer.numbers == list(range(1, 9))
    assert answer.told == [(number, rank) for number in (8, 7, 6) for rank in (0, 1)]


def test_what_is_found_is_bounded() -> None:
    """However many ranks there are."""
    connection = sqlite3.connect(":memory:")
    for world in (1, 64, 1024, 10_000):
        most = WholeSteps(connection, world)._most
        assert LEAST <= most <= wire.MOST_WHOLE
        assert most == LEAST or most * world <= RECORDS


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return the file of a run of two ranks, each message with three steps."""
    path = tmp_path / "run.db"
    with closing(recording.open_file(path)) as connection, connection:
        for number in range(1, 100, 3):
            for rank in (0, 1):
                message = wire.Steps(rank, tuple(step(each) for each in range(number, number + 3)))
                connection.execute(*recording.row(message, wire.encode(message)))
    return path


@pytest.mark.parametrize(
    ("damage", "whole"),
    [
        ("UPDATE steps SET payload = x'00' WHERE last_seq = 99 AND rank = 1", [96, 95]),
        ("UPDATE steps SET payload = NULL, generation = 'x' WHERE first_seq > 1", [3, 2]),
        ("DELETE FROM steps WHERE rowid <= 60", [99, 98]),
        ("DELETE FROM steps", []),
        ("DROP TABLE steps", []),
    ],
)
def test_whatever_is_damaged_costs_itself(database: Path, damage: str, whole: list[int]) -> None:
    """Each question about an ended run is answered."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(damage)
    answer = Answer(from_file(database, 2, wire.WholeSteps(1, (0, 1), most=2)))
    assert [number for number, rank in answer.told if rank == 0] == whole
    assert answer.kept.complete


def test_rows_that_are_removed_meanwhile_are_not_offered(tmp_path: Path) -> None:
    """The oldest go, as in a full record, and then all of them; what is numbered anew after that is found."""
    with closing(recording.open_file(tmp_path / "run.db")) as connection:
        stored = WholeSteps(connection, 1)

        def record(*numbers: int) -> None:
            for number in numbers:
                message = wire.Steps(0, (msgspec.structs.replace(step(number), seq=number),))
                connection.execute(*recording.row(message, wire.encode(message)))

        record(1, 2, 3)
        assert stored.numbers([0]) == [1, 2, 3]
        connection.execute("DELETE FROM steps WHERE rowid < 3")
        assert stored.numbers([0]) == [3]
        connection.execute("DELETE FROM steps")
        record(4)
        assert stored.numbers([0]) == [4]
        assert stored.records([0], [4])[4] == {0: step(4)}
