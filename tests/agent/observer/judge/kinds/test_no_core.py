"""A rank that has no core to run on is told, with the share of its step; ranks on a crowded machine are not."""

from __future__ import annotations

import re

import pytest
from support.fakes.groups import MS, Group, slow
from support.fakes.judges import Judge

from ddptop.agent import wire
from ddptop.agent.observer.judge.crowding import crowding, placed
from ddptop.agent.observer.judge.intervals import Reason
from ddptop.agent.wire import EACH_RECORD, Verdict


def told(judge: Judge, group: Group, count: int, *more) -> list[Verdict]:
    """Let steps be made, and return the verdicts that are told of missing cores."""
    found: dict[int, Verdict] = {}
    for rank, record in group.steps(count, *more):
        judge.steps(rank, (record,), judge.generation)
        found |= {each.number: each for each in judge.verdicts(record.end_at_ns) if each.kind == "no_core"}
    return list(found.values())


def test_a_rank_without_a_core_is_told_and_not_blamed_for_work():
    """Most of its backward pass it waits for a core: that, its share and since when, and no word of a slow rank."""
    group, judge = Group(2, seed=1), Judge(2)
    assert told(judge, group, 119) == []
    group.starved[1] = 90.0
    (verdict,) = told(judge, group, 100, slow(1, "backward", 90, since=120))
    wall = 66 + 90 + 8
    said = re.fullmatch(r"rank 1 waits for a core \((\d+)% of its step\)", verdict.text)
    assert said is not None
    assert int(said[1]) == pytest.approx(100 * 90 / wall, abs=6)
    assert verdict.since_step == pytest.approx(120, abs=8)
    assert {each.kind for each in judge.verdicts(group.at_ns)} == {"no_core"}


def test_who_takes_the_core_is_told_beside_it_and_it_is_over_when_the_rank_has_one_again():
    """The remark of who looked stands in the line; once the rank runs, the verdict has an end."""
    group, judge = Group(4, seed=2), Judge(4)
    group.starved[2] = 90.0
    told(judge, group, 100, slow(2, "forward", 90))
    judge.reasons({("no_core", 2, None): Reason("another process on core 3 (pid 77)")})
    (verdict,) = told(judge, group, 20, slow(2, "forward", 90))
    assert verdict.text.endswith("% of its step): another process on core 3 (pid 77)")
    group.starved[2] = 0.0
    told(judge, group, 60)
    assert [each.kind for each in judge.verdicts(group.at_ns)] == []
    assert ("no_core", 2) in [(each.kind, each.rank) for each in judge.ended()]


def test_where_all_lack_cores_alike_and_where_one_rarely_does_nobody_is_told():
    """A machine with too few cores for its ranks; and a rank that lost its core for a moment."""
    group, judge = Group(4, seed=3), Judge(4)
    group.starved = [40.0] * 4
    assert told(judge, group, 200, *(slow(rank, "backward", 40) for rank in range(4))) == []
    group.starved = [0.0] * 4
    for _ in range(4):
        assert told(judge, group, 60) == []
        group.starved[1] = 200.0
        assert told(judge, group, 3, slow(1, "forward", 200)) == []
        group.starved[1] = 0.0


def test_of_a_large_group_it_is_told_by_its_summaries():
    """No records of each step are needed."""
    world = EACH_RECORD + 2
    judge = Judge(world)
    for number in range(1, 12):
        for rank in range(world):
            starved = 60 * MS if rank == 5 else MS
            judge.summary(
                wire.Summary(
                    rank, number, 10**15 + number * 10**9, 10 * number, 10 * number, 10, 100 * MS, 2 * MS, 10 * MS,
                    70 * MS if rank == 5 else 10 * MS, MS, 8 * MS if rank == 5 else 68 * MS, MS, starved_ns=starved,
                )
            )  # fmt: skip
    (verdict,) = [each for each in judge.verdicts(10**15 + 12 * 10**9) if each.kind == "no_core"]
    assert (verdict.rank, verdict.text) == (5, "rank 5 waits for a core (60% of its step)")


