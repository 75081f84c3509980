"""The verdict on synthetic records: who, where, how much and since when, or silence."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.screens.frames import frame_at

from ddptop.agent import wire
from ddptop.agent.run.rundir import Run
from ddptop.tui.cli import plain
from ddptop.tui.model.frame import Frame, Verdict
from ddptop.tui.model.judge.verdict import Judge
from ddptop.tui.model.ranks.join import StepJoin
from ddptop.tui.model.store import Store

MS = 1_000_000
USUAL = {"data": 2.0, "forward": 20.0, "backward": 40.0, "optimizer": 3.0, "other": 1.0}
TRANSFER = 8.0

Slowness = Callable[[int, int], dict[str, float]]
"""(step, rank) -> ms more, by phase."""


def healthy(step: int, rank: int) -> dict[str, float]:
    return {}


def slow(rank: int, phase: str, ms: float, since: int = 1, until: int = 10**9, every: int = 1) -> Slowness:
    def more(step: int, each: int) -> dict[str, float]:
        hit = each == rank and since <= step < until and (step - since) % every == 0
        return {phase: ms} if hit else {}

    return more


class Group:
    """Ranks that work, meet in one all-reduce a step, and tell of it."""

    def __init__(self, world: int, seed: int, noise: float = 0.08, **usual: float) -> None:
        self.world = world
        self.usual = {**USUAL, **usual}
        self.samples = [32] * world
        self.observed = True
        self.transfer = TRANSFER
        self.starved = [0.0] * world
        self.step = 0
        self._seed = random.Random(seed)
        self._noise = noise

    def steps(self, count: int, *more: Slowness) -> Iterator[tuple[int, wire.Step]]:
        """Yield the records of the next `count` steps."""
        for _ in range(count):
            self.step += 1
            phases = [self._phases(rank, more) for rank in range(self.world)]
            wall = max(sum(each.values()) for each in phases) + self.transfer
            for rank, each in enumerate(phases):
                wait = wall - sum(each.values())
                yield rank, self._record(wall, wait, each, rank)

    def _phases(self, rank: int, more: tuple[Slowness, ...]) -> dict[str, float]:
        phases = {name: ms * max(0.2, self._seed.gauss(1, self._noise)) for name, ms in self.usual.items()}
        for each in more:
            for name, ms in each(self.step, rank).items():
                phases[name] += ms
        return phases

    def _record(self, wall: float, wait: float, phases: dict[str, float], rank: int) -> wire.Step:
        ns: dict[str, Any] = {f"{name}_ns": round(ms * MS) for name, ms in phases.items()}
        return wire.Step(
            seq=self.step, step=self.step, end_at_ns=self.step * round(wall * MS), wall_ns=round(wall * MS),
            wait_ns=round(wait * MS) if self.observed else None, samples=self.samples[rank],
            starved_ns=round(self.starved[rank] * MS), **ns,
        )  # fmt: skip


def hear(judge: Judge, records: Iterator[tuple[int, wire.Step]]) -> list[tuple[int, Verdict | None]]:
    """Give the records to the judge; return each change of what it says, with the step."""
    changes: list[tuple[int, Verdict | None]] = []
    told, join = judge.verdict, StepJoin(judge._world)
    for rank, record in records:
        together = join.take(rank, record)
        if together is not None:
            judge.take(together)
        now = judge.verdict
        if key(now) != key(told):
            changes.append((record.step, now))
        told = now
    return changes


def key(verdict: Verdict | None) -> tuple[str, int | None, str | None] | None:
    return None if verdict is None else (verdict.kind, verdict.rank, verdict.phase)


def said(judge: Judge) -> Verdict:
    """Return the verdict, which there is."""
    assert judge.verdict is not None
    return judge.verdict


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer", "other"])
def test_the_slow_rank_is_named_with_phase_cost_and_beginning(world, phase):
    """Within 50 steps, with the injected cost to a tenth of the step, since the step it began with."""
    group, judge = Group(world, seed=1), Judge(world)
    guilty = world - 1
    assert hear(judge, group.steps(119)) == []
    changes = hear(judge, group.steps(100, slow(guilty, phase, 31, since=120)))
    assert [key(verdict) for _, verdict in changes] == [("slow_rank", guilty, phase)]
    at, verdict = changes[0]
    assert at - 119 <= 50
    assert verdict is not None
    assert verdict.cost_ms == pytest.approx(31, abs=8)
    assert verdict.share == pytest.approx(31 / 105, abs=0.08)
    assert verdict.since_step is not None
    assert abs(verdict.since_step - 120) <= 2
    confidence = said(judge).confidence
    assert confidence is not None
    assert confidence > 0.85
    assert f"rank {guilty} holds the group back by " in verdict.text
    assert f"since step {verdict.since_step}" in verdict.text


def test_steps_of_a_millisecond_are_judged_by_time():
    """Fast steps: named within 5 s of training, though that is many steps."""
    group, judge = Group(4, seed=3, data=0.1, forward=0.4, backward=0.8, optimizer=0.1, other=0.05), Judge(4)
    group.transfer = 0.3
    assert hear(judge, group.steps(4000)) == []
    (change,) = hear(judge, group.steps(3000, slow(2, "backward", 1)))
    assert key(change[1]) == ("slow_rank", 2, "backward")
    assert (change[0] - 4000) * 2.9 < 5000


@pytest.mark.parametrize("world", [2, 4, 16])
def test_equals_are_left_alone(world):
    """However noisy, ranks that differ by chance are never named: 8 runs, phases scattered by a quarter."""
    for seed in range(8):
        group, judge = Group(world, seed=seed, noise=0.25), Judge(world)
        assert hear(judge, group.steps(250)) == []


def test_a_hiccup_is_no_habit():
    """Single long stops of one rank (a checkpoint, a collected heap) do not make it the slow one."""
    group, judge = Group(4, seed=4), Judge(4)
    assert hear(judge, group.steps(600, slow(0, "other", 2000, since=40, every=100))) == []


def test_what_comes_every_k_steps_is_found_when_it_matters_in_the_mean():
    """Every 10th step 200 ms are 20 ms a step: named, with the mean, and without flickering."""
    group, judge = Group(4, seed=5), Judge(4)
    changes = hear(judge, group.steps(1200, slow(1, "data", 200, every=10)))
    assert [key(verdict) for _, verdict in changes] == [("slow_rank", 1, "data")]
    assert changes[0][0] < 250
    assert said(judge).cost_ms == pytest.approx(20, abs=4)


def test_recovery_and_a_new_culprit_are_followed():
    """The name goes when the rank recovers and comes to another that is to blame, each once and in 50 steps."""
    group, judge = Group(4, seed=6), Judge(4)
    said = hear(judge, group.steps(120, slow(1, "data", 30)))
    said += hear(judge, group.steps(120))
    said += hear(judge, group.steps(120, slow(3, "backward", 30)))
    said += hear(judge, group.steps(120, slow(0, "forward", 45)))
    said += hear(judge, group.steps(120))
    assert [key(verdict) for _, verdict in said] == [
        ("slow_rank", 1, "data"), None, ("slow_rank", 3, "backward"), None, ("slow_rank", 0, "forward"), None,
    ]  # fmt: skip
    for (at, _), began in zip(said, (0, 120, 240, 360, 360, 480), strict=True):
        assert at - began <= 50


def test_the_phase_is_followed_where_the_rank_stays_the_slow_one():
    """A rank slow in its loader and then in its optimizer is told of with each, since when; without a gap between."""
    group, judge = Group(4, 21), Judge(4)
    told = hear(judge, group.steps(400, slow(2, "data", 15, until=201), slow(2, "optimizer", 30, since=201)))
    assert [key(verdict) for _, verdict in told if verdict] == [
        ("slow_rank", 2, "data"),
        ("slow_rank", 2, "optimizer"),
    ]
    assert None not in [verdict for _, verdict in told]
    at, last = told[-1]
    assert at <= 201 + 60
    assert last is not None
    assert last.since_step is not None
    assert abs(last.since_step - 201) <= 10
    # A second phase that costs as much as the first does not make it waver.
    group, judge = Group(4, 22), Judge(4)
    told = hear(judge, group.steps(400, slow(2, "data", 15), slow(2, "optimizer", 15, since=201)))
    assert [key(verdict) for _, verdict in told] == [("slow_rank", 2, "data")]


def test_a_marginal_delay_does_not_flicker():
    """A tenth of the step in heavy noise: named late or early, but the name then stays."""
    for seed in range(6):
        group, judge = Group(4, seed=seed, noise=0.15), Judge(4)
        changes = hear(judge, group.steps(500, slow(2, "backward", 9)))
        assert [key(verdict) for _, verdict in changes] == [("slow_rank", 2, "backward")]


def test_a_rank_without_a_core_has_not_more_to_do():
    """What the kernel counts as waiting for a core is nobody's phase; what is left without that still is."""
    group, judge = Group(4, seed=17), Judge(4)
    group.starved[2] = 25.0
    crowded = slow(2, "forward", 9), slow(2, "backward", 16)
    assert hear(judge, group.steps(200, *crowded)) == []
    changes = hear(judge, group.steps(100, *crowded, slow(2, "data", 30)))
    assert [key(verdict) for _, verdict in changes] == [("slow_rank", 2, "data")]
    assert said(judge).cost_ms == pytest.approx(30, abs=6)


