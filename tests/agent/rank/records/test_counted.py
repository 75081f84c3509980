"""Steps that are only counted: their time, their trouble and their number are told with the next record."""

from __future__ import annotations

import itertools
import math

import pytest
from support.fakes.clocks import Clock

from ddptop.agent.rank.hooks import losses
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.cost import EVERY, Cost
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.rank.records.health import RECOVERY, SKIPS, Health
from ddptop.agent.rank.records.meter import Starvation
from ddptop.agent.rank.records.stamps import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, Stamps
from ddptop.agent.wire import Step


def run(stamps: Stamps, clock: Clock[int], numbers: range) -> None:
    """Make steps of 10 ns each, and 1 ns more for each hundred of the step's number."""
    for number in numbers:
        stamps.draw(1, evaluation=False)
        clock.now += 3
        stamps.drew(8)
        stamps.turn(FORWARD)
        clock.now += 7 + number // 100
        stamps.cut(number)


def until_recorded(stamps: Stamps, clock: Clock[int], number: int) -> int:
    """Make steps from this number on until one is recorded, this one at least; return the number of the last one."""
    run(stamps, clock, range(number, number + 1))
    while stamps.finished[-1].step != number:
        number += 1
        run(stamps, clock, range(number, number + 1))
    return number


def records(stamps: Stamps) -> list[Step]:
    found = [meter.record(stamped) for stamped in stamps.finished]
    stamps.finished.clear()
    return found


@pytest.mark.parametrize("every", [1, 2, 8, 64])
def test_one_step_in_so_many_is_recorded_and_no_time_is_lost(every: int) -> None:
    """The first step is recorded, then one in each k; their times with those of the counted ones are the whole time."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = every
    stamps.cut(0)
    stamps.finished.clear()
    began, stamps.recording = clock.now, True
    run(stamps, clock, range(1, 640))
    last = until_recorded(stamps, clock, 640)
    found = records(stamps)
    later = [step.step for step in found if step.step >= every]
    assert found[0].step == 1
    assert [step // every for step in later] == list(range(1, len(later) + 1))
    assert 640 // every - 1 <= len(later) <= 640 // every + 2
    assert sum(step.wall_ns + step.counted_ns for step in found) == clock.now - began
    assert len(found) + sum(step.counted for step in found) == last == stamps.steps - 1
    assert [step.seq for step in found] == list(range(found[0].seq, found[0].seq + len(found)))
    assert all((step.data_ns, step.samples) == (3, 8) for step in found)


def test_ranks_with_different_numbers_have_records_in_common() -> None:
    """All of those of the rank that records least: so that the number may change on one rank before the other."""
    found = []
    for every in (4, 16):
        clock = Clock(0)
        stamps = Stamps(clock, clock)
        stamps.every = every
        run(stamps, clock, range(1, 129))
        found.append({step.step for step in records(stamps)})
    assert found[1] <= found[0]
    assert 8 <= len(found[1]) <= 9


def test_the_present_phase_is_known_in_a_counted_step() -> None:
    """What a rank is doing is told at any moment, whether that is recorded or not."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 64
    stamps.cut(1)
    assert not stamps.recording
    stamps.draw(1, evaluation=False)
    drawing = stamps.activity
    stamps.drew(8)
    stamps.turn(FORWARD)
    stamps.enter(BACKWARD)
    assert (drawing, stamps.activity, stamps.in_backward) == ("data", "backward", True)
    stamps.settle()
    assert stamps.activity == "other"
    stamps.enter(DATA)
    stamps.leave()
    stamps.cut(2)
    assert (stamps.steps, len(stamps.phases), stamps._current.marks) == (2, 1, [])


