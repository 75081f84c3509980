"""The agent of a rank starts the observer of a run that has none, and a failure of that stays its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
import time
from pathlib import Path

import msgspec
import pytest

from ddptop.agent.launcher import detached
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import observing
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Process, Run, RunDir, identify

GONE = Process(2**22 + 1, 1.0)
BY_HAND = Run("", "id", "train.py", (), 1, None, None, time.time_ns(), launched=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    """Note the starts, and start something short instead."""
    found: list[RunDir] = []

    def start(directory: RunDir) -> subprocess.Popen[bytes]:
        found.append(directory)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(detached, "start", start)
    return found


def ensured(run: Run, generation: int = 0) -> tuple[RunDir, Faults]:
    """Make the directory of a run, and have the agent of a rank see to its observer."""
    directory = rundir.create(msgspec.structs.replace(run, run=f"test-{secrets.token_hex(3)}"))
    faults = Faults()
    observing.ensure(directory, generation, faults)
    # The fixture of all tests ends whoever a record names as the observer.
    directory.update(observer=None)
    return directory, faults


@pytest.mark.parametrize(
    ("run", "generation", "count"),
    [
        (BY_HAND, 0, 1),
        (BY_HAND, 3, 1),
        (msgspec.structs.replace(BY_HAND, observer=GONE), 1, 1),
        (msgspec.structs.replace(BY_HAND, observer=identify(os.getpid())), 1, 0),
        (msgspec.structs.replace(BY_HAND, state="finished"), 0, 0),
        (msgspec.structs.replace(BY_HAND, launched=True), 0, 0),
        (msgspec.structs.replace(BY_HAND, launched=True, observer=GONE), 1, 1),
    ],
)
def test_a_run_without_an_observer_gets_one(started: list[RunDir], run: Run, generation: int, count: int) -> None:
    """Not one that has a living one or has ended, nor a launched one, whose ranks its observer has started."""
    directory, faults = ensured(run, generation)
    assert started == [directory] * count
    assert faults.count == 0


@pytest.mark.parametrize(
    ("run", "crashed", "count"),
    [
        (msgspec.structs.replace(BY_HAND, observer=GONE), True, 1),
        (msgspec.structs.replace(BY_HAND, observer=GONE), False, 0),
        (msgspec.structs.replace(BY_HAND, observer=identify(os.getpid())), True, 0),
        (msgspec.structs.replace(BY_HAND, observer=GONE, state="finished"), True, 0),
        (BY_HAND, True, 0),
    ],
)
def test_an_observer_that_was_killed_is_replaced(started: list[RunDir], run: Run, crashed: bool, count: int) -> None:
    """Neither one that was told to leave and has removed its sockets, nor a living one, nor that of an ended run."""
    directory = rundir.create(msgspec.structs.replace(run, run=f"test-{secrets.token_hex(3)}"))
    if crashed:
        Path(directory.address("observer", "pub").removeprefix("ipc://")).touch()
    faults = Faults()
    observing.replace_lost(directory, faults)
    directory.update(observer=None)
    assert started == [directory] * count
    assert faults.count == 0


def test_of_many_ranks_that_ask_at_once_one_starts_it(started: list[RunDir]) -> None:
    """Without a launcher that numbers them, every rank of a host takes itself for its first."""
    directory = rundir.create(msgspec.structs.replace(BY_HAND, run=f"test-{secrets.token_hex(3)}"))
    ranks = [threading.Thread(target=observing.ensure, args=(directory, 0, Faults())) for _ in range(8)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert started == [directory]


def test_a_failure_is_a_fault_of_the_rank_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a process that cannot be started, nor a record that is gone, nor a lack of threads is raised."""

    def fail(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(detached, "start", fail)
    directory, faults = ensured(BY_HAND)
    assert (faults.count, faults.last) == (1, "starting the run's observer: OSError: no more processes")
    (directory.path / "run.json").unlink()
    observing.ensure(directory, 0, faults)
    assert faults.count == 2
    monkeypatch.setattr(threading.Thread, "start", fail)
    observing.ensure(directory, 0, faults)
    assert faults.count == 3


def test_a_start_that_hangs_does_not_hold_up_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that answers nobody delays the script for a bounded time."""
    hanging = threading.Event()
    monkeypatch.setattr(detached, "start", lambda directory: hanging.wait())
    monkeypatch.setattr(observing, "_PATIENCE_S", 0.05)
    _, faults = ensured(BY_HAND)
    assert faults.count == 0
    hanging.set()