def beats(judge: Judge, threads: int, cpu_percent: float, ranks: int = 2, cores: float = 2.0) -> None:
    """Let each rank tell its threads, and what it uses of the cores."""
    for rank in range(ranks):
        held = wire.Threads(threads, 1, cores)
        judge.beat(wire.Beat(rank, 1, "running", "forward", 5, 1, 5, cpu_percent=cpu_percent, threads=held))


@pytest.mark.parametrize(
    ("threads", "cpu_percent", "cores", "told_it"),
    [(8, 98.0, 2.0, True), (1, 98.0, 2.0, False), (8, 20.0, 2.0, False), (8, 790.0, 16.0, False)],
    ids=["crowd", "one thread each", "others have the cores", "enough cores"],
)
def test_ranks_that_take_the_cores_from_each_other_are_told_with_their_threads(threads, cpu_percent, cores, told_it):
    """Only where they have more threads than cores, and use the cores themselves; over once they wait no more."""
    group, judge = Group(2, seed=5), Judge(2)
    beats(judge, threads, cpu_percent, cores=cores)
    group.starved = [40.0] * 2
    found = told(judge, group, 160, *(slow(rank, "backward", 40) for rank in range(2)))
    if not told_it:
        assert found == []
        return
    (verdict,) = found
    assert verdict.rank is None
    said = r"ranks wait for cores that they take from each other \(3\d% of a step\): "
    assert re.fullmatch(said + "8 threads a rank for 2 ranks on 2 cores", verdict.text)
    group.starved = [0.0] * 2
    told(judge, group, 60)
    assert [each.kind for each in judge.ended()] == ["no_core"]


def threads(*within: int, cores: float = 2.0, children: int = 0) -> list[tuple[str, wire.Threads]]:
    """Return what ranks of one host tell."""
    return [("a", wire.Threads(each, 1, cores, children)) for each in within]


LAUNCHED = "no GPU: gloo on the CPU, 2 cores for 2 ranks"
FROM_HOME = f"{LAUNCHED}, OMP_NUM_THREADS=1 from your environment"


@pytest.mark.parametrize(
    ("placement", "told", "said"),
    [
        (FROM_HOME, [], FROM_HOME),
        (FROM_HOME, threads(1, 1), FROM_HOME),
        (
            FROM_HOME,
            threads(8, 8),
            "no GPU: gloo on the CPU, 8 threads a rank for 2 ranks on 2 cores, set by the script",
        ),
        (
            f"{LAUNCHED}, 1 thread each",
            threads(1, 2, cores=16),
            "no GPU: gloo on the CPU, 1 to 2 threads a rank on 16 cores, set by the script",
        ),
        (
            f"{LAUNCHED}, 4 threads each",
            threads(4, 4, children=3),
            "no GPU: gloo on the CPU, 4 threads a rank and 3 child processes for 2 ranks on 2 cores",
        ),
        ("", threads(8, 8), "8 threads a rank for 2 ranks on 2 cores"),
        ("", threads(8, 8, cores=64), ""),
        ("", threads(2, 2, cores=1.5), "2 threads a rank for 2 ranks on 1.5 cores"),
    ],
)
def test_the_line_on_the_place_of_a_run_claims_no_other_threads_than_its_ranks_have(placement, told, said):
    """What the launch has set holds until a script sets another number, and many threads on many cores are no news."""
    assert placed(placement, told) == said
    several = [*told, ("b", wire.Threads(8, 1, 16.0))]
    assert crowding(several) == crowding(told)


def test_ranks_with_cores_of_their_own_are_no_crowd():
    """As a scheduler binds its tasks: each has as many threads as cores. Two on the same ones are a crowd."""
    bound = [("a", wire.Threads(4, 1, 4.0, on=on)) for on in ("0-3", "4-7")]
    assert crowding(bound) == ""
    assert crowding([*bound, bound[0]]) == "4 threads a rank for 2 ranks on 4 cores"
