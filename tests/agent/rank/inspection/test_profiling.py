"""A rank profiles the steps that were asked for, whole and alone, and says why where it cannot."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from support import late
from support.bases import marked
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.rank.ahead import Passed, Unanswered
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection import profiling
from ddptop.agent.rank.inspection.profiling import Profiling
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.stamps import Stamps, StepStamps

if TYPE_CHECKING:
    import torch

_imports = late.imports(globals())


class Training:
    """A loop whose boundaries call the profiling, as a session does."""

    def __init__(self, folder: Path) -> None:
        self.completed = 0
        self.folder = folder
        self.stamps = cast(Any, SimpleNamespace(eventful=7, record_present=lambda: None))
        self.faults = Faults()
        self.profiling = Profiling(2, folder, self.stamps, self.faults)

    def step(self, number: int = 1) -> None:
        for _ in range(number):
            torch.ones(4 + self.completed, 3).sum()
            self.completed += 1
            if self.profiling.is_armed:
                self.profiling.boundary(self.completed)

    def ask(self, first: int, steps: int, token: str = "a") -> wire.Profiled | None:
        return self.profiling.ask(wire.Profile(1, token, 1, first, steps), self.completed)

    def profiled(self, first: int, steps: int, token: str = "a") -> wire.Profiled:
        found: list[wire.Profiled] = []

        def is_there() -> bool:
            found[:] = [each for each in [self.ask(first, steps, token)] if each is not None]
            return bool(found)

        until(is_there, "the trace")
        return found[0]


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(marked(tmp_path) / "profiles")


def events(trace: Path) -> list[dict[str, Any]]:
    """Return the events of a trace that last."""
    found = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [event for event in found if event.get("ph") == "X"]


def test_whole_steps_are_profiled_and_no_others(training: Training, tmp_path: Path) -> None:
    """Each step is marked, and the work in the marks, by its shapes, is that of these steps."""
    assert training.ask(5, 3) is None
    training.step(12)
    profiled = training.profiled(5, 3)
    trace = tmp_path / "profiles/0001/rank-2.json.gz"
    assert profiled.size == trace.stat().st_size
    found = events(trace)
    marks = [event for event in found if event["name"].startswith("ddptop step ")]
    assert [mark["name"] for mark in marks] == [f"ddptop step {step}" for step in (5, 6, 7)]
    rows = {event["args"]["Input Dims"][0][0] for event in found if event["name"] == "aten::sum"}
    # The step of number n begins with n - 1 that are completed.
    assert rows == {4 + step - 1 for step in (5, 6, 7)}
    assert not training.profiling.is_armed


def test_the_phases_of_each_profiled_step_are_known_though_few_steps_are_recorded(training: Training) -> None:
    """Where most are only counted, these are recorded, and no others for it."""
    stamps = Stamps(time.monotonic_ns, time.time_ns)
    stamps.every = 64
    training.profiling = Profiling(2, training.folder, stamps, training.faults)

    def step() -> None:
        stamps.cut(training.completed + 1)
        training.step()

    while stamps.recording or stamps.eventful < training.completed + 12:
        step()
    stamps.finished.clear()
    first = training.completed + 3
    training.ask(first, 3)
    for _ in range(8):
        step()
    for each in stamps.finished:
        training.profiling.settle(each)
    steps = [first, first + 1, first + 2]
    assert [each.step for each in training.profiled(first, 3).steps] == steps
    assert [each.step for each in stamps.finished] == steps
    assert not training.faults.count


def test_the_profiler_says_nothing_in_the_output_of_the_script(
    training: Training, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that it begins, nor that it has found no device; and the variables of the script are as they were."""
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    training.ask(2, 1)
    training.step(3)
    training.profiled(2, 1)
    assert capfd.readouterr() == ("", "")
    assert "KINETO_LOG_LEVEL" not in os.environ


