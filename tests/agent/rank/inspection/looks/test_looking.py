"""Looks at a training thread that stands at known lines, by clocks that the test moves."""

from __future__ import annotations

import _thread
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.fakes.clocks import Clock
from support.harness import DEADLINE_S

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection import frames
from ddptop.agent.rank.inspection.looks.looking import LOOKS_S, Looking
from ddptop.agent.rank.inspection.looks.modules import Modules
from ddptop.agent.rank.inspection.looks.workers import Workers
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.stamps import BACKWARD, DATA, OTHER, Call, Stamps
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.wire import Looks

HOME = Path(__file__).parent
MS = 1_000_000


class Standing:
    """A thread that stands where it is told, in a function of its own for each place."""

    def __init__(self, begin: Callable[[Callable[[], None]], object]) -> None:
        """Begin the thread by a function that takes its target."""
        self.ident = 0
        self._go = threading.Lock()
        self._place: Callable[[], None] | None = self.load
        begin(self.run)
        self.stand(self.load)

    def run(self) -> None:
        self.ident = threading.get_ident()
        while self._place is not None:
            self._place()

    def stand(self, place: Callable[[], None] | None) -> None:
        """Move it, and return once it stands there."""
        self._place = place
        if self._go.locked():
            self._go.release()
        deadline = time.monotonic() + DEADLINE_S
        while not self._stands_in(place):
            assert time.monotonic() < deadline, "the thread does not move"

    def _stands_in(self, place: Callable[[], None] | None) -> bool:
        frame = sys._current_frames().get(self.ident)
        if place is None or frame is None:
            return place is None and frame is None
        name = place.__name__
        return (frame.f_code.co_name, frame.f_lineno) == (name, line(name)) and self._go.locked()

    def load(self) -> None:
        self._go.acquire()  # line of load

    def run_backward(self) -> None:
        self._go.acquire()  # line of run_backward

    def hook(self) -> None:
        threading.current_thread()
        self._go.acquire()  # line of hook


@functools.cache
def line(place: str) -> int:
    """Return the number of a line of this file by the mark at its end."""
    text = Path(__file__).read_text().splitlines()
    return next(number for number, each in enumerate(text, 1) if each.endswith(f"# line of {place}"))


class Rank:
    """The stamps and the looks of a rank whose training thread stands, and the time of both."""

    def __init__(self, thread: Standing) -> None:
        self.thread = thread
        self.has_engine = False
        """True where a hook of the backward pass runs on another thread."""
        self.now = Clock(0)
        self.stamps = Stamps(self.now, self.now)
        self.stamps.observed, self.stamps.thread = True, thread.ident
        self.workers = Workers(sources)
        self.gate = cast(Any, SimpleNamespace(held=False))
        self.modules = Modules(self.stamps, Faults())
        self.looking = Looking(self.stamps, self.workers, self.modules, self.gate, sources, lambda: self.now.now / 1e9)

    def spend(self, ms: int, place: Callable[[], None] | None = None) -> None:
        """Let the time pass, with the glances that are due in it."""
        if place is not None:
            self.thread.stand(place)
        for _ in range(ms):
            # In the middle of it: at a boundary the thread still stands where it stood before.
            self.now.now += MS // 2
            self.looking.glance()
            self.now.now += MS // 2

    def cut(self, step: int) -> None:
        """End a step, and have its record made where it is recorded."""
        self.stamps.cut(step)
        while self.stamps.finished:
            stamped = self.stamps.finished.popleft()
            meter.record(stamped)
            self.looking.settle(stamped)

    def step(self, number: int) -> None:
        """Make a step: 20 ms of data, 10 of backward in which it computes, and 30 in which it waits."""
        self.stamps.enter(DATA)
        self.spend(20, self.thread.load)
        self.stamps.leave()
        self.stamps.enter(BACKWARD)
        engine = Standing(lambda run: _thread.start_new_thread(run, ())) if self.has_engine else None
        if engine is not None:
            engine.stand(engine.hook)
        self.spend(10, self.thread.run_backward)
        call = Call("all_reduce", self.now.now, 8, 1, False)
        call.deferred = True
        self.stamps.call(call)
        self.spend(30)
        call.done = self.now.now
        if engine is not None:
            engine.stand(None)
        self.stamps.leave()
        self.stamps.turn(OTHER)
        self.cut(number)

    def train(self, first: int, steps: int) -> None:
        """Make steps."""
        for number in range(first, first + steps):
            self.step(number)

    def looks(self, token: int) -> Looks | None:
        """Return what is found, of the training thread."""
        found = self.looking.ask(token)
        return None if found is None else found[0]


def sources() -> Sources:
    """Return those of a program in the folder of this file."""
    return Sources(f"{HOME}/", f"{HOME}/")


