"""Whatever ranks claim: nothing raises, and what is told can be sent and read."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.values.hostile import structs

from ddptop.agent import wire
from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.observer.judge.hang.watch import Watch
from ddptop.agent.observer.judge.intervals import Intervals

BEGIN = 1_800_000_000 * ONE


def readable(intervals: Intervals, watch: Watch, now_ns: int) -> None:
    """Assert that what is told is what its readers get."""
    finding = watch.finding(now_ns)
    intervals.update([] if finding is None else [finding], {}, now_ns)
    sent = wire.Recorded((), intervals.verdicts)
    assert wire.read_recorded(wire.encode(sent)) == sent


@settings(deadline=None, max_examples=60)
@given(
    world=st.sampled_from([1, 2, 3]),
    told=st.lists(structs(wire.Beat) | structs(wire.Summary), max_size=6),
    answers=st.lists(st.tuples(st.lists(structs(wire.Inspection), max_size=3), st.integers(1, 40)), max_size=6),
    inside=st.booleans(),
)
def test_nothing_that_can_be_read_raises(world, told, answers, inside):
    """Any heartbeats, and any answers to the questions that follow, also with names of any length."""
    watch, intervals, now_ns = Watch(world), Intervals(1, 0), BEGIN
    for rank in range(world):
        watch.progress.meet(rank, now_ns)
    for message in told:
        now_ns += ONE
        if isinstance(message, wire.Summary):
            watch.progress.summary(msgspec.structs.replace(message, rank=message.rank % world))
        else:
            watch.beat(msgspec.structs.replace(message, rank=message.rank % world, state="running"), now_ns)
    for inspections, seconds in answers:
        now_ns += seconds * ONE
        if watch.stands(now_ns) and watch.question(now_ns) is not None:
            found = {}
            for inspection in inspections:
                rank = inspection.rank % world
                # Inspections of a process that goes on are compared.
                told_by = "agent" if inside else inspection.by
                found[rank] = msgspec.structs.replace(inspection, rank=rank, pid=1, by=told_by, observed=inside)
            watch.answer(found, now_ns)
        readable(intervals, watch, now_ns)
