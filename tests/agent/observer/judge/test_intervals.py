"""Verdicts as intervals: numbers, beginnings and ends."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.observer.judge.intervals import RESUMED_NS, Intervals
from ddptop.agent.wire import Hang, Verdict

SECOND = 10**9
SLOW = Verdict(0, "slow_rank", "rank 1", 3 * SECOND, rank=1, phase="data", cost_ms=5.0)
MEMORY = Verdict(0, "memory_creep", "memory", SECOND, rank=0)
FINDINGS = st.builds(
    Verdict,
    number=st.just(0),
    kind=st.sampled_from(["slow_rank", "memory_creep", "health", "taking_turns", "hang"]),
    text=st.text(max_size=5),
    rank=st.none() | st.integers(0, 2),
    phase=st.none() | st.sampled_from(["data", "forward"]),
    cost_ms=st.none() | st.floats(0, 100),
    since_at_ns=st.integers(0, 2**63 - 1),
    urgent=st.booleans(),
)


def over(intervals: Intervals) -> list[Verdict]:
    """Return the changes that are ends."""
    return [verdict for verdict in intervals.changes() if verdict.until_at_ns is not None]


def test_a_verdict_keeps_the_time_at_which_it_was_first_told():
    """Its beginning lies before that; figures that change and another observer leave it as it was."""
    intervals = Intervals(1, 0)
    for second in (10, 15):
        intervals.update([SLOW], {}, second * SECOND)
        (verdict,) = intervals.verdicts
        assert (verdict.since_at_ns, verdict.told_at_ns) == (3 * SECOND, 10 * SECOND)
    successor = Intervals(1, 0)
    successor.resume([verdict], 0)
    successor.update([SLOW], {}, 30 * SECOND)
    assert successor.verdicts[0].told_at_ns == 10 * SECOND
    assert Verdict(1, "hang", "", 5).told_at_ns == 5


@settings(deadline=None, max_examples=80)
@given(
    moments=st.lists(
        st.tuples(
            st.lists(FINDINGS, max_size=4),
            st.dictionaries(st.sampled_from(["slow_rank", "health"]), st.none() | st.integers(0, 2**63 - 1)),
            st.integers(-5, 20),
        ),
        max_size=25,
    )
)
def test_intervals_of_an_accusation_never_overlap(moments):
    """Whatever is found and however clocks go: consecutive numbers, and since before until before the next since."""
    intervals, now, seen = Intervals(7, 0), 100 * SECOND, dict[int, Verdict]()
    for findings, ceased, seconds in moments:
        now += seconds * SECOND
        intervals.update(findings, ceased, now)
        for verdict in (*intervals.verdicts, *over(intervals)):
            before = seen.get(verdict.number)
            assert before is None or before.until_at_ns is None
            assert before is None or before.since_at_ns == verdict.since_at_ns
            seen[verdict.number] = verdict
    intervals.close(now)
    seen |= {verdict.number: verdict for verdict in over(intervals)}
    assert sorted(seen) == list(range(7, 7 + len(seen)))
    until: dict[object, int] = {}
    for _, verdict in sorted(seen.items()):
        accused = verdict.kind if verdict.kind in ("health", "hang") else (verdict.kind, verdict.rank, verdict.phase)
        assert verdict.until_at_ns is not None
        assert verdict.since_at_ns <= verdict.until_at_ns
        if moments and all(seconds >= 0 for _, _, seconds in moments):
            assert verdict.since_at_ns >= until.get(accused, 0)
        until[accused] = verdict.until_at_ns


def test_what_goes_on_keeps_its_number_and_its_text_for_a_second():
    """Figures move ten times a second; the line does not."""
    intervals = Intervals(1, 0)
    texts = []
    for tenth in range(25):
        now = 10 * SECOND + tenth * SECOND // 10
        intervals.update([Verdict(0, "slow_rank", f"{tenth}", SECOND, rank=1)], {}, now)
        (verdict,) = intervals.verdicts
        texts.append(verdict.text)
        assert (verdict.number, verdict.since_at_ns) == (1, SECOND)
    assert list(dict.fromkeys(texts)) == ["0", "10", "20"]


def test_figures_that_change_are_recorded_seldom():
    """Beginning and end at once, what is between every ten seconds, and what does not change not at all."""
    intervals, changes = Intervals(1, 0), []
    for second in range(10, 50):
        finding = msgspec.structs.replace(SLOW, cost_ms=float(min(second, 39)))
        intervals.update([finding], {}, second * SECOND)
        changes += intervals.changes()
    assert [verdict.cost_ms for verdict in changes] == [10.0, 20.0, 30.0, 39.0]
    intervals.close(51 * SECOND)
    (end,) = intervals.changes()
    assert (end.number, end.cost_ms, end.until_at_ns) == (1, 39.0, 51 * SECOND)


def test_it_ends_when_it_ceased_and_not_when_that_was_noticed():
    """Once each, with the time that the judge gives; without one, or with one of before it began, now."""
    intervals = Intervals(1, 0)
    intervals.update([SLOW, MEMORY], {}, 10 * SECOND)
    intervals.update([MEMORY], {"slow_rank": 8 * SECOND}, 12 * SECOND)
    (ended,) = over(intervals)
    assert (ended.kind, ended.since_at_ns, ended.until_at_ns) == ("slow_rank", 3 * SECOND, 8 * SECOND)
    intervals.update([], {"memory_creep": SECOND // 2}, 13 * SECOND)
    (ended,) = over(intervals)
    assert ended.until_at_ns == 13 * SECOND
    assert over(intervals) == []


def test_what_ends_the_training_comes_first():
    """A hang, numbers that are not finite, then what is about to end it, then what costs most of it, then the rest."""
    findings = [
        Verdict(0, "standing", "", 0, rank=2),
        MEMORY,
        SLOW,
        Verdict(0, "communication_bound", "", 0, cost_ms=50.0),
        Verdict(0, "memory_creep", "", 0, rank=3, urgent=True),
        Verdict(0, "health", "", 0, urgent=True),
        Verdict(0, "hang", "", 0, rank=2, urgent=True),
    ]
    intervals = Intervals(1, 0)
    intervals.update(findings, {}, 10 * SECOND)
    told = [(each.kind, each.rank) for each in intervals.verdicts]
    assert told == [
        ("hang", 2), ("health", None), ("memory_creep", 3), ("communication_bound", None), ("slow_rank", 1),
        ("standing", 2), ("memory_creep", 0),
    ]  # fmt: skip


def test_a_hang_is_one_verdict_whoever_is_found_to_be_its_cause():
    """More is known of it from look to look; what is known last is in the verdict, also for the next observer."""
    intervals = Intervals(1, 0)
    for rank, seconds in ((None, 10), (2, 12)):
        known = Hang("stopped", () if rank is None else (rank,))
        intervals.update([Verdict(0, "hang", "", SECOND, rank=rank, urgent=True, hang=known)], {}, seconds * SECOND)
    (verdict,) = intervals.verdicts
    assert (verdict.number, verdict.rank, verdict.since_at_ns, verdict.hang) == (1, 2, SECOND, Hang("stopped", (2,)))
    after = Intervals(1, 0)
    after.resume([verdict], 0)
    after.update([Verdict(0, "hang", "", 9 * SECOND, rank=3, urgent=True)], {}, 20 * SECOND)
    assert [(each.number, each.rank, each.since_at_ns) for each in after.verdicts] == [(1, 3, SECOND)]


def test_another_observer_goes_on_where_one_was_killed():
    """What is found again is the same verdict; what is not is over after a while; new ones are counted on."""
    before = [
        Verdict(4, "slow_rank", "rank 1", 2 * SECOND, rank=1, phase="data"),
        Verdict(5, "memory_creep", "memory", SECOND, rank=0),
        Verdict(6, "health", "nan", SECOND, SECOND),
        Verdict(3, "input_bound", "of the group before", SECOND, generation=7),
    ]
    intervals = Intervals(1, 0)
    intervals.resume(before, 15 * SECOND)
    assert {each.number: each.until_at_ns for each in over(intervals)} == {3: 15 * SECOND}
    intervals.update([], {}, 20 * SECOND)
    assert {each.number for each in intervals.verdicts} == {4, 5}
    intervals.update([SLOW, Verdict(0, "health", "inf", SECOND)], {}, 24 * SECOND)
    assert {(each.number, each.since_at_ns) for each in intervals.verdicts} == {
        (4, 2 * SECOND), (5, SECOND), (7, SECOND),
    }  # fmt: skip
    intervals.update([SLOW], {}, 20 * SECOND + RESUMED_NS)
    ended = {each.number: each.until_at_ns for each in over(intervals)}
    assert ended == {5: 20 * SECOND, 7: 20 * SECOND + RESUMED_NS}
