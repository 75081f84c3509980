"""Ranks whose parameters are no longer those of the others are told, with the first step and tensor; no others are."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

import pytest
from support.fakes.judges import Judge

from ddptop.agent import wire
from ddptop.agent.observer.judge.kinds import divergence
from ddptop.agent.wire import Verdict

SECOND = 10**9
NAMES = ("0.weight", "0.bias", "layer3.0.weight")


def sums(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def message(
    rank: int, step: int, values: Sequence[int] = (1, 2, 3), *, group: str = "0", members: int = 4, **more: int
) -> wire.Checksums:
    """Return what a rank tells at the end of a step: other parameters at each step, unless they are said."""
    values = tuple(step * value for value in values)
    module = wire.ModuleSums(group, 0, step, "layout", sums(*values), members, NAMES, **more)
    return wire.Checksums(rank, step, step * SECOND, (module,), every=100)


def judged(judge: Judge, step: int, told: Mapping[int, Sequence[int]], **more: object) -> list[Verdict]:
    """Give the judge what some ranks tell at a step; return what it tells of their parameters then."""
    for rank, values in told.items():
        judge.checksums(message(rank, step, values, **more))  # type: ignore[arg-type]
    return [each for each in judge.verdicts(step * SECOND + SECOND // 2) if each.kind == "diverged"]


def alike(*ranks: int) -> dict[int, Sequence[int]]:
    return dict.fromkeys(ranks, (1, 2, 3))


def test_the_rank_that_differs_is_named_with_step_and_tensor_until_it_is_the_same_again() -> None:
    """The others are right; the line stays as it was, also when more tensors differ; it is over with the difference."""
    judge = Judge(4)
    assert judged(judge, 1100, alike(0, 1, 2, 3)) == []
    (verdict,) = judged(judge, 1200, {**alike(0, 1, 3), 2: (1, 2, 4)})
    assert verdict.text == (
        "rank 2's parameters differ from the others' since step 1,200: layer3.0.weight (equal at step 1,100)"
    )
    assert (verdict.rank, verdict.since_step, verdict.since_at_ns) == (2, 1200, 1200 * SECOND)
    (still,) = judged(judge, 1300, {**alike(0, 1, 3), 2: (9, 9, 9)})
    assert still == verdict
    assert judged(judge, 1400, alike(0, 1, 2, 3)) == []
    (over,) = judge.ended()
    assert (over.number, over.until_at_ns) == (verdict.number, 1400 * SECOND)


@pytest.mark.parametrize(
    ("told", "text", "rank"),
    [
        ({0: (1, 2, 3), 1: (1, 7, 8)}, "ranks 0 and 1 differ since step 5: 0.bias and 1 more of 3", None),
        ({0: (5, 2, 3), **alike(1, 2), 3: (6, 2, 3)}, "ranks 0, 1, 2 and 3 differ since step 5: 0.weight", None),
        ({0: (5, 2, 3), **alike(1, 2, 4), 3: (6, 2, 3)}, "ranks 0 and 3 differ from the others' since step 5: 0.weight",
         None),
        ({**alike(*range(5, 12)), **{rank: (1, 2, -rank) for rank in range(5)}},
         "5 of 12 ranks differ from the others' since step 5: layer3.0.weight", None),
        ({rank: (1, 2, -rank) for rank in range(6)}, "6 ranks differ since step 5: layer3.0.weight", None),
    ],
)  # fmt: skip
def test_the_line_says_who_is_right_where_that_is_known(
    told: Mapping[int, Sequence[int]], text: str, rank: int | None
) -> None:
    """Most ranks are right; where there are no most, all are named; of many the number."""
    (verdict,) = judged(Judge(len(told)), 5, told, members=len(told))
    assert (verdict.text, verdict.rank) == (f"the parameters of {text}", rank)


def test_ranks_that_do_not_tell_are_waited_for_a_while_and_then_left_out() -> None:
    """A rank without an agent, or of another launcher, keeps nobody from being compared."""
    judge = Judge(4)
    assert judged(judge, 10, {0: (1, 2, 3), 1: (1, 2, 4), 2: (1, 2, 3)}) == []
    now = 11 * SECOND + divergence.SETTLED_NS
    (verdict,) = judge.verdicts(now)
    assert (verdict.rank, verdict.since_step) == (1, 10)
    # What comes after it was judged changes nothing.
    judge.checksums(message(3, 10, (7, 7, 7)))
    assert judge.verdicts(now + 5 * SECOND) == (verdict,)


def test_each_group_is_compared_by_itself() -> None:
    """The ranks of a mesh keep the parameters of their own group the same, and those of other groups differ."""
    judge = Judge(4)
    for step in (1, 2):
        for rank in range(4):
            judge.checksums(message(rank, step, (1, 2, rank % 2), group=f"data{rank % 2}", members=2))
        assert judge.verdicts(step * SECOND) == ()
    for rank in range(4):
        judge.checksums(message(rank, 3, (1, 2, rank), group=f"data{rank % 2}", members=2))
    (verdict,) = judge.verdicts(3 * SECOND)
    assert verdict.text == "the parameters of ranks 0 and 2 differ since step 3: layer3.0.weight"


def test_parameters_that_are_not_wrapped_are_told_only_after_they_have_changed_alike() -> None:
    """A pipeline begins with the same zeros and ones, which a learning rate of 0 leaves so for a while, and then its
    stages differ: silence. Ranks that average gradients by hand change bit by bit alike: then a difference is one.
    """
    own = {"group": "", "members": 0}
    pipeline = Judge(2)
    for step in (1, 2, 3, 4):
        for rank in range(2):
            values = (0, 0, 0) if step < 3 else (1, 2, rank)
            pipeline.checksums(message(rank, step, values, **own))  # type: ignore[arg-type]
        assert pipeline.verdicts(step * SECOND) == ()
    (note,) = pipeline.notes()
    assert note.startswith("parameters that are not wrapped in DistributedDataParallel differ between ranks")
    by_hand = Judge(2)
    assert judged(by_hand, 1, alike(0, 1), **own) == judged(by_hand, 2, alike(0, 1), **own) == []
    (verdict,) = judged(by_hand, 3, {0: (1, 2, 3), 1: (2, 2, 3)}, **own)
    assert verdict.text == "the parameters of ranks 0 and 1 differ since step 3: 0.weight"


def test_what_is_not_comparable_accuses_nobody() -> None:
    """Other steps of the same parameters, another layout, an older generation: compared is only what is comparable."""
    judge = Judge(2)
    for rank, step, layout in ((0, 10, "a"), (1, 10, "b"), (0, 20, "a"), (1, 21, "a")):
        module = wire.ModuleSums("0", 0, step, layout, sums(rank, step), 2, NAMES[:2])
        judge.checksums(wire.Checksums(rank, step, step * SECOND, (module,)))
    judge.checksums(wire.Checksums(1, 20, 0, (wire.ModuleSums("0", 0, 20, "a", sums(5, 5), 2),), generation=7))
    assert judge.verdicts(100 * SECOND) == judge.verdicts(110 * SECOND) == ()


def test_what_is_compared_and_what_is_not_is_said_once() -> None:
    """That they are equal, with how many; sharded parameters, of which each rank has a part."""
    judge = Judge(4)
    for step in (100, 200):
        for rank in range(4):
            judge.checksums(message(rank, step, sharded=12))
        assert judge.verdicts(step * SECOND) == ()
    assert sorted(judge.notes()) == [
        "12 sharded parameters are not compared: each rank has a part of its own",
        "parameters are compared every 100 steps: 3 tensors on 4 ranks, equal at step 100",
    ]
    assert judge.notes() == []


def test_new_processes_are_compared_anew() -> None:
    """After a restart steps are counted from the beginning, and what was wrong is over."""
    judge = Judge(2)
    (verdict,) = judged(judge, 50, {0: (1, 2, 3), 1: (4, 2, 3)}, members=2)
    judge.restart(1)
    assert [each.number for each in judge.ended()] == [verdict.number]
    for rank in range(2):
        first = message(rank, 1, (1, 2, rank), members=2)
        judge.checksums(wire.Checksums(rank, 1, 60 * SECOND, first.modules, generation=1))
    (other,) = judge.verdicts(61 * SECOND)
    assert (other.since_step, other.generation) == (1, 1)


def test_whatever_ranks_claim_nothing_raises_and_little_is_stored() -> None:
    """Any mixture of groups, steps, layouts and lengths, for longer than what is stored."""
    chance = random.Random(4)
    judge = Judge(3)
    for turn in range(4000):
        modules = tuple(
            wire.ModuleSums(
                chance.choice(["", "0", str(turn)]), chance.randrange(3), chance.randrange(10**6), str(turn % 900),
                bytes(chance.randrange(40)), chance.randrange(5), NAMES[: chance.randrange(3)],
            )
            for _ in range(chance.randrange(3))
        )  # fmt: skip
        judge.checksums(wire.Checksums(chance.randrange(3), turn, turn, modules))
        if turn % 7 == 0:
            judge.verdicts(turn * 10**7)
    found = judge._divergence
    assert len(found._modules) <= wire.MOST_MODULES + 2 * 3
    assert len(found._names) <= 4 * wire.MOST_MODULES
    assert max(len(module.pending) for module in found._modules.values()) <= divergence.PENDING + 7
