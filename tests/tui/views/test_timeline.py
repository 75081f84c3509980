"""One step on one axis: what is measured stands where it was, and nothing is lost or invented."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import msgspec
import pytest

from ddptop.agent.record.history.aligned import Clocks, align
from ddptop.agent.wire import Collective, Step
from ddptop.agent.wire.frames import Clock
from ddptop.agent.wire.incoming import cleaned
from ddptop.tui.drawing.lines import width_of
from ddptop.tui.drawing.theme import DARK, ink
from ddptop.tui.views.timeline import lines
from ddptop.tui.views.timeline.spans import Timeline, lay_phases, timeline

INK = ink(DARK.name)


def step(start: int, *phases: int, wait: int | None = 0, calls: tuple[Collective, ...] = ()) -> Step:
    """A step of data, forward, backward, optimizer, other and waiting."""
    data, forward, backward, optimizer, other = phases
    wall = sum(phases) + (wait or 0)
    return Step(1, 1, start + wall, wall, data, forward, backward, optimizer, wait, other, collectives=calls)


def reduce(entered: int, duration: int | None, **more) -> Collective:
    return Collective("all_reduce", entered, duration, 1 << 20, 1, group="0", **more)


def lengths(record: Step) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for span in lay_phases(record, 0):
        found[span.phase] += span.end - span.begin
    return dict(found)


def test_every_phase_is_as_long_as_it_was_measured() -> None:
    """Whatever collectives there were, the spans are gapless, in order, and add up to the record."""
    rng = random.Random(5)
    for _ in range(500):
        phases = [rng.randrange(0, 200) for _ in range(5)]
        wait = rng.choice([None, 0, rng.randrange(1, 300)])
        calls = tuple(
            reduce(rng.randrange(0, 900), rng.choice([None, rng.randrange(1, 400)]), blocking=rng.random() < 0.5)
            for _ in range(rng.randrange(0, 5))
        )
        record = step(0, *phases, wait=wait, calls=calls)
        copied = rng.choice([0, rng.randrange(1, 100)])
        record = msgspec.structs.replace(record, copy_ns=copied or None, wall_ns=record.wall_ns + copied)
        names = ("data", "forward", "backward", "optimizer", "other", "wait", "copy")
        wanted = {name: value for name, value in zip(names, (*phases, wait or 0, copied), strict=True) if value}
        assert lengths(record) == wanted
        at = 0
        for span in lay_phases(record, 0):
            assert span.begin == at
            at = span.end
        assert at == record.wall_ns


def test_a_blocking_call_waits_where_it_stood() -> None:
    """A broadcast in the middle of the forward pass cuts it in two."""
    record = step(0, 10, 40, 50, 10, 0, wait=20, calls=(reduce(30, 20, blocking=True),))
    assert [(span.phase, span.begin, span.end) for span in lay_phases(record, 0)] == [
        ("data", 0, 10), ("forward", 10, 30), ("wait", 30, 50), ("forward", 50, 70), ("backward", 70, 120),
        ("optimizer", 120, 130),
    ]  # fmt: skip


def test_the_wait_for_buckets_ends_when_the_last_is_done() -> None:
    """DDP's wait stands between backward and optimizer; what is left before it is `other`."""
    calls = (reduce(60, 40), reduce(105, 30))
    record = step(0, 10, 40, 50, 15, 10, wait=30, calls=calls)
    spans = {span.phase: (span.begin, span.end) for span in lay_phases(record, 0)}
    assert spans["wait"] == (105, 135)
    assert spans["backward"] == (55, 105)
    assert spans["optimizer"] == (135, 150)


def drawn(number: int, steps: dict[int, Step], world: int, clocks: Clocks | None = None) -> Timeline:
    """Lay out one step as the record of the run compares it."""
    return timeline(number, {each.rank: each for each in align(steps, world, clocks)})


def laid(clocks: Clocks | None = None) -> Timeline:
    """Rank 1 comes 30 late to the first bucket."""
    return drawn(
        7,
        {
            0: step(
                1000, 10, 20, 30, 10, 0, wait=40, calls=(reduce(50, 50), Collective("send", 60, 5, 8, 1, group="0"))
            ),
            1: step(1005, 40, 20, 30, 10, 0, wait=5, calls=(reduce(75, 20, estimated=True),)),
        },
        2,
        clocks,
    )


STANDING = lines.Position(0, 1, True)


def test_who_came_last_is_known_on_one_clock() -> None:
    """Waiting ends when the late rank enters; the ranks' own starts are kept apart on the axis."""
    line = laid()
    first, second = line.lanes
    assert (first.begin, second.begin) == (0, 5)
    assert line.length == max(first.end, second.end) == 110
    assert (first.bars[0].entered, first.bars[0].begun, first.bars[0].done) == (50, 80, 100)
    assert [bar.last for bar in first.bars] == [1, None]
    assert second.bars[0].estimated
    assert line.spread(first.bars[0]) == 30
    assert line.latest() == 1


def test_several_clocks_are_not_compared() -> None:
    """Each rank begins at zero, nobody is called the last, and the screen says so."""
    line = laid(clocks=lambda rank: None)
    assert [lane.begin for lane in line.lanes] == [0, 0]
    assert {bar.last for lane in line.lanes for bar in lane.bars} == {None}
    assert line.latest() is None
    assert "clock not compared" in text_of(lines.legend(line, 100, INK))


def clocks(offset_ns: int, error_ns: int) -> dict[int, Clock]:
    """Return the clocks of two hosts, of which that of rank 1 is so far ahead of the head's."""
    return {0: Clock(0, 0, 0), 1: Clock(1, offset_ns, error_ns)}


