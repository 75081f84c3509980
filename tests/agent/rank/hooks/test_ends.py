"""The end of a step that is only counted: by the short way nothing else comes out than by the long one."""

from __future__ import annotations

import _thread
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import late
from support.fakes.clocks import Clock
from support.harness import until

from ddptop.agent.rank.checksums.checks import Checks
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks.boundary import Boundary, hooks_of_steps
from ddptop.agent.rank.hooks.marks import Marks
from ddptop.agent.rank.inspection.diagnoses import Diagnoses
from ddptop.agent.rank.inspection.work import counting as work
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.cost import EVERY, Cost
from ddptop.agent.rank.records.device_time import Captures
from ddptop.agent.rank.records.stamps import BACKWARD, OTHER, Stamps
from ddptop.agent.rank.records.threads import Pools
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import RunDir

if TYPE_CHECKING:
    import torch

_imports = late.imports(globals())


class Rank:
    """What of a rank takes part in the end of a step, and its hooks of optimizers."""

    end_step, count, wait = Session.end_step, Session.count, Session.wait
    _tell_last, _go_on = Session._tell_last, Session._go_on

    def __init__(self, every: int, cpu: Callable[[], int] = time.thread_time_ns) -> None:
        self.clock = Clock(0)
        self.faults, self.gate = Faults(), Gate()
        self.stamps = Stamps(self.clock, self.clock, capacity=1 << 20)
        self.stamps.every, self.stamps.cost = every, Cost(cpu)
        self.collectives = Collectives(self.stamps, self.faults)
        self.checks = Checks(0, 0, self.faults)
        self.device = self.timeout_s = None
        self._pools = Pools()
        self.diagnoses = Diagnoses(
            0, RunDir(Path("run")), self.stamps, self.collectives, self.gate, self.faults, lambda *_: None
        )
        self.diagnoses.counting.is_armed = False
        self.checks.watch(torch)
        self.nested = False
        of_rank: Any = self
        self._leaves = False
        self.marks = Marks(of_rank)
        self.boundary = Boundary(of_rank, lambda: self.nested)
        self.before, self.after = hooks_of_steps(of_rank, self.boundary, lambda: False)

    def step(self, *optimizers: torch.optim.Optimizer, long: bool = False) -> None:
        """Make a step of these optimizers, one inside of the other; the long way where that is asked for."""
        self.clock.now += 10
        self.boundary.backward(lambda: None)
        for number, each in enumerate(optimizers):
            self.nested = number > 0
            if long:
                self.boundary.begin(each)
            else:
                self.before(each, (), {})
        if long:
            self.stamps.eventful = 0
        for each in reversed(optimizers):
            self.after(each, (), {})
        self.clock.now += 1


def optimizers(count: int) -> list[torch.optim.Optimizer]:
    """Return some, each with one parameter."""
    return [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(count)]


def history(seed: int, *, long: bool) -> tuple[list[Any], int]:
    """Return all that is known after each of many random steps, and how many of these went the short way."""
    chance = random.Random(seed)
    rank = Rank(chance.choice([4, 16, 64]))
    known = optimizers(2)
    found: list[Any] = []
    short = 0
    for number in range(1, 401):
        if chance.random() < 0.02:
            known[0] = optimizers(1)[0]
        if chance.random() < 0.01:
            rank.stamps.every = chance.choice([1, 8, 64, 64])
        if chance.random() < 0.02:
            rank.checks.ask(number + chance.randrange(3), number - 1)
        if chance.random() < 0.02:
            rank.stamps.spoiled(float("inf"))
        if chance.random() < 0.02:
            # What raises in its step is begun, and never ended.
            rank.before(known[1], (), {})
        stepping = chance.choice([known[:1], known[1:]] * 15 + [known, known[::-1]])
        before = sum(quiet.steps for quiet in rank.checks.quiet_steps.values())
        rank.step(*stepping, long=long)
        short += sum(quiet.steps for quiet in rank.checks.quiet_steps.values()) > before
        told = [(each.step, [module.steps for module in each.modules]) for each in rank.checks.take()]
        records = [(meter.record(stamped), stamped.spoiled) for stamped in rank.stamps.finished]
        rank.stamps.finished.clear()
        stamps = rank.stamps
        numbers = stamps.steps, rank.gate.completed, stamps.completed_at, stamps.recording
        found.append((numbers, list(stamps.phases), list(stamps.homes), told, records))
    assert not rank.faults.count, rank.faults.last
    return found, short


