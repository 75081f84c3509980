"""From how large a delay on a rank would be named: the number is true of delays that are then put in."""

from __future__ import annotations

import pytest
from support.fakes.groups import Group, Slowness, slow
from support.fakes.judges import Judge


def named(judge: Judge, group: Group, steps: int, *more: Slowness) -> bool:
    """Say whether a rank is told to be slow within so many steps."""
    found = False
    for rank, record in group.steps(steps, *more):
        judge.steps(rank, (record,), judge.generation)
        if rank == group.world - 1:
            found |= any(each.kind == "slow_rank" for each in judge.verdicts(record.end_at_ns))
    return found


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_a_delay_is_named_from_the_ms_on_that_are_said(world: int, noise: float) -> None:
    """A quarter more is named within seconds on any rank; a third less is not, but where times vary by chance."""
    for guilty in (0, world - 1):
        outcomes = {}
        for part in (0.67, 1.25):
            group, judge = Group(world, guilty, noise), Judge(world)
            assert not named(judge, group, 200)
            bound = judge.named_from_ms
            assert bound is not None
            outcomes[part] = named(judge, group, 60, slow(guilty, "forward", part * bound))
            assert judge.named_from_ms is None or not outcomes[part]
        assert outcomes[1.25]
        assert not outcomes[0.67] or noise > 0.2


def test_no_delay_is_promised_to_be_named_where_none_would_be() -> None:
    """Before there are enough steps, of one rank alone, and where the waiting of a rank is not observed."""
    early, alone, unseen = Judge(2), Judge(1), Judge(2)
    hidden = Group(2, 1)
    hidden.observed = False
    for judge, group, steps in ((early, Group(2, 1), 20), (alone, Group(1, 1), 200), (unseen, hidden, 200)):
        assert not named(judge, group, steps)
        assert judge.named_from_ms is None


def test_the_middle_of_the_others_is_that_without_the_rank() -> None:
    """For each rank at once what NumPy says of each by itself, with ties, for even and odd numbers of ranks."""
    from random import Random

    import numpy as np

    from ddptop.agent.observer.judge.kinds.suspects import _above_others

    rng = Random(3)
    for ranks in (2, 3, 4, 7, 64):
        values = np.array([[rng.randrange(9) / 4 for _ in range(ranks)] for _ in range(20)])
        for rank in range(ranks):
            alone = values[:, rank] - np.median(np.delete(values, rank, axis=1), axis=1)
            assert _above_others(values)[:, rank] == pytest.approx(alone)