def test_a_step_that_has_begun_is_not_profiled(training: Training) -> None:
    """Whoever asks too late is told, before or after the question was heard."""
    training.step(4)
    with pytest.raises(Passed):
        training.ask(5, 1)
    assert not training.profiling.is_armed
    assert training.ask(6, 1, "b") is None
    # The training thread has gone on before it saw the question.
    training.completed += 2
    training.step()
    with pytest.raises(Passed):
        training.ask(6, 1, "b")


def test_every_boundary_has_something_to_do_while_it_is_asked(training: Training) -> None:
    """A step that is only counted takes a shorter way, on which nobody would begin the profile."""
    training.ask(3, 1)
    assert training.stamps.eventful == 0
    training.stamps.eventful = 9
    training.step()
    assert training.stamps.eventful == 0
    training.step(2)
    training.profiled(3, 1)
    training.stamps.eventful = 9
    training.step()
    assert training.stamps.eventful == 9


def test_a_profile_that_was_given_up_does_not_keep_the_next_from_beginning(training: Training) -> None:
    """It ends first, because torch has one profiler, and then the next one is made."""
    training.ask(2, 2, "a")
    training.step(2)
    assert training.ask(9, 1, "b") is None
    training.step()
    until(lambda: training.ask(9, 1, "b") is None and training.profiling.is_armed, "the end of the first")
    training.step(7)
    training.profiled(9, 1, "b")


def test_a_script_that_profiles_itself_keeps_its_profiler(training: Training) -> None:
    """The rank says so, and what the script does is as it would be."""
    training.ask(2, 1)
    with torch.profiler.profile() as theirs:
        training.step(3)
    with pytest.raises(Unanswered, match="uses the profiler"):
        training.ask(2, 1)
    assert any(each.name == "aten::sum" for each in theirs.events() or ())


@pytest.mark.parametrize("whole", [True, False])
def test_a_script_that_profiles_itself_meanwhile_keeps_its_profiler(training: Training, *, whole: bool) -> None:
    """Torch has one for a process, and crashes the process that writes the trace of one that another has replaced."""
    training.ask(2, 3)
    training.step(2)
    with torch.profiler.profile() as theirs:
        training.step(1 if whole else 4)
    training.step(4)
    with pytest.raises(Unanswered, match="has used the profiler meanwhile"):
        training.ask(2, 3)
    assert any(each.name == "aten::sum" for each in theirs.events() or ())
    assert not any(each.name.startswith("ddptop") for each in theirs.events() or ())
    training.ask(20, 1, "b")
    training.step(20)
    training.profiled(20, 1, "b")


def test_a_thread_of_the_script_may_profile_meanwhile(training: Training) -> None:
    """The profile ends with its step, and no trace of it is written."""
    training.ask(2, 3)
    training.step(2)

    def profile() -> None:
        with torch.profiler.profile():
            torch.ones(3).sum()

    thread = threading.Thread(target=profile)
    thread.start()
    thread.join()
    training.step(4)
    with pytest.raises(Unanswered, match="has used the profiler meanwhile"):
        training.ask(2, 3)
    assert not cast(Any, torch.autograd)._profiler_enabled()