@pytest.mark.parametrize("seed", range(20))
def test_the_short_way_ends_a_step_as_the_long_one_does(seed: int) -> None:
    """Records, counts, phases and checksums of the same 400 steps, where most go the short way and where none does."""
    found, short = history(seed, long=False)
    expected, none = history(seed, long=True)
    assert found == expected
    assert none == 0
    assert short > 30


def test_a_pause_holds_a_rank_whose_steps_are_only_counted() -> None:
    """Asked at random moments, it holds at the step it has promised, and that time belongs to no step."""
    rank, (optimizer,) = Rank(64), optimizers(1)
    stop, moments = threading.Event(), random.Random(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def train() -> None:
        while not stop.is_set():
            rank.step(optimizer)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for cycle in range(40):
            passed = rank.gate.completed + moments.randrange(200)
            until(lambda: rank.gate.completed >= passed, "some steps")  # noqa: B023
            step = rank.gate.promise(str(cycle), 60)
            rank.gate.keep(str(cycle))
            until(lambda: rank.gate.held, "the hold")
            assert rank.gate.completed == step == rank.stamps.steps
            rank.clock.now += 1_000_000
            rank.gate.resume()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        rank.gate.resume()
        thread.join(20)
    assert not thread.is_alive()
    assert rank.stamps.phases == [OTHER]
    records = [meter.record(stamped) for stamped in rank.stamps.finished]
    # Nothing marks the beginning of the very first step.
    assert sum(each.counted_ns + each.wall_ns for each in records) == 11 * (records[-1].step - 1)


def test_a_pause_is_none_of_the_step_whose_work_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held right before it, a rank hears of no operators; a later step is counted."""
    monkeypatch.setattr(work, "CAPTURES", Captures())
    rank, (optimizer,) = Rank(64), optimizers(1)
    counting = rank.diagnoses.counting
    counting.is_armed = True
    hears: list[bool] = []

    def hold() -> None:
        until(lambda: rank.gate.held, "the hold")
        trace = counting._trace
        hears.append(trace is None or not trace.ended.is_set())
        rank.gate.resume()

    for _ in range(21):
        rank.step(optimizer)
    rank.gate.promise("pause", 60)
    observer = threading.Thread(target=hold)
    observer.start()
    rank.step(optimizer)
    observer.join()
    assert (rank.gate.completed, hears) == (22, [False])
    rank.step(optimizer)
    until(lambda: counting.is_armed, "another attempt")
    while rank.gate.completed < 52:
        rank.step(optimizer)
    assert counting.is_under_way
    counting.close()
    until(lambda: not counting.is_under_way, "the end of the trace")


def test_the_exception_of_a_signal_handler_within_a_diagnosis_reaches_the_script() -> None:
    """As one within a pause does; the step counts."""
    rank, (optimizer,) = Rank(64), optimizers(1)

    class Interrupted(Exception):
        pass

    def boundary(*_: object) -> bool:
        raise Interrupted

    rank.step(optimizer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rank.diagnoses.censuses, "is_armed", True)
        patched.setattr(rank.diagnoses.censuses, "boundary", boundary)
        rank.stamps.eventful = 0
        with pytest.raises(Interrupted):
            rank.step(optimizer)
    rank.step(optimizer)
    assert (rank.gate.completed, rank.stamps.steps, rank.faults.count) == (3, 3, 0)


def test_a_hold_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis that ends later without a hold, as nobody asks for it again, is no second one."""
    rank, (optimizer,) = Rank(64), optimizers(1)
    said: list[str] = []
    monkeypatch.setattr(rank, "notify", lambda text, _: said.append(text), raising=False)
    monkeypatch.setattr(rank.diagnoses, "boundary", lambda *_: True)
    rank.gate.was_held_up = "counting memory", 2_000_000_000
    for _ in range(2):
        rank.stamps.eventful = 0
        rank.step(optimizer)
    assert said == ["held for 2 s: counting memory"]


def test_the_phase_inside_of_a_counted_step_is_known() -> None:
    """Before, in and after the step of an optimizer, and in the backward pass of a closure inside of it."""
    rank, (optimizer,) = Rank(64), optimizers(1)
    for _ in range(3):
        rank.step(optimizer)
    seen = [rank.stamps.activity]
    rank.before(optimizer, (), {})
    seen.append(rank.stamps.activity)
    rank.stamps.enter(BACKWARD)
    seen.append(rank.stamps.activity)
    rank.stamps.settle()
    seen.append(rank.stamps.activity)
    rank.after(optimizer, (), {})
    seen.append(rank.stamps.activity)
    assert seen == ["other", "optimizer", "backward", "optimizer", "other"]


def test_another_optimizer_at_the_same_address_is_not_taken_for_the_one_before() -> None:
    """An optimizer that is gone leaves its address behind; the steps of the next one there are its own."""
    rank, (optimizer,) = Rank(64), optimizers(1)
    for _ in range(3):
        rank.step(optimizer)
    rank.stamps.eventful = 1000
    (quiet,) = rank.checks.quiet_steps.values()
    steps = quiet.steps
    rank.step(optimizer)
    assert quiet.steps == steps + 1
    quiet.optimizer = lambda: None
    rank.step(optimizer)
    assert quiet.steps <= steps + 1
    (quiet,) = rank.checks.quiet_steps.values()
    assert quiet.optimizer() is optimizer


def test_what_fails_at_the_end_of_a_step_is_a_fault_and_the_step_counts() -> None:
    """Whatever is wrong with what the agent remembers, the script's own step goes on."""
    rank, (optimizer,) = Rank(64), optimizers(1)
    for _ in range(4):
        rank.step(optimizer)
    rank.before(optimizer, (), {})
    rank.stamps.phases.clear()
    rank.after(optimizer, (), {})
    assert (rank.faults.count, rank.gate.completed, rank.stamps.steps) == (1, 5, 5)


def test_a_step_counts_though_the_device_fails_at_its_end() -> None:
    """The failure is that of the script's next call; the group's count of steps is the same on all ranks."""
    rank, (optimizer,) = Rank(1), optimizers(1)
    rank.step(optimizer)

    class Failed:
        def record(self) -> None:
            raise RuntimeError("the device has failed")

        def spans(self, _: object) -> None: ...

    rank.before(optimizer, (), {})
    rank.stamps._current.clock = Failed()
    rank.after(optimizer, (), {})
    assert rank.faults.count
    assert rank.gate.completed == 2


def test_the_short_way_is_measured_like_all_hooks() -> None:
    """What a rank believes that a counted step costs is the time in both hooks, by the clock of CPU time."""
    reads = itertools.count(1)

    def clock() -> int:
        return 100 * next(reads)

    rank, (optimizer,) = Rank(64, clock), optimizers(1)
    for _ in range(10 * EVERY):
        rank.step(optimizer)
    # Each hook is between two readings as close as they can be, and has a call around it.
    assert rank.stamps.cost.counted_ns == 2 * 300


def test_a_number_that_comes_while_a_step_ends_counts_from_the_next_step() -> None:
    """The agent's thread has one step in one recorded, just after the training thread chose when to look again."""
    rank, (optimizer,) = Rank(64), optimizers(1)

    class Meanwhile(Cost):
        def turn(self, step: int, *, recording: bool) -> None:
            super().turn(step, recording=recording)
            if step == 11:
                rank.stamps.every = 1

    rank.stamps.cost = Meanwhile()
    for _ in range(9):
        rank.step(optimizer)
    rank.stamps.eventful = 0
    for _ in range(3):
        rank.step(optimizer)
    assert [stamped.step for stamped in rank.stamps.finished][-1] == 12


def test_steps_in_threads_of_torch_are_one_step_at_the_end_of_the_backward_pass() -> None:
    """On a device the backward pass, with the optimizers that hooks step in it, runs in threads of torch."""
    rank, some = Rank(1), optimizers(2)

    def step(optimizer: torch.optim.Optimizer, done: threading.Event) -> None:
        rank.before(optimizer, (), {})
        rank.after(optimizer, (), {})
        done.set()

    def backward() -> None:
        made = len(rank.stamps.finished)
        rank.stamps.enter(BACKWARD)
        for each in some:
            done = threading.Event()
            _thread.start_new_thread(step, (each, done))
            assert done.wait(30)
            assert len(rank.stamps.finished) == made
        rank.stamps.leave()

    for _ in range(3):
        rank.boundary.backward(backward)
    assert rank.gate.completed == len(rank.stamps.finished) == 3
    assert rank.stamps.thread == threading.get_ident()
    assert not rank.faults.count