def test_a_rank_that_is_slow_in_everything_has_to_stay_so():
    """A tenth more in all phases is a warm core, a third more for a moment a neighbour; told is what lasts."""
    group, judge = Group(4, seed=18), Judge(4)
    assert hear(judge, group.steps(200, slow(1, "forward", 2), slow(1, "backward", 4))) == []
    slower = slow(1, "forward", 9), slow(1, "backward", 18)
    assert hear(judge, group.steps(200, *slower)) == []
    hear(judge, group.steps(800, *slower))
    assert key(judge.verdict) == ("slow_rank", 1, "backward")
    assert "all phases, most in backward" in said(judge).text


def test_a_rank_at_half_the_speed_is_told_at_once():
    """Twice the time for everything is no neighbour's doing: named within 50 steps."""
    group, judge = Group(4, seed=18), Judge(4)
    hear(judge, group.steps(50, slow(1, "forward", 20), slow(1, "backward", 40)))
    assert key(judge.verdict) == ("slow_rank", 1, "backward")


def test_a_slow_loader_on_all_ranks_is_the_input():
    """All ranks wait for data alike: nobody is to blame, the input is."""
    group, judge = Group(4, seed=7, data=80.0), Judge(4)
    hear(judge, group.steps(100))
    assert key(judge.verdict) == ("input_bound", None, "data")
    assert said(judge).cost_ms == pytest.approx(75, abs=10)
    share = said(judge).share
    assert share is not None
    assert share > 0.4
    assert "all ranks wait for data" in said(judge).text