def by_phase(looks: Looks) -> dict[tuple[str, str], float]:
    """Return the ms a step by phase and innermost own function but `wait`."""
    found: dict[tuple[str, str], float] = {}
    for stack in looks.stacks:
        names = [looks.places[each].function.rpartition(".")[2] for each in stack.frames]
        own = [name for name in names if name in ("load", "run_backward", "hook")]
        key = stack.phase, own[-1] if own else ""
        found[key] = found.get(key, 0.0) + stack.ns / looks.steps / MS
    return found


@pytest.fixture
def rank() -> Iterator[Rank]:
    """A rank that has made three steps."""
    thread = Standing(lambda run: threading.Thread(target=run, daemon=True).start())
    made = Rank(thread)
    made.train(1, 3)
    yield made
    thread.stand(None)


def test_time_is_found_by_line_and_phase(rank: Rank) -> None:
    """As long as the thread has stood in each line, in the phases of the records: waiting is told from computing."""
    assert rank.looks(7) is None
    rank.train(4, 52)
    looks = rank.looks(7)
    assert looks is not None
    assert abs(looks.steps - LOOKS_S / 0.06) <= 2
    found = by_phase(looks)
    assert found.keys() == {("data", "load"), ("backward", "run_backward"), ("wait", "run_backward")}
    assert found["data", "load"] == pytest.approx(20, abs=4)
    assert found["backward", "run_backward"] == pytest.approx(10, abs=4)
    assert found["wait", "run_backward"] == pytest.approx(30, abs=4)
    lines = {(each.function, each.line) for each in looks.places}
    assert {("Standing.load", line("load")), ("Standing.run_backward", line("run_backward"))} <= lines
    assert {each.file for each in looks.places if "Standing" in each.function} == {"test_looking.py"}


