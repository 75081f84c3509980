"""The whole judgement: whatever comes in, verdicts that can be sent come out, and nothing grows."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes.groups import Group, slow
from support.fakes.judges import Judge
from support.values.hostile import structs

from ddptop.agent import wire
from ddptop.agent.observer.judge.blocks import MOST_ROWS
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.wire import VERDICT_KINDS

LARGE = wire.EACH_RECORD + 2


def check(judge: Judge, now_ns: int) -> None:
    """Verdicts can be read by whoever gets them, and are what was sent."""
    sent = wire.Recorded((), judge.verdicts(now_ns))
    assert wire.read_recorded(wire.encode(sent)) == sent
    for verdict in judge.ended():
        assert verdict.until_at_ns is not None
        assert 0 <= verdict.since_at_ns <= verdict.until_at_ns


@settings(deadline=None, max_examples=60)
@given(
    world=st.sampled_from([1, 2, 3, LARGE]),
    told=st.lists(
        structs(wire.Steps) | structs(wire.Beat) | structs(wire.Sampled) | structs(wire.Summary), max_size=12
    ),
    now=st.integers(0, 2**63 - 1),
)
def test_nothing_that_can_be_read_raises(world: int, told: list[wire.Telemetry], now: int) -> None:
    """Any numbers of any ranks in any order."""
    judge = Judge(world)
    for message in told:
        judge.take(wire.read_telemetry(wire.encode(message)))
        check(judge, now)
    judge.restart(3)
    check(judge, now)
    judge.close(now)


SPANS = st.sampled_from([0, 1, -1, 10**6, 10**8, 2**53, -(2**53)])


@settings(deadline=None, max_examples=25)
@given(
    world=st.sampled_from([2, 3, LARGE]),
    drawn=st.lists(st.tuples(*[SPANS] * 8, st.none() | SPANS, st.integers(0, 2**63 - 1)), min_size=1, max_size=6),
    unseen=st.booleans(),
)
def test_whole_steps_of_any_spans_are_judged(world, drawn, unseen):
    """Spans of weeks, of nothing and below zero, in groups that are complete, for so long that all is looked at."""
    judge = Judge(world)
    for number in range(1, 91 if world < LARGE else 12):
        for rank in range(world):
            wall, data, forward, backward, optimizer, other, samples, starved, wait, at_ns = drawn[
                (number * 7 + rank) % len(drawn)
            ]
            wait = None if unseen else wait or 0
            if world == LARGE:
                judge.summary(
                    wire.Summary(
                        rank, number, at_ns, number, number, 1, wall, data, forward, backward, optimizer, wait, other,
                        samples=float(abs(samples)), starved_ns=starved,
                    )
                )  # fmt: skip
            else:
                step = wire.Step(
                    number, number, at_ns, wall, data, forward, backward, optimizer, wait, other,
                    samples=abs(samples), starved_ns=starved,
                )  # fmt: skip
                judge.steps(rank, (step,), 0)
        check(judge, 10**18 + number * 10**9)


def test_steps_that_took_no_time_have_no_endless_share():
    """A lead of a hundred days in steps of nothing is still a verdict that can be read."""
    judge, most = Judge(2), 2**53
    for number in range(1, 12_000):
        for rank in range(2):
            own = most if rank else 0
            judge.steps(rank, (wire.Step(number, number, number, 0, own, 0, 0, 0, 0, 0),), 0)
    assert judge.verdicts(10**18) != ()
    check(judge, 10**18 + 10**9)


@pytest.mark.parametrize("ms", [0.2, 60.0])
def test_a_long_run_takes_no_more_than_a_short_one(ms):
    """What is held of the steps is bounded, whatever a step takes."""
    usual = dict.fromkeys(("data", "forward", "backward", "optimizer", "other"), ms / 5)
    group, judge = Group(2, 1, **usual), Judge(2)
    group.transfer = 0.05
    for _ in range(3):
        for rank, record in group.steps(1500 if ms < 1 else 300, slow(0, "data", ms, every=2)):
            judge.steps(rank, (record,), 0)
        evidence = judge._slow_rank.evidence
        assert sum(rows.table.size for rows in evidence.rows) <= 9 * (MOST_ROWS + 2 * 1024)
        assert all(len(windows) <= 128 for windows in evidence.windows.values())
        assert len(judge.join._steps) <= 1


def test_records_that_come_again_or_late_count_once():
    """A fill repeats what was heard: the verdict is the one without it."""
    group, once, twice = Group(2, seed=1), Judge(2), Judge(2)
    records = list(group.steps(150, slow(1, "data", 30, since=51)))
    for at, (rank, record) in enumerate(records):
        once.steps(rank, (record,), 0)
        twice.steps(rank, [each for other, each in records[max(0, at - 40) : at + 1] if other == rank], 0)
        assert once.verdicts(record.end_at_ns) == twice.verdicts(record.end_at_ns)
    assert once.verdicts(group.at_ns) != ()


def test_a_restart_ends_what_was_told_and_counts_on():
    """The old ranks' verdict ends with their last step; the numbers go on; late records of theirs are nobody's."""
    group, judge = Group(2, seed=2), Judge(2)
    for rank, record in group.steps(120, slow(1, "data", 30)):
        judge.steps(rank, (record,), 0)
        judge.verdicts(record.end_at_ns)
    last_at_ns = group.at_ns
    late = list(group.steps(1))
    judge.verdicts(last_at_ns + 60 * 10**9)
    judge.restart(1)
    (ended,) = judge.ended()
    assert (ended.number, ended.generation, ended.until_at_ns) == (1, 0, last_at_ns)
    for rank, record in late:
        judge.steps(rank, (record,), 0)
    group.step = 0
    for rank, record in group.steps(120, slow(1, "data", 30)):
        judge.steps(rank, (record,), 1)
    (verdict,) = judge.verdicts(group.at_ns)
    assert (verdict.number, verdict.generation) == (2, 1)
    assert verdict.since_at_ns >= last_at_ns


def test_nothing_holds_a_run_back_that_hangs():
    """A hang ends the verdict on a slow rank and comes first; a run that only stands leaves it, and comes last."""
    group, judge = Group(2, seed=2), Judge(2)
    for rank, record in group.steps(120, slow(1, "data", 30)):
        judge.steps(rank, (record,), 0)
    now = group.at_ns
    assert [each.kind for each in judge.verdicts(now)] == ["slow_rank"]
    judge.stand(wire.Verdict(0, "standing", "no step", now, hang=wire.Hang("all_outside")), None)
    assert [each.kind for each in judge.verdicts(now + 10**9)] == ["slow_rank", "standing"]
    hang = wire.Hang("stopped", (0,), where="train.py:3 main")
    judge.stand(wire.Verdict(0, "hang", "rank 0 hangs", now, rank=0, urgent=True, hang=hang), None)
    (verdict,) = judge.verdicts(now + 2 * 10**9)
    assert (verdict.kind, verdict.rank, verdict.hang) == ("hang", 0, hang)
    judge.stand(None, now + 3 * 10**9)
    judge.verdicts(now + 5 * 10**9)
    ended = {each.kind: each.until_at_ns for each in judge.ended()}
    assert ended["hang"] == now + 3 * 10**9


def test_the_beginning_is_the_time_of_its_step():
    """Of the step that is named, as its records say, and not of the moment in which it is told."""
    group, judge = Group(4, seed=3), Judge(4)
    ends = {}
    for rank, record in group.steps(200, slow(1, "data", 30, since=101)):
        ends[record.step] = record.end_at_ns
        judge.steps(rank, (record,), 0)
        judge.verdicts(record.end_at_ns)
    (verdict,) = judge.verdicts(group.at_ns)
    assert verdict.since_step is not None
    assert abs(verdict.since_step - 101) <= 2
    assert verdict.since_at_ns == ends[verdict.since_step]
    judge.close(group.at_ns)
    (ended,) = judge.ended()
    assert ended.until_at_ns == group.at_ns
    assert msgspec.structs.replace(ended, until_at_ns=None) == verdict
    judge.close(group.at_ns)
    assert judge.ended() == []


def test_an_importer_of_the_agent_loads_no_numpy():
    """A rank is not made to load what the judge needs."""
    code = (
        "import sys, ddptop.agent, ddptop.agent.wire, ddptop.agent.text, ddptop.agent.rank;"
        "sys.exit(', '.join(name for name in sys.modules if name == 'numpy' or '.judge' in name) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_kind_that_is_found_is_described():
    """In the one table that the manual and the list of runs go by, and nothing else is in there."""
    found = {kind for finder in Finder.__subclasses__() for kind in finder.kinds}
    assert found | {"hang", "standing"} == VERDICT_KINDS.keys()