def test_a_pause_is_no_part_of_a_step_and_the_first_one_after_it_is_recorded() -> None:
    """A rank that is held for 1,000 ns in the middle of the counted steps has made no slower step."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 8
    run(stamps, clock, range(1, 4))
    clock.now += 1000
    stamps.resume()
    run(stamps, clock, range(4, 5))
    last = until_recorded(stamps, clock, 5)
    first, after, later = records(stamps)
    assert (first.step, after.step, later.step) == (1, 4, last)
    assert (after.counted, after.counted_ns, after.wall_ns, after.data_ns, after.samples) == (2, 20, 10, 3, 8)
    assert (later.counted, later.counted_ns, later.wall_ns) == (last - 5, 10 * (last - 5), 10)


def told_last(stamps: Stamps, step: int) -> Step | None:
    before = len(stamps.finished)
    stamps.tell_last(step, (), losses.later)
    return meter.record(stamps.finished[-1]) if len(stamps.finished) > before else None


def trained(stamps: Stamps, clock: Clock[int], number: int) -> None:
    """Make one step as the hooks of counted steps do: 3 ns data, 4 forward, 5 backward, 2 optimizer; its loss."""
    stamps.draw(1, evaluation=False)
    clock.now += 3
    stamps.drew(8)
    stamps.turn(FORWARD)
    clock.now += 4
    stamps.enter(BACKWARD)
    clock.now += 5
    stamps.settle()
    stamps.trail.append((clock.now, OTHER, float(number)))
    stamps.enter(OPTIMIZER)
    clock.now += 2
    stamps.leave()
    stamps.cut(number)


@pytest.mark.parametrize("steps", [4, 5, 9])
def test_the_last_step_is_recorded_though_it_was_only_counted(steps: int) -> None:
    """Before a hold and at the end: its number, its phases and its loss, not those of the last recorded one."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 1 << 20
    for number in range(1, steps + 1):
        trained(stamps, clock, number)
    told = told_last(stamps, steps)
    assert told is not None
    phases = (told.data_ns, told.forward_ns, told.backward_ns, told.optimizer_ns, told.other_ns)
    assert (told.step, told.loss, told.wall_ns, phases) == (steps, steps, 14, (3, 4, 5, 2, 0))
    assert (told.counted, told.counted_ns) == (steps - 2, 14 * (steps - 2))
    assert told_last(stamps, steps) is None, "once is enough"
    trained(stamps, clock, steps + 1)
    after = told_last(stamps, steps + 1)
    assert after is not None
    assert (after.step, after.loss, after.counted, after.seq) == (steps + 1, steps + 1, 0, told.seq + 1)


def test_no_step_has_no_last_one() -> None:
    """A script that ends before its first step tells none."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    assert told_last(stamps, 0) is None
    stamps.draw(1, evaluation=False)
    assert told_last(stamps, 0) is None


def test_what_the_script_said_after_the_last_step_is_told_with_it() -> None:
    """A final metric is not lost, and what the step that never ends has done so far is no part of it."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 4
    last = 0
    while last < 3 or not stamps.recording:
        last += 1
        trained(stamps, clock, last)
    stamps.metric("accuracy", 0.9)
    stamps.draw(1, evaluation=True)
    clock.now += 1000
    stamps.drew(8)
    told = told_last(stamps, last)
    assert told is not None
    assert (told.step, told.wall_ns, told.samples, told.metrics) == (last, 14, None, {"accuracy": 0.9})


