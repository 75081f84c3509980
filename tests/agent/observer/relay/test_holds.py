"""The time for which a rank was held is in no step of those that have waited for it."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from ddptop.agent import wire
from ddptop.agent.observer.relay.holds import Holds

MS = 1_000_000
BEGIN = 1_000_000 * MS
"""When the step of the others begins."""


def beat(rank: int, state: str, at_ms: int, held_ms: int | None = None, released_ms: int | None = None) -> wire.Beat:
    held, released = (None if each is None else BEGIN + each * MS for each in (held_ms, released_ms))
    return wire.Beat(rank, BEGIN + at_ms * MS, state, "", 5, None, 5, held_at_ns=held, released_at_ns=released)


def step(wall_ms: int, wait_ms: int | None, **changes: Any) -> wire.Step:
    own = wall_ms - (wait_ms or 0)
    wait_ns = None if wait_ms is None else wait_ms * MS
    record = wire.Step(6, 6, BEGIN + wall_ms * MS, wall_ms * MS, 0, 0, own * MS, 0, wait_ns, 0)
    return msgspec.structs.replace(record, **changes)


def taken(holds: Holds, record: wire.Step, rank: int = 1) -> wire.Step:
    (found,) = cast(wire.Steps, holds.take(wire.Steps(rank, (record,)))).steps
    return found


@pytest.mark.parametrize("is_over", [False, True])
def test_a_rank_that_waited_has_the_step_that_it_would_have_had(is_over: bool) -> None:
    """Of 3,050 ms it has waited 3,010, 3,000 of them for a rank that counts its memory; so has its collective."""
    holds = Holds()
    holds.take(beat(0, "held", 20, held_ms=10))
    if is_over:
        holds.take(beat(0, "running", 3_011, released_ms=3_010))
    call = wire.Collective("all_reduce", 20 * MS, 3_015 * MS, 4, 1)
    found = taken(holds, step(3_050, 3_010, collectives=(call,)))
    if is_over:
        assert (found.wall_ns, found.wait_ns, found.backward_ns) == (50 * MS, 10 * MS, 40 * MS)
        (cut,) = found.collectives
        assert (cut.entered_ns, cut.duration_ns) == (10 * MS, 25 * MS)
    else:
        # It is not known yet when it ended: no wait is left.
        assert (found.wall_ns, found.wait_ns, found.backward_ns) == (40 * MS, 0, 40 * MS)
    assert sum((found.backward_ns or 0, found.wait_ns or 0)) == found.wall_ns


def test_other_steps_and_other_pauses_stay_as_they_are() -> None:
    """A step before and one after it; a step of the rank itself, which begins it anew; and a pause, in which all are
    held.
    """
    holds = Holds()
    record = step(50, 10)
    assert taken(holds, record) == record
    holds.take(beat(1, "paused", 20, held_ms=10))
    assert taken(holds, record) == record
    holds.take(beat(0, "held", 110, held_ms=100))
    assert taken(holds, record) == record
    holds.take(beat(0, "running", 200, released_ms=200))
    late = msgspec.structs.replace(record, end_at_ns=BEGIN + 260 * MS)
    assert taken(holds, late) == late
    within = msgspec.structs.replace(record, end_at_ns=BEGIN + 180 * MS)
    assert taken(holds, within, rank=0) == within
    assert taken(holds, within).wall_ns == 40 * MS


def test_of_steps_that_are_only_counted_the_hold_is_left_out() -> None:
    """Their mean is then that of the recorded one, and not less."""
    holds = Holds()
    holds.take(beat(0, "held", -3_000, held_ms=-3_040))
    holds.take(beat(0, "running", -40, released_ms=-40))
    found = taken(holds, step(50, 10, counted=3, counted_ns=3_150 * MS))
    assert (found.wall_ns, found.counted_ns) == (50 * MS, 150 * MS)


def test_where_waits_are_not_known_the_longest_phase_has_it() -> None:
    """That in which the collective is."""
    holds = Holds()
    holds.take(beat(0, "held", 10, held_ms=10))
    holds.take(beat(0, "running", 3_010, released_ms=3_010))
    found = taken(holds, step(3_050, None))
    assert (found.wall_ns, found.backward_ns, found.wait_ns) == (50 * MS, 50 * MS, None)


def test_ranks_that_are_held_together_are_counted_once() -> None:
    """Two that overlap, and the mean over some steps that is all that is known of a large group."""
    holds = Holds()
    for rank, begin, end in ((0, 100, 400), (2, 300, 600)):
        holds.take(beat(rank, "held", begin, held_ms=begin))
        holds.take(beat(rank, "running", end, released_ms=end))
    assert taken(holds, step(700, 600)).wall_ns == 200 * MS
    summary = wire.Summary(1, 1, BEGIN + 1_000 * MS, 9, 9, 10, 100 * MS, 0, 0, 40 * MS, 0, 60 * MS, 0)
    found = cast(wire.Summary, holds.take(summary))
    assert (found.wall_ns, found.wait_ns) == (50 * MS, 10 * MS)


def test_a_hold_whose_end_was_not_heard_ends_with_the_next_one() -> None:
    """Later steps keep their waits; by the rank's own word, or else by the beginning of the next hold."""
    for released_ms in (300, None):
        holds = Holds()
        holds.take(beat(0, "held", 100, held_ms=100))
        holds.take(beat(0, "held", 5_000, held_ms=5_000, released_ms=released_ms))
        holds.take(beat(0, "running", 5_100, released_ms=5_100))
        assert taken(holds, step(700, 600)).wall_ns == (500 if released_ms else 100) * MS
        later = msgspec.structs.replace(step(700, 600), end_at_ns=BEGIN + 9_000 * MS)
        assert taken(holds, later) == later


def test_holds_that_are_long_over_are_forgotten_by_and_by() -> None:
    """Records are not read for their sake for the rest of a run."""
    holds = Holds()
    holds.take(beat(0, "held", 100, held_ms=100))
    holds.take(beat(1, "running", 3_600_000))
    assert holds
    holds.take(beat(0, "running", 3_600_100, released_ms=3_600_100))
    holds.take(beat(1, "running", 3_605_000))
    assert holds
    assert taken(holds, step(3_600_500, 3_600_400)).wall_ns == 500 * MS
    holds.take(beat(1, "running", 3_600_100 + 700_000))
    assert not holds
