"""Events: all are written, and repeats once with their number."""

from __future__ import annotations

import sqlite3

from support.fakes.clocks import Clock

from ddptop.agent import wire
from ddptop.agent.record import floods
from ddptop.agent.record.floods import OBSERVER, Flood, sound
from ddptop.agent.record.recording import Row


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
        rows += flood.settle()
    clock.now += floods.REPEAT_S + 1
    rows += flood.rows_of(wire.Event(200, "loss is nan", 0, "error"), 0)
    for number in range(2):
        rows += flood.rows_of(wire.Event(201 + number, "paused", None, "info", "pause", "ada"), OBSERVER)
    rows += flood.settle()
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
    told = texts(rows + flood.settle())
    assert len(told) == 1
    assert told[0].startswith("all work and no play")
    assert told[0].endswith("(7 times within a minute of each other)")


def test_events_that_cannot_be_stored_are_made_so() -> None:
    """Times, ranks, levels and texts are bounded; a sound event stays as it is."""
    good = wire.Event(5, "text", 1, "warning", "pause", "ada")
    assert sound(good, 2, 7) == good
    odd = sound(wire.Event(2**64, "x" * 10**6, 2, "fatal", "y" * 1000, "z" * 1000), 2, 7)
    assert (odd.at_ns, odd.rank, odd.level) == (7, None, "info")
    assert len(wire.encode(odd)) < 5000
