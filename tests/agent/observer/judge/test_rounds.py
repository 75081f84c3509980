"""Large groups, judged from the summaries that each rank sends once a second."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.fakes.groups import Group, slow
from support.fakes.judges import Judge

from ddptop.agent import wire
from ddptop.agent.observer.judge.large import Rounds
from ddptop.agent.wire import Verdict

WORLD = 1024
GUILTY = 17
USUAL = np.array([2.0, 20.0, 40.0, 3.0, 1.0])
"""Data, forward, backward, optimizer, other: 66 ms, with the transfer 74."""


class Many:
    """Ranks that tell a summary a second; the noise is that of single steps."""

    def __init__(self, seed: int, noise: float, steps_a_s: int = 10, world: int = WORLD) -> None:
        self.world = world
        self._rng = np.random.default_rng(seed)
        self._noise = noise / np.sqrt(steps_a_s)
        self._steps = steps_a_s
        self.second = 0
        self.drift = np.zeros(world)

    def tell(self, ms: float = 0.0, every: int = 1) -> Iterator[wire.Summary]:
        """Yield the summaries of the next second, in any order; the guilty rank takes `ms` more to load data."""
        self.second += 1
        phases = USUAL * (1 + self._noise * self._rng.standard_normal((self.world, 5)))
        phases[:, 2] += self.drift
        phases[GUILTY, 0] += ms if self.second % every == 0 else 0.0
        own = phases.sum(axis=1)
        wall = own.max() + 8
        for rank in self._rng.permutation(self.world).tolist():
            data, forward, backward, optimizer, other = (int(each * 1e6) for each in phases[rank])
            step = self.second * self._steps
            yield wire.Summary(
                rank, self.second, self.second * 10**9, step, step, self._steps, int(wall * 1e6),
                data, forward, backward, optimizer, int((wall - own[rank]) * 1e6), other,
            )  # fmt: skip


def follow(judge: Judge, many: Many, seconds: int, ms: float = 0.0) -> list[tuple[int, Verdict]]:
    """Return each new verdict with the second in which it is told."""
    new: list[tuple[int, Verdict]] = []
    known = {each.number for each in judge.verdicts(many.second * 10**9)}
    for _ in range(seconds):
        for summary in many.tell(ms):
            judge.summary(summary)
        for verdict in judge.verdicts(many.second * 10**9):
            if verdict.number not in known:
                known.add(verdict.number)
                new.append((many.second, verdict))
    return new


@pytest.mark.parametrize("steps_a_s", [10, 1])
def test_one_of_a_thousand_is_named_within_six_rounds(steps_a_s):
    """Slower by 22 % of the step in its loader, in noise of a tenth: rank, phase, cost, and since when."""
    many, judge = Many(1, 0.1, steps_a_s), Judge(WORLD)
    assert follow(judge, many, 10) == []
    ((second, verdict),) = follow(judge, many, 8, ms=0.22 * 74)
    assert (verdict.kind, verdict.rank, verdict.phase) == ("slow_rank", GUILTY, "data")
    assert second - 10 <= 6
    assert verdict.cost_ms == pytest.approx(0.22 * 74, rel=0.35)
    assert verdict.since_step is not None
    assert abs(verdict.since_step - 10 * steps_a_s) <= 2 * steps_a_s
    assert abs(verdict.since_at_ns - 10 * 10**9) <= 2 * 10**9
    assert follow(judge, many, 8) == []
    assert judge.verdicts(many.second * 10**9) == ()


@pytest.mark.parametrize(
    ("steps_a_s", "noise", "apart"), [(10, 0.1, 1.0), (1, 0.1, 1.0), (1, 0.25, 1.0), (10, 0.02, 6.0)]
)
def test_a_thousand_equals_are_left_alone(steps_a_s, noise, apart):
    """With noise of a tenth or a quarter in each step, and with ranks that differ by a few ms all the time."""
    for seed in range(2):
        many, judge = Many(seed, noise, steps_a_s), Judge(WORLD)
        many.drift = np.random.default_rng(seed).normal(0, apart, WORLD)
        assert follow(judge, many, 25) == []


def test_the_records_of_a_suspect_and_of_ordinary_ranks_are_asked_for():
    """Of nobody as long as nobody is suspected; of the one that is named and of others, which stay the same."""
    many, judge = Many(3, 0.05), Judge(WORLD)
    follow(judge, many, 8)
    assert judge.suspects() == frozenset()
    follow(judge, many, 6, ms=20)
    asked = judge.suspects()
    assert GUILTY in asked
    assert 4 <= len(asked) <= 16
    follow(judge, many, 4, ms=20)
    assert judge.suspects() == asked


def test_the_records_of_a_suspect_tell_how_often():
    """What a summary averages, single records show: 200 ms every tenth step, since which step."""
    many, judge = Many(4, 0.05), Judge(WORLD)
    follow(judge, many, 8)
    follow(judge, many, 6, ms=20)
    asked = sorted(judge.suspects())
    few = Group(len(asked), seed=4)
    delay = slow(asked.index(GUILTY), "data", 200, since=81, every=10)
    records: list[list[wire.Step]] = [[] for _ in asked]
    for place, record in few.steps(200, delay):
        records[place].append(record)
    for rank, of_rank in zip(asked, records, strict=True):
        judge.steps(rank, of_rank, 0)
    follow(judge, many, 2, ms=20)
    (verdict,) = judge.verdicts(many.second * 10**9 + 10**10)
    assert (verdict.rank, verdict.every, verdict.since_step) == (GUILTY, 10, 81)
    assert "200 ms every 10 steps" in verdict.text
    unasked = min(set(range(WORLD)) - set(asked))
    judge.steps(unasked, records[0], 0)
    assert unasked not in judge.suspects()


def test_a_round_needs_no_rank_that_has_ceased_to_tell():
    """It counts as one like the others; the slow one is named all the same."""
    many, judge = Many(5, 0.05, world=200), Judge(200)
    verdicts: tuple[Verdict, ...] = ()
    for _ in range(20):
        for summary in many.tell(ms=20):
            if summary.rank != 3:
                judge.summary(summary)
        verdicts = judge.verdicts(many.second * 10**9)
    assert [(each.kind, each.rank) for each in verdicts] == [("slow_rank", GUILTY)]


def test_a_summary_counts_once():
    """The greeting of a newcomer repeats the newest; ranks that are none are left out."""
    rounds = Rounds(2)
    first, other = (wire.Summary(rank, 1, 10**9, 10, 10, 10, 10**8, 1, 1, 1, 1, 1, 1) for rank in (0, 1))
    assert rounds.take(first) is None
    assert rounds.take(first) is None
    assert rounds.take(wire.Summary(2, 1, 10**9, 10, 10, 10, 10**8, 1, 1, 1, 1, 1, 1)) is None
    assert rounds.take(other) is not None
    assert rounds.take(first) is None


def test_small_groups_are_judged_from_their_records_alone():
    """A summary of a small group says nothing that its records do not."""
    many, judge = Many(6, 0.05, world=wire.EACH_RECORD), Judge(wire.EACH_RECORD)
    assert follow(judge, many, 12, ms=30) == []