def test_without_a_question_it_looks_at_nothing(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before nor after: no wake-up of the agent's thread, no frames, no phases of steps."""
    rank.looks(7)
    rank.train(4, 52)
    assert rank.looks(7) is not None
    for idle in (rank, Rank(rank.thread)):
        with monkeypatch.context() as patch:
            patch.setattr("ddptop.agent.rank.inspection.looks.looking.current", lambda: pytest.fail("looked"))
            patch.setattr("ddptop.agent.rank.inspection.looks.looking.intervals_of", lambda _: pytest.fail("measured"))
            assert idle.looking.pause_s is None
            idle.train(56, 2)
            assert idle.looking.pause_s is None


def test_the_answer_to_a_question_stays_and_another_one_begins_anew(rank: Rank) -> None:
    """An observer that asks again gets the same looks; a new token means a new verdict."""
    rank.looks(7)
    rank.train(4, 52)
    found = rank.looks(7)
    rank.train(56, 3)
    assert found is not None
    assert rank.looks(7) is found
    assert rank.looks(8) is None
    rank.train(59, 52)
    again = rank.looks(8)
    assert again is not None
    assert again is not found


def test_of_a_rank_that_records_few_steps_all_steps_count(rank: Rank) -> None:
    """Their phases are those of the moment; the backward pass, in which waiting is not told apart, is left out."""
    rank.stamps.every = 64
    rank.train(4, 70)
    rank.looks(7)
    rank.train(74, 102)
    assert rank.looks(7) is None
    rank.train(176, 27)
    looks = rank.looks(7)
    assert looks is not None
    assert looks.steps == pytest.approx(2 * LOOKS_S / 0.06, abs=2)
    found = by_phase(looks)
    assert found.keys() == {("data", "load")}
    assert found["data", "load"] == pytest.approx(20, abs=4)


@pytest.mark.parametrize("every", [2, 8])
def test_a_rank_that_records_some_steps_looks_until_there_are_enough(rank: Rank, every: int) -> None:
    """Waiting is told from computing as on a rank that records each step: in the backward pass that decides."""
    rank.stamps.every = every
    rank.train(4, 2 * every)
    rank.looks(7)
    rank.train(4 + 2 * every, 110 + every)
    looks = rank.looks(7)
    assert looks is not None
    found = by_phase(looks)
    assert found.keys() == {("data", "load"), ("backward", "run_backward"), ("wait", "run_backward")}
    assert found["backward", "run_backward"] == pytest.approx(10, abs=6)


def test_the_time_of_a_pause_is_none_of_the_looks(rank: Rank) -> None:
    """They go on after it, seldom while it lasts, and what a step takes is what it takes without a pause."""
    rank.looks(7)
    rank.train(4, 2)
    rank.gate.held = True
    rank.spend(20_000, rank.thread.hook)
    assert rank.looks(7) is None
    assert rank.looking.pause_s is not None
    rank.gate.held = False
    rank.stamps.resume()
    rank.train(6, 52)
    looks = rank.looks(7)
    assert looks is not None
    found = by_phase(looks)
    assert found.keys() == {("data", "load"), ("backward", "run_backward"), ("wait", "run_backward")}
    assert found["data", "load"] == pytest.approx(20, abs=4)
    assert looks.steps == pytest.approx(LOOKS_S / 0.06, abs=3)


def test_it_gives_up_after_a_minute(rank: Rank) -> None:
    """Of a rank that makes no steps there are no looks without end: they are bounded, and so is their answer."""
    rank.looks(7)
    rank.spend(61_000)
    assert rank.looking.pause_s is None
    rank.spend(2_000)
    looks = rank.looks(7)
    assert looks is not None
    assert looks.steps == 0


def test_own_code_and_libraries_are_told_apart(rank: Rank) -> None:
    """Where the thread stands in a library the frame says so, and its caller is the program's."""
    rank.looks(7)
    rank.train(4, 52)
    looks = rank.looks(7)
    assert looks is not None
    assert {(each.function, each.library) for each in looks.places} == {
        ("Standing.load", False), ("Standing.run_backward", False), ("Standing.run", False),
        ("Thread.run", True), ("Thread._bootstrap", True), ("Thread._bootstrap_inner", True),
    }  # fmt: skip


@pytest.mark.parametrize("is_newest_first", [True, False])
def test_hooks_of_a_backward_pass_are_seen_on_a_thread_of_the_engine(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, is_newest_first: bool
) -> None:
    """Torch runs them on threads of its own, also once a hook has asked for the present thread; others are not they."""
    other = Standing(lambda run: _thread.start_new_thread(run, ()))
    rank.has_engine = True
    if not is_newest_first:
        taken = "ddptop.agent.rank.inspection.looks.looking.current"
        monkeypatch.setattr(taken, lambda: dict(reversed(frames.current().items())))
    try:
        rank.looks(7)
        rank.spend(50)
        rank.train(4, 52)
        looks = rank.looks(7)
    finally:
        other.stand(None)
    assert looks is not None
    (names,) = {
        tuple(looks.places[each].function.rpartition(".")[2] for each in stack.frames)
        for stack in looks.stacks
        if stack.phase == "backward"
    }
    assert names[-4:] == ("run", "run_backward", "run", "hook")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another test has compiled."""
    monkeypatch.setattr("ddptop.agent.rank.inspection.looks.modules._is_compiled", lambda: False)


@pytest.mark.usefixtures("uncompiled")
def test_the_module_of_a_backward_pass_stands_above_the_engine(rank: Rank) -> None:
    """Modules are looked for where they are asked for, until the looks end; marked steps count."""
    rank.modules.present = "layer3", "layer3.conv2"
    for wanted in (False, True):
        rank.looking.ask(7 + wanted, modules=wanted)
        assert rank.modules.is_armed is wanted
    rank.modules.steps = set(range(4, 60, 2))
    rank.train(4, 52)
    assert rank.modules.is_armed
    assert not rank.modules._is_wanted
    looks = rank.looks(8)
    assert looks is not None
    assert looks.steps == pytest.approx(LOOKS_S / 0.06 / 2, abs=1)
    for stack in looks.stacks:
        names = [looks.places[each].function for each in stack.frames]
        expected = ["layer3", "layer3.conv2"] if "Standing.run_backward" in names else []
        assert names[names.index(f"Standing.{'run_backward' if expected else 'load'}") + 1 :] == expected


@pytest.mark.usefixtures("uncompiled")
def test_where_few_steps_are_marked_all_count(rank: Rank) -> None:
    """The looks take longer for them, and show what can be seen without modules."""
    rank.looking.ask(7, modules=True)
    rank.modules.steps = {9}
    rank.train(4, 120)
    looks = rank.looks(7)
    assert looks is not None
    assert looks.steps == pytest.approx(2 * LOOKS_S / 0.06, abs=1)
    assert {stack.phase for stack in looks.stacks} == {"data", "backward", "wait"}


def test_of_a_compiled_training_no_module_is_marked(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks take no longer for it."""
    monkeypatch.setattr("ddptop.agent.rank.inspection.looks.modules._is_compiled", lambda: True)
    rank.looking.ask(7, modules=True)
    assert not rank.modules.is_armed
    rank.train(4, 52)
    looks = rank.looks(7)
    assert looks is not None
    assert looks.steps == pytest.approx(LOOKS_S / 0.06, abs=1)


def test_frames_that_cannot_be_taken_end_nothing(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised there, the looks come to their end, and the answer is that there are none."""

    def fail() -> dict[int, object]:
        raise RuntimeError("no frames")

    monkeypatch.setattr("ddptop.agent.rank.inspection.looks.looking.current", fail)
    rank.looks(7)
    errors = 0
    for _ in range(7000):
        rank.now.now += MS
        try:
            rank.looking.glance()
        except RuntimeError:
            errors += 1
    assert 400 < errors < 800
    rank.stamps.steps += 3
    rank.now.now += 100 * MS
    rank.looking.glance()
    assert rank.looking.pause_s is None
    rank.now.now += 2000 * MS
    looks = rank.looks(7)
    assert looks is not None
    assert looks.stacks == ()
