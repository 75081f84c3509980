"""Events: all are written, repeats once, and of a flood the beginning and the number."""

from __future__ import annotations

import sqlite3

from support.fakes.clocks import Clock

from ddptop.agent import wire
from ddptop.agent.observer.record import floods
from ddptop.agent.observer.record.floods import OBSERVER, Flood, sound
from ddptop.agent.observer.record.recording import Row


def texts(rows: list[Row]) -> list[str]:
    """Return the texts of the events after these statements."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE events(at_ns INTEGER, payload BLOB)")
        for row in rows:
            connection.execute(*row)
        found = [
            wire.read_telemetry(payload)
            for (payload,) in connection.execute("SELECT payload FROM events ORDER BY rowid")
        ]
    connection.close()
    return [each.text for each in found if isinstance(each, wire.Event)]


def test_a_repeated_event_stands_once_with_its_number() -> None:
    """Also with others between; after a quiet minute it is news again; what somebody did is never a repeat."""
    clock = Clock(0.0)
    flood = Flood(clock)
    rows: list[Row] = []
    for number in range(100):
        clock.now += 1
        rows += flood.rows_of(wire.Event(number, "loss is nan", 0, "error"), 0)
        rows += flood.rows_of(wire.Event(number, f"other {number}", 0), 0) if number < 2 else []
        rows += flood.settle(number)
    clock.now += floods.REPEAT_S + 1
    rows += flood.rows_of(wire.Event(200, "loss is nan", 0, "error"), 0)
    for number in range(2):
        rows += flood.rows_of(wire.Event(201 + number, "paused", None, "info", "pause", "ada"), OBSERVER)
    rows += flood.settle(300)
    told = texts(rows)
    assert told[0].startswith("loss is nan (100 times")
    assert told[1:] == ["other 0", "other 1", "loss is nan", "paused", "paused"]


def test_each_end_of_a_rank_is_an_event_of_its_own() -> None:
    """A rank that was started anew ends in the same words; what a rank says of itself twice is counted."""
    flood = Flood(lambda: 0.0)
    ends = [wire.Event(at_ns, "rank 1 was killed by SIGKILL", 1, "error") for at_ns in (5, 25)]
    assert texts([row for event in ends for row in flood.rows_of(event, OBSERVER)]) == [ends[0].text] * 2
    assert [len(flood.rows_of(event, 1)) for event in ends] == [1, 0]


def test_the_number_of_a_long_event_is_read() -> None:
    """However long its text is: what a reader cuts off is the text, and not the number at its end."""
    flood = Flood(Clock(0.0))
    rows: list[Row] = []
    for number in range(7):
        rows += flood.rows_of(sound(wire.Event(number, "all work and no play " * 100, 0), 1, 0), 0)
    told = texts(rows + flood.settle(9))
    assert len(told) == 1
    assert told[0].startswith("all work and no play")
    assert told[0].endswith("(7 times within a minute of each other)")


def test_what_the_observer_tells_is_bounded_too() -> None:
    """Without room nothing more of anybody is written, and the number of what was left out is told."""
    flood = Flood(Clock(0.0))
    assert flood.rows_of(wire.Event(1, "rank 0 is up"), OBSERVER, full=True) == []
    assert texts(flood.settle(2))[0].startswith("1 events of observer are left out")


def test_a_flood_of_one_rank_is_bounded_and_told() -> None:
    """Others lose nothing by it; the number left out stands in the record and is kept up to date."""
    clock = Clock(0.0)
    flood = Flood(clock)
    rows: list[Row] = []
    for number in range(5000):
        rows += flood.rows_of(wire.Event(number, f"event {number}", 3), 3)
        if number % 100 == 0:
            rows += flood.settle(number)
    rows += flood.rows_of(wire.Event(1, "rank 4 has something to tell", 4), 4)
    rows += flood.settle(9999)
    told = texts(rows)
    assert len(told) == floods.AT_ONCE + 2
    assert "rank 4 has something to tell" in told
    assert any(text.startswith("4,000 events of rank 3 are left out") for text in told)
    assert sum(each.omitted for each in flood._allowances.values()) == 4000
    clock.now += floods.EVERY_S
    assert flood.rows_of(wire.Event(1, "after a while", 3), 3)


def test_events_that_cannot_be_stored_are_made_so() -> None:
    """Times, ranks, levels and texts are bounded; a sound event stays as it is."""
    good = wire.Event(5, "text", 1, "warning", "pause", "ada")
    assert sound(good, 2, 7) == good
    odd = sound(wire.Event(2**64, "x" * 10**6, 2, "fatal", "y" * 1000, "z" * 1000), 2, 7)
    assert (odd.at_ns, odd.rank, odd.level) == (7, None, "info")
    assert len(wire.encode(odd)) < 5000
