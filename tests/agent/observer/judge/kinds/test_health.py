"""What the ranks say of their numbers, told as one thing of the group."""

from __future__ import annotations

import pytest
from support.fakes.judges import Judge

from ddptop.agent import wire
from ddptop.agent.wire import Verdict

SECOND = 10**9
NAN = "loss is nan since step 123"


def beat(rank: int, at_s: float, health: str | None = None) -> wire.Beat:
    at_ns = round(at_s * SECOND)
    return wire.Beat(rank, at_ns, "running", "forward", 200, at_ns, 200, health=health)


def told(world: int, *troubles: str | None) -> Verdict | None:
    """Return what is said two seconds after each rank told this."""
    judge = Judge(world)
    for rank, health in enumerate(troubles):
        judge.beat(beat(rank, 100, health))
    judge.verdicts(100 * SECOND)
    return next(iter(judge.verdicts(102 * SECOND)), None)


@pytest.mark.parametrize(
    ("troubles", "text", "rank"),
    [
        ((None, None, NAN, None), "loss is nan since step 123 on rank 2", 2),
        ((NAN,) * 4, "loss is nan since step 123 on all ranks", None),
        ((NAN, NAN, None, None), "loss is nan since step 123 on ranks 0 and 1", None),
        ((NAN, None, None, NAN) * 4, "loss is nan since step 123 on 8 of 16 ranks", None),
        (
            ("loss is nan since step 124", NAN, "loss is nan since step 124"),
            "loss is nan since step 123 on rank 1, by now on all ranks",
            1,
        ),
        ((NAN,), "loss is nan since step 123", 0),
        (
            ("gradients are not finite since step 7: GradScaler skips every step", None),
            "gradients are not finite: GradScaler skips every step since step 7 on rank 0",
            0,
        ),
        (("something else", None), "something else on rank 0", 0),
        ((None, None), None, None),
    ],
)
def test_one_line_says_it_of_the_group(troubles, text, rank):
    """Whose it was first, whose it is by now; the rank is named where it is one."""
    verdict = told(len(troubles), *troubles)
    assert (None if verdict is None else verdict.text) == text
    if verdict is not None:
        assert (verdict.kind, verdict.rank) == ("health", rank)


def test_nobody_is_accused_before_all_have_told():
    """The beats of one second come one after the other: the first of them does not make its rank the culprit."""
    judge = Judge(3)
    judge.beat(beat(2, 100.0, NAN))
    assert judge.verdicts(100 * SECOND) == ()
    judge.beat(beat(0, 100.4, NAN))
    assert judge.verdicts(round(100.4 * SECOND)) == ()
    judge.beat(beat(1, 100.8, NAN))
    (verdict,) = judge.verdicts(round(100.8 * SECOND))
    assert (verdict.rank, verdict.since_at_ns) == (None, 100 * SECOND)


@pytest.mark.parametrize("restarted", [False, True])
def test_ranks_that_end_at_once_are_not_waited_for(restarted):
    """A rank that fails a moment after its loss was lost leaves the verdict behind, though the others told nothing."""
    judge = Judge(3)
    judge.beat(beat(2, 100.0, NAN))
    assert judge.verdicts(100 * SECOND) == ()
    if restarted:
        judge.restart(1)
        (verdict,) = judge.ended()
        assert judge.verdicts(101 * SECOND) == ()
    else:
        judge.conclude()
        (verdict,) = judge.verdicts(round(100.1 * SECOND))
    assert (verdict.kind, verdict.rank, verdict.since_at_ns) == ("health", 2, 100 * SECOND)


def test_it_is_one_verdict_from_the_first_rank_to_the_last():
    """It keeps its number while it spreads, and is over when the last rank is well again."""
    judge = Judge(2)
    judge.beat(beat(0, 100, NAN))
    judge.beat(beat(1, 100))
    (first,) = judge.verdicts(102 * SECOND)
    judge.beat(beat(1, 103, "loss is nan since step 130"))
    (spread,) = judge.verdicts(104 * SECOND)
    assert (spread.number, spread.rank) == (first.number, 0)
    assert spread.text.endswith("by now on all ranks")
    judge.beat(beat(0, 110))
    assert judge.verdicts(110 * SECOND) != ()
    judge.beat(beat(1, 111))
    assert judge.verdicts(112 * SECOND) == ()
    (ended,) = judge.ended()
    assert (ended.number, ended.since_at_ns, ended.until_at_ns) == (1, 100 * SECOND, 111 * SECOND)


def test_since_is_the_time_of_the_step():
    """Where the records are known, the verdict begins when that step ended, not when it was told."""
    judge = Judge(1)
    for number in range(1, 200):
        judge.steps(0, (wire.Step(number, number, number * SECOND // 10, SECOND // 10, 0, 1, 1, 1, 0, 1),), 0)
    judge.beat(beat(0, 21, NAN))
    (verdict,) = judge.verdicts(22 * SECOND)
    assert verdict.since_at_ns == 123 * SECOND // 10