def test_a_profiler_does_not_outlive_an_error(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would gather events until the training ends."""

    def fail(step: int) -> None:
        raise ValueError(step)

    monkeypatch.setattr(profiling, "_mark", fail)
    training.ask(2, 1)
    training.step(2)
    with pytest.raises(Unanswered, match="ValueError"):
        training.ask(2, 1)
    assert not cast(Any, torch.autograd)._profiler_enabled()


def test_a_forked_child_profiles_nothing(training: Training) -> None:
    """It has a copy of what was asked, and no profiler: its steps are its own."""
    training.ask(2, 2)
    training.step(2)
    ours = training.profiling._active
    assert ours is not None
    training.profiling.abandon()
    assert not training.profiling.is_armed
    # In the parent it goes on.
    ours.end_mark()
    ours.profiler.stop()


def test_a_trace_that_nobody_has_read_goes_with_the_next(training: Training, tmp_path: Path) -> None:
    """The observer of another host has given it up, and does not reach it here."""
    training.ask(2, 1)
    training.step(3)
    training.profiled(2, 1)
    training.profiling.ask(wire.Profile(1, "b", 2, 9, 1), training.completed)
    assert not list((tmp_path / "profiles").glob("*/[!.]*"))


@pytest.mark.parametrize("steps", [0, 2, 5])
def test_what_is_cancelled_leaves_no_profiler_and_no_trace(training: Training, tmp_path: Path, steps: int) -> None:
    """Before the first of its steps, among them, and once it is written; the next profile is made."""
    training.ask(2, 3)
    training.step(steps)
    if steps == 5:
        training.profiled(2, 3)
    training.profiling.cancel("another")
    assert training.profiling._asked is not None
    assert not training.profiling._asked.problem
    training.profiling.cancel("a")
    training.step()
    assert not torch._C._autograd._profiler_enabled()
    training.step(8)
    assert not training.profiling.is_armed
    assert not list((tmp_path / "profiles").glob("*/[!.]*"))
    with pytest.raises(Unanswered, match="cancelled"):
        training.ask(2, 3)
    training.ask(20, 1, "b")
    training.step(20)
    training.profiled(20, 1, "b")


def test_a_trace_that_cannot_be_written_is_a_reason(training: Training, tmp_path: Path) -> None:
    """Nothing is left of it, and the next profile is made."""
    training.ask(2, 1)
    folder = tmp_path / "profiles/0001"
    shutil.rmtree(folder)
    training.step(3)

    def is_refused() -> bool:
        try:
            training.ask(2, 1)
        except Unanswered as problem:
            return "cannot be written" in str(problem)
        return False

    until(is_refused, "the reason")
    assert not folder.exists()
    training.ask(6, 1, "b")
    training.step(4)
    training.profiled(6, 1, "b")


def test_a_script_that_ends_before_has_no_profile(training: Training) -> None:
    """Whoever waits for it is told."""
    training.ask(9, 1)
    training.profiling.close()
    training.step(20)
    with pytest.raises(Unanswered, match="has ended"):
        training.ask(9, 1)


def test_a_trace_is_read_in_pieces_and_removed_behind_its_end(training: Training, tmp_path: Path) -> None:
    """What another host gets is the file, and nothing of it stays here."""
    training.ask(2, 1)
    training.step(3)
    size = training.profiled(2, 1).size
    trace = tmp_path / "profiles/0001/rank-2.json.gz"
    content, read = trace.read_bytes(), b""
    assert training.profiling.read("other", 0) is None
    while len(read) < size:
        piece = training.profiling.read("a", len(read))
        assert piece is not None
        read += piece.content
    assert read == content
    assert training.profiling.read("a", size) == wire.ProfilePiece(size, b"")
    assert not trace.exists()


def test_the_intervals_of_a_step_add_up_to_its_phases() -> None:
    """Each nanosecond is in one of them, and a blocked one is a wait, as in the record."""
    stamped = StepStamps()
    stamped.marks[:] = [(100, 0), (130, 1), (180, 2), (290, 3), (300, 4)]
    stamped.end, stamped.observed = 350, True
    stamped.waits[:] = [(120, 140), (200, 250), (240, 260)]
    record = meter.record(stamped)
    intervals = list(meter.intervals_of(stamped))
    assert [begin for begin, _, _ in intervals] == [0, *(end for _, end, _ in intervals[:-1])]
    assert intervals[-1][1] == record.wall_ns
    for name in ("data", "forward", "backward", "optimizer", "other", "wait"):
        sum_ns = sum(end - begin for begin, end, phase in intervals if phase == name)
        assert sum_ns == getattr(record, f"{name}_ns"), name
