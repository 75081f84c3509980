"""The verdict on synthetic records: who, where, how much and since when, or silence."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pytest
from support.fakes.groups import Group, healthy, slow
from support.fakes.judges import Judge

from ddptop.agent import wire
from ddptop.agent.wire import Verdict

MUCH_LATER = 10**18


def hear(judge: Judge, records: Iterator[tuple[int, wire.Step]]) -> list[tuple[int, Verdict | None]]:
    """Give the records to the judge; return each change of what it says first, with the step."""
    changes: list[tuple[int, Verdict | None]] = []
    told = first(judge)
    for rank, record in records:
        judge.steps(rank, (record,), judge.generation)
        now = next(iter(judge.verdicts(record.end_at_ns)), None)
        if key(now) != key(told):
            changes.append((record.step, now))
        told = now
    return changes


def key(verdict: Verdict | None) -> tuple[str, int | None, str | None] | None:
    return None if verdict is None else (verdict.kind, verdict.rank, verdict.phase)


def first(judge: Judge) -> Verdict | None:
    """Return what the judge says first, with its newest figures."""
    return next(iter(judge.verdicts(MUCH_LATER)), None)


def said(judge: Judge) -> Verdict:
    """Return the same, which there is."""
    verdict = first(judge)
    assert verdict is not None
    return verdict


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


def test_a_slow_copy_to_the_device_is_named():
    """A rank whose GPU is on a slow link holds the others back with its copies, and the verdict says so."""
    group, judge = Group(4, seed=1, copy=2.0), Judge(4)
    assert hear(judge, group.steps(119)) == []
    changes = hear(judge, group.steps(100, slow(2, "copy", 31, since=120)))
    assert [key(verdict) for _, verdict in changes] == [("slow_rank", 2, "copy")]
    assert "copies to the device" in said(judge).text


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
    assert [key(verdict) for _, verdict in hear(judge, group.steps(200, *crowded))] == [("no_core", 2, None)]
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
    assert key(first(judge)) == ("slow_rank", 1, "backward")
    assert "all phases, most in backward" in said(judge).text


def test_a_rank_at_half_the_speed_is_told_at_once():
    """Twice the time for everything is no neighbour's doing: named within 50 steps."""
    group, judge = Group(4, seed=18), Judge(4)
    hear(judge, group.steps(50, slow(1, "forward", 20), slow(1, "backward", 40)))
    assert key(first(judge)) == ("slow_rank", 1, "backward")


def test_a_share_is_that_of_the_pace_of_the_group():
    """Between the averages of local SGD nobody waits: a rank costs no more than all that it takes itself."""
    group, judge = Group(2, seed=19), Judge(2)
    records = (
        (rank, msgspec.structs.replace(record, wall_ns=record.wall_ns - (record.wait_ns or 0), wait_ns=0))
        for rank, record in group.steps(300, slow(1, "forward", 400, since=101))
    )
    hear(judge, records)
    told = said(judge)
    # 400 of the 474 ms of its step.
    assert (told.kind, told.rank) == ("slow_rank", 1)
    assert told.share == pytest.approx(0.86, abs=0.04)
    assert "(8" in told.text
    assert told.since_step == 101


@pytest.mark.parametrize("ms", [0.2, 0.5, 1.0])
def test_a_delay_begins_with_its_first_step_however_many_a_block_has(ms):
    """Steps of 10 ms: a block of them has 50, and the delay begins within one; the verdict names the very step."""
    group, judge = Group(2, seed=21, forward=2.0, backward=4.0, data=ms), Judge(2)
    hear(judge, group.steps(900, slow(1, "forward", 8, since=317)))
    assert said(judge).since_step == pytest.approx(317, abs=1)


def test_where_no_backward_pass_is_seen_its_time_is_not_called_that_between_the_phases():
    """A loop of `autograd.grad`, say: forward and backward pass are in what is left."""
    group, judge = Group(2, seed=20, forward=0.0, backward=0.0, other=40.0), Judge(2)
    hear(judge, group.steps(200, slow(1, "other", 20)))
    assert "(no backward pass is seen)" in said(judge).text


def test_a_slow_loader_on_all_ranks_is_the_input():
    """All ranks wait for data alike: nobody is to blame, the input is."""
    group, judge = Group(4, seed=7, data=80.0), Judge(4)
    hear(judge, group.steps(100))
    assert key(first(judge)) == ("input_bound", None, "data")
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
    assert key(first(judge)) == ("communication_bound", None, "wait")
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
    assert key(first(judge)) == ("input_bound", None, "data")


def test_a_restart_forgets():
    """The ranks begin anew with step 1, and what was said of the old ones is over."""
    group, judge = Group(2, seed=14), Judge(2)
    hear(judge, group.steps(100, slow(1, "data", 30)))
    assert first(judge) is not None
    judge.restart(1)
    assert first(judge) is None
    group.step = 0
    assert hear(judge, group.steps(200)) == []


def test_the_order_in_which_ranks_are_heard_does_not_matter():
    """One rank's records come 300 steps late, all at once: the same verdict."""
    group, judge = Group(2, seed=15), Judge(2)
    records = list(group.steps(300, slow(1, "optimizer", 30)))
    hear(judge, iter(sorted(records, key=lambda record: record[0])))
    assert key(first(judge)) == ("slow_rank", 1, "optimizer")


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
    assert first(judge) is None
    beats(judge, 240, lambda second: [1400, 1300 + 2 * (second - 400) + 100 * (second % 3)], since=400)
    assert (said(judge).kind, said(judge).rank) == ("memory_creep", 1)
    rate = re.search(r"grows by (\d+) MiB a minute, now 1.7\d GiB, full in about 2 h", said(judge).text)
    assert rate
    assert int(rate[1]) == pytest.approx(120, rel=0.05)
    began = said(judge).since_step
    beats(judge, 400, lambda second: [1400, 1300 + 2 * (second - 400)], since=640)
    (renewed,) = judge.verdicts(2 * MUCH_LATER)
    assert renewed.since_step == began
    assert renewed.text.endswith(f", since step {began:,}")
    beats(judge, 400, lambda second: [1400, 2580], since=1040)
    assert first(judge) is None


def test_what_is_little_but_lasts_is_told_in_the_end():
    """A twentieth of the step on one rank, in noise: not in a minute, but after four."""
    group, judge, told = Group(2, seed=31), Judge(2), []
    for more in (*[healthy] * 3, *[slow(1, "backward", 4.3)] * 34):
        for rank, record in group.steps(100, more):
            judge.steps(rank, (record,), 0)
        told.append(key(first(judge)))
    assert set(told[:20]) == {None}
    assert told[-1] == ("slow_rank", 1, "backward")
    assert said(judge).share == pytest.approx(0.06, abs=0.02)