def test_a_slow_network_is_the_communication():
    """All ranks spend most of the step in collectives though nobody is late."""
    group, judge = Group(4, seed=8), Judge(4)
    group.transfer = 120.0
    hear(judge, group.steps(100))
    assert key(judge.verdict) == ("communication_bound", None, "wait")
    assert said(judge).cost_ms == pytest.approx(120, abs=5)


def test_a_rank_with_larger_batches_has_more_work():
    """Not a slow rank: its batches explain its time."""
    group, judge = Group(4, seed=9), Judge(4)
    group.samples[1] = 48
    hear(judge, group.steps(100, slow(1, "forward", 10), slow(1, "backward", 20)))
    assert (said(judge).kind, said(judge).rank) == ("unequal_work", 1)
    assert "48 samples a step against 32" in said(judge).text


def test_batches_that_vary_from_step_to_step_are_unequal_work_of_nobody():
    """Each step another rank has the largest batch: the group waits, and no rank is to blame."""
    group, judge = Group(4, seed=10), Judge(4)
    seed = random.Random(10)

    def longer(sizes: list[int], step: int, rank: int) -> dict[str, float]:
        return {"backward": sizes[rank] - 16.0}

    for _ in range(120):
        group.samples = [seed.choice((16, 32, 64)) for _ in range(4)]
        sizes = list(group.samples)
        hear(judge, group.steps(1, partial(longer, sizes)))
    assert (said(judge).kind, said(judge).rank) == ("unequal_work", None)


def test_without_seeing_collectives_nobody_is_accused():
    """Where the wait is not known the own time is not either."""
    group, judge = Group(4, seed=11), Judge(4)
    group.observed = False
    assert hear(judge, group.steps(200, slow(1, "backward", 60))) == []


def test_a_rank_that_does_not_tell_leaves_the_rest_unjudged():
    """Steps without all ranks' records are no evidence; when all tell again, they are."""
    group, judge = Group(4, seed=12), Judge(4)
    deaf = ((rank, step) for rank, step in group.steps(1500, slow(1, "data", 30)) if rank != 3)
    assert hear(judge, deaf) == []
    assert [key(verdict) for _, verdict in hear(judge, group.steps(80, slow(1, "data", 30)))] == [
        ("slow_rank", 1, "data")
    ]