def test_the_step_with_an_evaluation_is_recorded() -> None:
    """Its time is not lost among the counted ones; in a loop that evaluates before every step few are recorded."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 1 << 20
    for number in range(1, 40):
        trained(stamps, clock, number)
        if number == 20:
            stamps.evaluates()
            stamps.turn(OTHER)
            clock.now += 1000
    found = records(stamps)
    assert [(step.step, step.wall_ns, step.other_ns, step.data_ns) for step in found[1:]] == [(21, 1014, 1000, 3)]
    for number in range(40, 140):
        stamps.evaluates()
        trained(stamps, clock, number)
    assert len(records(stamps)) == 1


def test_a_summary_stands_for_all_steps() -> None:
    """It says how many steps there were and what one took, by the clock, and its phases add up to that."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 8
    run(stamps, clock, range(1, 600))
    last = until_recorded(stamps, clock, 600)
    digest = Digest(0)
    for step in records(stamps):
        digest.add(step)
    told = digest.close()
    assert told is not None
    assert (told.steps, told.step, told.wall_ns) == (last, last, clock.now // last)
    parts = (told.data_ns, told.forward_ns, told.backward_ns, told.optimizer_ns, told.other_ns)
    assert told.wall_ns - len(parts) <= sum(part or 0 for part in parts) <= told.wall_ns


def test_a_metric_of_a_counted_step_goes_with_the_next_record() -> None:
    """What the script logs is not lost; of the same name the newest is told."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 4
    run(stamps, clock, range(1, 2))
    for number in (2, 3):
        stamps.metric("accuracy", number / 10)
        run(stamps, clock, range(number, number + 1))
    until_recorded(stamps, clock, 4)
    assert [step.metrics for step in records(stamps)] == [{}, {"accuracy": 0.3}]


def test_a_loss_that_is_not_finite_is_told_with_the_counted_step_it_came_in() -> None:
    """And it is over after as many good steps as ever, counted ones included."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 8
    run(stamps, clock, range(1, 11))
    stamps.spoiled(math.inf)
    told_at = until_recorded(stamps, clock, 11)
    run(stamps, clock, range(told_at + 1, 81))
    health, told = Health(), []
    for stamped in tuple(stamps.finished):
        if (change := health.check(stamped, meter.record(stamped))) is not None:
            told.append((change.text, stamped.step))
    assert told[0] == ("loss is infinite since step 11", told_at)
    assert told[1][0].startswith("finite again since step ")
    # The last record before it came too early.
    before = max(stamped.step for stamped in stamps.finished if stamped.step < told[1][1])
    assert told[1][1] - told_at >= RECOVERY > before - told_at


def test_steps_that_a_scaler_skips_are_counted_over_the_records() -> None:
    """Skipped steps in a row are a trouble although most of them are not recorded."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 8
    run(stamps, clock, range(1, 17))
    for number in range(17, 33):
        stamps.skip(losses.Known(1.0))
        run(stamps, clock, range(number, number + 1))
    health = Health()
    changes = [health.check(stamped, meter.record(stamped)) for stamped in tuple(stamps.finished)]
    told = [change for change in changes if change is not None]
    assert SKIPS <= 8
    assert "since step 17" in told[0].text


def test_a_scaler_that_skips_every_third_step_is_no_trouble() -> None:
    """However many of the counted steps it skips: they are not in a row."""
    clock = Clock(0)
    stamps = Stamps(clock, clock)
    stamps.every = 64
    for number in range(1, 2001):
        if number % 3 == 0:
            stamps.skip(losses.Known(1.0))
        run(stamps, clock, range(number, number + 1))
    health = Health()
    skipped = [stamped.skipped is not None for stamped in stamps.finished]
    assert 1 < sum(skipped) < len(skipped)
    assert [health.check(each, meter.record(each)) for each in stamps.finished] == [None] * len(skipped)


def test_time_without_a_core_is_shared_with_counted_steps(tmp_path) -> None:
    """A record gets the share of its own time, not that of the steps between it and the record before."""
    file = tmp_path / "schedstat"
    file.write_text("0 0 0")
    starvation = Starvation(file)
    starvation.stamp([])
    file.write_text("0 800 0")
    step = Step(1, 8, 8, 1000, 1000, 0, 0, 0, 0, 0, counted=7, counted_ns=7000)
    assert [each.starved_ns for each in starvation.stamp([step])] == [100]


def test_the_cost_of_the_hooks_is_what_they_took() -> None:
    """Of recorded and of counted steps each, and only in one step in many the clock is read."""
    reads = itertools.count()
    now = Clock(0)

    def clock() -> int:
        next(reads)
        return now.now

    cost = Cost(clock)

    numbers = itertools.count(1)

    def step(recording: bool, took: int) -> None:
        for hook in range(3):
            began = cost.clock() if cost.sampling else 0
            now.now += took
            if hook == 2:
                cost.turn(next(numbers), recording=recording)
            if began:
                cost.add(cost.clock() - began)

    now.now = 1
    for _ in range(20 * EVERY):
        step(True, 1000)
    for _ in range(20 * EVERY):
        step(False, 100)
    hooks = 3 * 300
    assert cost.recorded_ns == 3 * 1000 + hooks
    assert cost.counted_ns == 3 * 100 + hooks
    assert next(reads) < 40 * EVERY * 6 / 20
