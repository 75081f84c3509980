"""Stamps become records whose phases are exclusive and add up."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from support import late
from support.fakes.clocks import Clock

from ddptop.agent.rank.hooks import losses
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.stamps import BACKWARD, DATA, FORWARD, OPTIMIZER, Call, Stamps
from ddptop.agent.wire import PHASES

if TYPE_CHECKING:
    import torch
    from torch.utils import checkpoint

_imports = late.imports(globals())


def total(step) -> int:
    return sum(getattr(step, f"{phase}_ns") or 0 for phase in PHASES)


def a_step(stamps: Stamps, clock: Clock[int], calls: list[Call]) -> None:
    """One DDP step: 10 of data, 30 forward, 50 backward, 5 optimizer, with gaps of 1."""
    stamps.enter(DATA)
    clock.now += 10
    stamps.leave()
    clock.now += 1
    stamps.turn(FORWARD)
    clock.now += 30
    stamps.enter(BACKWARD)
    for call in calls:
        stamps.call(call)
    clock.now += 50
    stamps.leave()
    stamps.turn(4)
    clock.now += 1
    stamps.enter(OPTIMIZER)
    clock.now += 5
    stamps.leave()
    stamps.cut(1)


def test_phases_of_a_plain_step():
    """Without collectives each phase is what was stamped, and wait is unknown, not zero."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    a_step(stamps, clock, [])
    step = meter.record(stamps.finished[0])
    assert (step.data_ns, step.forward_ns, step.backward_ns, step.optimizer_ns) == (10, 30, 50, 5)
    assert (step.other_ns, step.wait_ns, step.wall_ns) == (2, None, 97)


def test_waiting_for_buckets_is_counted_once_and_only_after_the_last_was_entered():
    """Two overlapping all-reduces in backward: computing goes on until the last is entered, then it waits."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.observed = True
    early, late = Call("all_reduce", 45, 8, 1, False), Call("all_reduce", 60, 8, 2, False)
    early.deferred = late.deferred = True
    early.done, late.done = 85, 80
    a_step(stamps, clock, [early, late])
    step = meter.record(stamps.finished[0])
    assert step.wait_ns == 85 - 60
    assert step.backward_ns == 50 - 25
    assert total(step) == step.wall_ns


def test_a_broadcast_of_buffers_does_not_count_as_forward():
    """DDP's broadcasts at the start of forward block the thread; their union goes to wait."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.observed = True
    first, second = Call("broadcast", 12, 8, 1, True), Call("broadcast", 14, 8, 2, True)
    first.done, second.done = 20, 18
    a_step(stamps, clock, [first, second])
    step = meter.record(stamps.finished[0])
    assert (step.wait_ns, step.forward_ns) == (8, 22)


def test_phases_always_add_up():
    """Whatever is stamped in whatever order, the six phases make up the wall time to the nanosecond."""
    seed = random.Random(3)
    for _ in range(300):
        clock = Clock(0)
        stamps = Stamps(clock, clock)
        stamps.observed = True
        for _ in range(seed.randrange(1, 30)):
            clock.now += seed.randrange(20)
            choice = seed.random()
            if choice < 0.3:
                stamps.enter(seed.randrange(6))
            elif choice < 0.6:
                stamps.leave()
            elif choice < 0.8:
                stamps.turn(seed.randrange(6))
            else:
                call = Call("all_reduce", clock.now, 1, 1, seed.random() < 0.5)
                call.deferred = seed.random() < 0.5
                call.done = seed.choice([None, clock.now + seed.randrange(60)])
                stamps.call(call)
                stamps.waited(clock.now, clock.now + seed.randrange(60))
        clock.now += 3
        stamps.cut(1)
        step = meter.record(stamps.finished[0])
        assert total(step) == step.wall_ns
        assert min(getattr(step, f"{phase}_ns") or 0 for phase in PHASES) >= 0


def test_time_held_at_the_gate_belongs_to_no_step():
    """A pause of any length leaves no trace in step times."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    a_step(stamps, clock, [])
    clock.now += 1_000_000
    stamps.resume()
    a_step(stamps, clock, [])
    assert meter.record(stamps.finished[1]).wall_ns == 97


def test_overflow_drops_the_oldest_and_counts():
    """A publisher that cannot keep up costs records, never memory or time of the training."""
    clock = Clock(0)
    stamps = Stamps(clock, clock, capacity=2)
    for _ in range(5):
        a_step(stamps, clock, [])
    assert [stamped.seq for stamped in stamps.finished] == [4, 5]
    assert stamps.dropped == 3


@pytest.mark.parametrize(
    ("divided", "micro_batches", "is_unsure"),
    [
        (lambda loss: loss, 4, False),
        (lambda loss: loss * 1.0, 4, False),
        (lambda loss: loss / 4, 4, False),
        (lambda loss: loss / 4, 3, True),
        (lambda loss: loss / 1234, 4, True),
        (lambda loss: loss / 1234, 1, False),
        (lambda loss: loss * float("nan"), 4, False),
        (lambda loss: loss / float("inf"), 4, False),
        (lambda loss: loss / torch.ones((), device="meta"), 4, True),
        (lambda loss: torch.compile(lambda it: it / 4, backend="aot_eager")(loss), 4, True),
    ],
)
def test_a_loss_is_unsure_where_its_division_for_accumulation_is_not_known(divided, micro_batches, is_unsure):
    """Divided by another number, by one on a device, or within compiled code; but not where there is one pass only."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    for _ in range(micro_batches):
        stamps.divided(losses.parts(divided(torch.ones((), requires_grad=True))))
    a_step(stamps, clock, [])
    assert meter.is_loss_unsure(stamps.finished[0]) is is_unsure


def test_the_division_of_a_loss_is_looked_for_without_computing_a_checkpoint_again():
    """The region of a checkpoint, in which the loss is divided by a learned number, may count or draw at each call."""
    calls = []

    def region(loss, scale):
        calls.append(loss)
        return (loss * 2).exp() / scale

    scale = torch.tensor(4.0, requires_grad=True)
    loss = checkpoint.checkpoint(region, torch.ones((), requires_grad=True), scale, use_reentrant=False)
    assert losses.parts(loss) == {0}
    assert len(calls) == 1
    loss.backward()
    assert len(calls) == 2