def test_one_rank_alone_has_nobody_to_hold_back():
    """A world of one: no slow rank, but its input may still be the limit."""
    group, judge = Group(1, seed=13), Judge(1)
    assert hear(judge, group.steps(100, slow(0, "backward", 60))) == []
    hear(judge, group.steps(100, slow(0, "data", 300)))
    assert key(judge.verdict) == ("input_bound", None, "data")


def test_a_restart_forgets():
    """The ranks begin anew with step 1, and what was said of the old ones is over."""
    group, judge = Group(2, seed=14), Judge(2)
    hear(judge, group.steps(100, slow(1, "data", 30)))
    assert judge.verdict is not None
    judge.restart()
    assert judge.verdict is None
    group.step = 0
    assert hear(judge, group.steps(200)) == []


def test_the_order_in_which_ranks_are_heard_does_not_matter():
    """One rank's records come 300 steps late, all at once: the same verdict."""
    group, judge = Group(2, seed=15), Judge(2)
    records = list(group.steps(300, slow(1, "optimizer", 30)))
    hear(judge, iter(sorted(records, key=lambda record: record[0])))
    assert key(judge.verdict) == ("slow_rank", 1, "optimizer")


def beats(judge: Judge, seconds: int, memory: Callable[[int], list[float]], since: int = 0) -> None:
    for second in range(since, since + seconds):
        for rank, mib in enumerate(memory(second)):
            beat = wire.Beat(
                rank, second * 10**9, "running", "forward", second * 10 + 1, None, 0,
                memory_bytes=int(mib * 2**20), memory_total_bytes=2**34,
            )  # fmt: skip
            judge.beat(beat)


def test_memory_that_grows_is_told_and_memory_that_settles_is_not():
    """Growth in all of the last minutes is told with its rate; a plateau, a start and a saw-tooth are not."""
    seed = random.Random(16)
    judge = Judge(2)
    beats(judge, 400, lambda second: [800 + min(second, 30) * 20, 900 + 200 * (second % 3) + seed.gauss(0, 5)])
    assert judge.verdict is None
    beats(judge, 240, lambda second: [1400, 1300 + 2 * (second - 400) + 100 * (second % 3)], since=400)
    assert (said(judge).kind, said(judge).rank) == ("memory_creep", 1)
    rate = re.search(r"grows by (\d+) MiB a minute, now 1.7\d GiB, full in about 2 h", said(judge).text)
    assert rate
    assert int(rate[1]) == pytest.approx(120, rel=0.05)
    beats(judge, 400, lambda second: [1400, 1800], since=640)
    assert judge.verdict is None


def test_the_store_tells_of_each_change_once():
    """A name and its end are one event each, however many frames; faults put in on purpose are one at the start."""
    run = Run("toy-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True, injected="rank 1: 30 ms more in data loading")
    store, group = Store(run), Group(2, seed=19)
    for more in (healthy, slow(1, "data", 30), healthy):
        for rank, step in group.steps(100, more):
            store.apply(wire.Steps(rank, (step,)), 2.0)
            frame = frame_at(store, 2.0)
    texts = [event.text for event in frame.events]
    assert texts[0] == "faults are put into this run on purpose: rank 1: 30 ms more in data loading"
    told = [text for text in texts if "holds the group back" in text]
    assert len(told) == 2
    assert told[1] == f"no longer: {told[1].removeprefix('no longer: ')}"
    assert frame.verdict is None
    assert frame.injected == run.injected


def test_lines_of_text_carry_the_verdict():
    """In the line of the interval instead of the slowest rank, and in the summary."""
    verdict = Verdict("slow_rank", "rank 1 holds the group back by 31 ms a step (38%): data loading, since step 120", 1)
    frame = Frame("toy-1", "finished", "toy.py", 2, 0.0, step=5, slowest=1, verdict=verdict, injected="rank 1: crash")
    assert verdict.text in plain.line(frame)
    assert "slowest" not in plain.line(frame)
    assert f"verdict: {verdict.text}" in plain.summary(frame)
    assert "faults put in on purpose: rank 1: crash" in plain.summary(frame)
