"""The verdicts of the observer, as an onlooker tells them: lines at their own times, and the one that matters."""

from __future__ import annotations

from itertools import permutations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.screens.frames import frame_at

from ddptop.agent import wire
from ddptop.agent.observer.model.changes import Changes
from ddptop.agent.observer.model.store import Store
from ddptop.agent.record.floods import Flood
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire.frames import MOST_EVENTS, EventLine

S = 10**9


def verdict(number: int, since_s: int, until_s: int | None = None, share: float | None = 0.3) -> wire.Verdict:
    """Return a verdict against the rank of its number."""
    until = None if until_s is None else until_s * S
    return wire.Verdict(number, "slow_rank", f"rank {number} is slow", since_s * S, until, number, "data", 5.0, share)


def told(changes: Changes) -> list[tuple[float, str]]:
    return [(event.at, event.text) for event in changes.events]


def test_a_verdict_is_told_at_its_beginning_and_at_its_end_each_once():
    """However often it is repeated and its figures change; the lines have the times of the interval."""
    changes = Changes(0.0)
    changes.note_verdicts(5 * S, (verdict(1, 3),))
    changes.note_verdicts(6 * S, (wire.Verdict(1, "slow_rank", "rank 1 is slower", 3 * S),))
    assert changes.verdicts
    assert (changes.verdicts[0].text, changes.verdicts[0].since_at_ns) == ("rank 1 is slower", 3 * S)
    for at in (8, 9):
        changes.note_verdicts(at * S, ())
    assert not changes.verdicts
    assert told(changes) == [(3, "rank 1 is slow"), (8, "no longer: rank 1 is slow")]


def test_the_line_of_code_behind_a_verdict_is_told_when_it_is_found():
    """Once, some seconds after the beginning; of a verdict that has it when it is heard first it is in its own line."""
    changes = Changes(0.0)
    found = msgspec.structs.replace(verdict(1, 3), line="train.py:88 load", line_share=0.86)
    with_it = msgspec.structs.replace(verdict(2, 4), text="rank 2 is slow \u00b7 train.py:9 f", line="train.py:9 f")
    for at, present in ((5, (verdict(1, 3),)), (9, (found, with_it)), (10, (found, with_it))):
        changes.note_verdicts(at * S, present)
    assert told(changes) == [
        (3, "rank 1 is slow"),
        (4, "rank 2 is slow \u00b7 train.py:9 f"),
        (9, "rank 1: 86% of that delay is at train.py:88 load"),
    ]


def test_a_hang_is_told_with_how_long_it_lasted():
    """At its beginning as an error, and at its end; without the time that it had lasted when it was first told."""
    text = "rank 1 hangs: it never came · train.py:31 main"
    hang = wire.Hang("not_entered", (1,))
    changes = Changes(0.0)
    for at, age in ((12, 9), (13, 10)):
        verdict = wire.Verdict(1, "hang", f"{text} · {age} s", 3 * S, rank=1, hang=hang)
        changes.note_verdicts(at * S, (verdict,))
    changes.note_verdicts(45 * S, ())
    assert told(changes) == [(3.0, text), (45.0, f"over after 42 s: {text}")]
    assert [event.level for event in changes.events] == ["error", "info"]


def test_an_event_that_the_record_counts_is_one_line() -> None:
    """Heard, and read as one of many: the line that was there first stays, because the others were heard, too."""
    event = wire.Event(5 * S, "a bucket was rebuilt", 1, "info")
    flood = Flood(clock=lambda: 0.0)
    lines = [EventLine(5.0, event.text, 1, "info")]
    flood.rows_of(event, 1)
    for repetitions in (1, 1300):
        for _ in range(repetitions):
            flood.rows_of(event, 1)
        ((_, (payload, _)),) = flood.settle()
        counted = wire.read_telemetry(payload)
        assert isinstance(counted, wire.Event)
        lines.append(EventLine(5.0, counted.text, 1, "info"))
    for order in permutations(lines):
        changes = Changes(0.0)
        for line in (*order, EventLine(5.0, event.text, 2, "info"), EventLine(5.0, "another", 1, "info")):
            changes.add(line)
        assert [each.text for each in changes.events] == [order[0].text, event.text, "another"]


def test_the_first_of_several_verdicts_is_shown_and_all_are_listed():
    """The observer's order is the order; what it leaves out has ended."""
    changes = Changes(0.0)
    changes.note_verdicts(5 * S, (verdict(2, 4), verdict(1, 3, share=None)))
    assert changes.verdicts
    assert changes.verdicts[0].rank == 2
    changes.note_verdicts(6 * S, (verdict(1, 3, share=None),))
    assert changes.verdicts[0].rank == 1
    assert told(changes) == [(3, "rank 1 is slow"), (4, "rank 2 is slow"), (6, "no longer: rank 2 is slow")]