def test_a_foreign_clock_is_set_right_by_its_offset() -> None:
    """With a clock that is 700 ns ahead on the other host, all is drawn as it is on one clock."""
    there = {
        0: step(1000, 10, 20, 30, 10, 0, wait=40, calls=(reduce(50, 50),)),
        1: step(1705, 40, 20, 30, 10, 0, wait=5, calls=(reduce(75, 20),)),
    }
    here = {**there, 1: step(1005, 40, 20, 30, 10, 0, wait=5, calls=(reduce(75, 20),))}
    told = drawn(1, there, 2, clocks(700, 2).get)
    same = drawn(1, here, 2)
    assert told.lanes == same.lanes
    assert (told.aligned, told.error, same.error) == (True, 2, 0)
    assert "clocks ±2.50 ms" in text_of(lines.title(replace(told, error=2_500_000), STANDING, (0, 1), 120, INK, ""))


def test_who_came_last_is_an_estimate_where_the_clocks_do_not_tell() -> None:
    """The last rank came 30 ns after the other: it is sure with an error of 29 ns, and not with one of 30."""
    records = {
        0: step(1000, 10, 20, 30, 10, 0, wait=40, calls=(reduce(50, 50),)),
        1: step(1005, 40, 20, 30, 10, 0, wait=5, calls=(reduce(75, 20),)),
    }
    for error, estimated in ((29, False), (30, True)):
        line = drawn(1, records, 2, clocks(0, error).get)
        assert [bar.estimated for lane in line.lanes for bar in lane.bars] == [estimated] * 2


def test_a_host_without_an_offset_is_drawn_as_uncertain() -> None:
    """Its ranks begin at zero under a sign of their own; those with a known clock are compared all the same."""
    records = {rank: step(1000 + rank, 40, 20, 30, 10, 0, calls=(reduce(75, 20),)) for rank in range(3)}
    known = {0: Clock(0, 0, 0), 1: Clock(0, 0, 0)}
    line = drawn(1, records, 3, known.get)
    assert [lane.compared for lane in line.lanes] == [True, True, False]
    assert [lane.begin for lane in line.lanes] == [0, 1, 0]
    assert [bar.last for lane in line.lanes for bar in lane.bars] == [1, 1, None]
    assert line.lanes[0].bars[0].estimated, "the third may have come later"
    assert lines.UNSURE in text_of(lines.calls(line.lanes[2], line.length, line.length, INK))
    assert "some clocks not compared" in text_of(lines.title(line, STANDING, (0, 1, 2), 120, INK, ""))


def text_of(row) -> str:
    return "".join(segment.text for segment in row)


def test_the_signs_stand_where_the_collective_was() -> None:
    """One cell for each ns: waiting, transfer, the last to come, and the mark of an estimate."""
    line = laid()
    early, late = (text_of(lines.calls(lane, line.length, line.length, INK)) for lane in line.lanes)
    assert early[50:60] == lines.WAITS * 10
    assert early[80] == "~"
    assert early[81:100] == lines.MOVES * 19
    assert early[100:].strip() == ""
    assert late.index(lines.LAST) == 80
    assert lines.LAST not in early


def test_what_is_not_known_is_said_in_the_details() -> None:
    """A send has no last one, a call without an end no length, a rank without a record no lane."""
    line = laid()
    rows = [text_of(row) for row in lines.details(line, line.lane(0), 0, 6, 120, INK)]
    assert "rank 1 by 0.0 ms after the first" in rows[1]
    assert "not to be split" in rows[2]
    assert "no record" in text_of(lines.details(line, line.lane(5), 5, 6, 120, INK)[0])
    unseen = drawn(1, {0: step(0, 1, 1, 1, 1, 1, calls=(reduce(1, None),))}, 1)
    assert "–" in text_of(lines.details(unseen, unseen.lane(0), 0, 6, 120, INK)[1])


@pytest.mark.parametrize("width", [60, 120])
def test_calls_that_are_left_out_are_counted(width: int) -> None:
    """Of five calls in three lines the heading says that two are shown; of five in six lines, that there are five."""
    line = drawn(1, {0: step(0, 10, 20, 30, 10, 0, calls=tuple(reduce(at, 5) for at in range(5)))}, 1)
    few, all_ = (lines.details(line, line.lane(0), 0, room, width, INK) for room in (3, 6))
    assert (len(few), len(all_)) == (3, 6)
    assert "rank 0: 2 of 5 calls " in text_of(few[0])
    assert "rank 0: 5 calls " in text_of(all_[0])


def test_rows_stay_in_their_cells() -> None:
    """At any width, with a foreign name for an operation; no escape sequence comes through."""
    evil = cleaned(Collective("all_reduce\x1b[31m[red]", 5, 20, 2**62, 1))
    line = drawn(2**62, {rank: step(rank, 10, 20, 30, 10, 0, calls=(evil,) * 9) for rank in (0, 1)}, 2)
    for width in (1, 5, 20, 80, 300):
        lane = line.lanes[0]
        for row in (
            lines.phases(lane, line.length, width, INK),
            lines.calls(lane, line.length, width, INK),
            lines.axis(line.length, width, 0, INK),
        ):
            assert width_of(row) <= width
        assert "\x1b" not in "".join(map(text_of, lines.details(line, lane, 0, 4, width, INK)))
    assert len(lines.details(line, line.lanes[0], 0, 4, 80, INK)) == 4
