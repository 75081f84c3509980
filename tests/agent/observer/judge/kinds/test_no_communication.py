"""Ranks that never communicate are told once that is sure, and no others are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.fakes.groups import Group, slow
from support.fakes.judges import Judge

from ddptop.agent import wire
from ddptop.agent.wire import Verdict

SECOND = 10**9


def beat(rank: int, at_s: float, step: int, communicated: bool | None, backend: str | None = None) -> wire.Beat:
    at_ns = round(at_s * SECOND)
    return wire.Beat(rank, at_ns, "running", "forward", step, at_ns, step, backend=backend, communicated=communicated)


def hear(
    judge: Judge,
    communicated: Sequence[bool | None],
    *,
    backend: str | None = None,
    first_s: int = 0,
    seconds: int = 6,
    per_second: int = 5,
) -> Verdict | None:
    """Give the judge a heartbeat a second of each rank; return its verdict on their communication."""
    for second in range(first_s, first_s + seconds + 1):
        for rank, told in enumerate(communicated):
            judge.beat(beat(rank, 100 + second, 1 + per_second * second, told, backend))
    verdicts = judge.verdicts((100 + first_s + seconds) * SECOND)
    return next((verdict for verdict in verdicts if verdict.kind == "no_communication"), None)


def test_ranks_that_never_communicate_are_told_with_what_to_look_at() -> None:
    """After 20 steps and 5 s of every rank, since their first step, without a rank to blame."""
    verdict = hear(Judge(2), [False, False])
    assert verdict is not None
    assert verdict.text == (
        "these ranks do not communicate: 2 trainings of their own? "
        "· wrap the model in DistributedDataParallel, or check the script that started them"
    )
    assert (verdict.rank, verdict.since_at_ns) == (None, 100 * SECOND)


@pytest.mark.parametrize(
    ("communicated", "more"),
    [
        ([False], {}),
        ([False, True], {}),
        ([False, None], {}),
        ([None, None], {}),
        ([False, False], {"seconds": 4}),
        ([False, False], {"per_second": 3}),
    ],
)
def test_nothing_is_told_where_it_is_not_sure(communicated, more):
    """One rank alone, one that communicated, one that may have done so unseen, too short a time, too few steps."""
    assert hear(Judge(len(communicated)), communicated, **more) is None


def test_a_rank_that_was_not_heard_may_communicate() -> None:
    """Nothing is told while one of the ranks has told nothing, or has done no step."""
    judge = Judge(3)
    assert hear(judge, [False, False]) is None
    judge.beat(beat(2, 106, 0, False))
    assert hear(judge, [False, False], first_s=7) is None


def test_ranks_with_a_process_group_get_more_time() -> None:
    """They may average their parameters once in many steps; what they are asked is whether they use it."""
    judge = Judge(2)
    assert hear(judge, [False, False], backend="gloo", seconds=14, per_second=20) is None
    verdict = hear(judge, [False, False], backend="gloo", first_s=15, per_second=20)
    assert verdict is not None
    assert verdict.text.endswith("is the model wrapped in DistributedDataParallel?")


def test_it_is_over_with_the_first_collective_and_does_not_come_back() -> None:
    """One rank's collective is enough; a new start of the group is judged anew."""
    judge = Judge(2)
    assert hear(judge, [False, False]) is not None
    judge.beat(beat(1, 107, 40, True))
    assert judge.verdicts(108 * SECOND) == ()
    (over,) = judge.ended()
    assert (over.kind, over.until_at_ns) == ("no_communication", 107 * SECOND)
    assert hear(judge, [False, False], first_s=10) is None
    judge.restart(1)
    assert hear(judge, [False, False], first_s=20) is not None


def test_nobody_holds_back_ranks_that_do_not_communicate() -> None:
    """A rank of a training of its own may be slower; no other rank waits for it."""
    kinds = {}
    for communicated in (None, False):
        judge, group = Judge(2), Group(2, seed=1)
        hear(judge, [communicated] * 2)
        for rank, record in group.steps(100, slow(1, "backward", 31, since=1)):
            judge.steps(rank, (record,), 0)
        kinds[communicated] = [verdict.kind for verdict in judge.verdicts(10**18)]
    assert kinds == {None: ["slow_rank"], False: ["no_communication"]}


def test_ranks_that_do_not_communicate_may_wait_for_data() -> None:
    """That is as true of each training of its own."""
    judge, group = Judge(2), Group(2, seed=7, data=80.0)
    hear(judge, [False, False])
    for rank, record in group.steps(100):
        judge.steps(rank, (record,), 0)
    assert [verdict.kind for verdict in judge.verdicts(10**18)] == ["no_communication", "input_bound"]


def test_another_observer_ends_what_has_ceased() -> None:
    """A rank that has communicated ends at once what the observer before this one had told."""
    told = hear(Judge(2), [False, False])
    assert told is not None
    judge = Judge(2)
    judge.resume([told], 0)
    assert [each.kind for each in judge.verdicts(107 * SECOND)] == ["no_communication"]
    judge.beat(beat(1, 108, 40, True))
    assert judge.verdicts(109 * SECOND) == ()
    (over,) = judge.ended()
    assert (over.number, over.until_at_ns) == (told.number, 108 * SECOND)