def test_what_was_before_the_attach_stands_among_the_other_events():
    """Recorded intervals go where they belong by time, and are not begun again by what the observer says of now."""
    changes = Changes(0.0)
    for at in (1.0, 5.0, 9.0):
        changes.add(EventLine(at, f"event {at:.0f}", None, "info"))
    changes.note_verdicts(20 * S, (verdict(2, 7),))
    for recorded in (verdict(1, 2, 6), verdict(2, 7), verdict(1, 2, 6)):
        changes.recall_verdict(recorded)
    assert told(changes) == [
        (1, "event 1"), (2, "rank 1 is slow"), (5, "event 5"), (6, "no longer: rank 1 is slow"),
        (7, "rank 2 is slow"), (9, "event 9"),
    ]  # fmt: skip
    assert changes.verdicts
    assert changes.verdicts[0].rank == 2


def test_a_record_that_is_behind_or_ahead_of_the_observer():
    """A verdict ended meanwhile, or begun after the last message: each line once, whoever told first."""
    changes = Changes(0.0)
    changes.note_verdicts(10 * S, ())
    changes.recall_verdict(verdict(1, 12))
    changes.note_verdicts(11 * S, ())
    assert changes.verdicts, "it began after that message"
    changes.note_verdicts(13 * S, ())
    changes.recall_verdict(verdict(1, 12))
    assert not changes.verdicts, "the record was read too early to know of the end"
    assert told(changes) == [(12, "rank 1 is slow"), (13, "no longer: rank 1 is slow")]


def test_a_verdict_that_another_observer_finds_again_goes_on():
    """An observer that takes over needs a while to judge; what it finds under the same number had not ended."""
    changes = Changes(0.0)
    for at, present in ((5, (verdict(1, 3),)), (6, ()), (9, (verdict(1, 3),)), (12, ())):
        changes.note_verdicts(at * S, present)
    assert told(changes) == [(3, "rank 1 is slow"), (12, "no longer: rank 1 is slow")]


def test_a_share_that_is_hidden_is_in_no_line():
    """A verdict below the setting has neither beginning nor end; the next one is shown instead."""
    changes = Changes(0.5)
    changes.note_verdicts(5 * S, (verdict(1, 3, share=0.4), verdict(2, 4, share=0.6)))
    assert changes.verdicts
    assert changes.verdicts[0].rank == 2
    changes.note_verdicts(6 * S, ())
    changes.recall_verdict(verdict(3, 1, 2, share=0.4))
    assert told(changes) == [(4, "rank 2 is slow"), (6, "no longer: rank 2 is slow")]


def test_an_ended_run_shows_what_went_on_at_its_end():
    """Of the recorded verdicts without an end, the one that costs most: the record does not tell which was first."""
    store = Store(Run("toy-1", "id", "toy.py", (), 4, "gloo", "cpu", S, True, state="finished"))
    for recorded in (verdict(1, 2, 6), verdict(2, 7, share=0.1), verdict(3, 8, share=0.2)):
        store.changes.recall_verdict(recorded)
    frame = frame_at(store, 100.0)
    assert frame.verdict is not None
    assert frame.verdict.rank == 3
    assert [event.text for event in frame.events][-1] == "rank 3 is slow"


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_all_onlookers_come_to_the_same_verdict_and_lines(data: st.DataObject) -> None:
    """Whenever somebody attaches: what he shows, and his lines of intervals that had begun, are those of the first."""
    going_on: dict[int, wire.Verdict] = {}
    recorded: dict[int, wire.Verdict] = {}
    first, later = Changes(0.0), None
    attach = data.draw(st.integers(0, 6))
    for at in range(1, 9):
        for number in data.draw(st.sets(st.integers(1, 4), max_size=2)):
            if number in going_on:
                recorded[number] = verdict(number, going_on.pop(number).since_at_ns // S, at)
            elif number not in recorded:
                recorded[number] = going_on[number] = verdict(number, at)
        present = tuple(going_on.values())
        first.note_verdicts(at * S, present)
        if at > attach:
            if later is None:
                later = Changes(0.0)
                early = data.draw(st.booleans())
                if early:
                    later.note_verdicts(at * S, present)
                for each in recorded.values():
                    later.recall_verdict(each)
            later.note_verdicts(at * S, present)
            assert later.verdicts[:1] == first.verdicts[:1]
            # What begins and what ends at the same moment may be in either order.
            assert sorted(told(later)) == sorted(told(first))


def test_events_and_verdicts_are_bounded():
    """However many verdicts an observer tells of, only so many are held; the newest lines remain."""
    changes = Changes(0.0)
    for number in range(3 * MOST_EVENTS):
        changes.note_verdicts(number * S + 1, (verdict(number, number),))
    assert len(changes.events) == MOST_EVENTS
    assert f"rank {3 * MOST_EVENTS - 1} is slow" in [event.text for event in changes.events]
    assert max(len(changes._begun), len(changes._ended)) <= MOST_EVENTS


def test_an_event_that_is_heard_and_recorded_is_one_line():
    """The same at the same moment is one event; another text, rank or moment is another one."""
    changes = Changes(0.0)
    for at, text, rank in ((1.0, "a", 0), (1.0, "b", 0), (1.0, "a", 1), (2.0, "a", 0), (1.0, "a", 0), (1.0, "b", 0)):
        changes.add(EventLine(at, text, rank, "info"))
    assert told(changes) == [(1.0, "a"), (1.0, "b"), (1.0, "a"), (2.0, "a")]
