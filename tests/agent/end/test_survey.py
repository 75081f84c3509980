"""What is true of a run that nobody looks after."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.harness import WAIT

from ddptop.agent.end import survey
from ddptop.agent.record.recording import events_of
from ddptop.agent.run.files.private import Claim, Hold
from ddptop.agent.run.identity import boot, namespace
from ddptop.agent.run.rundir import Ended, Member, Process, RunDir, identify

GONE = Process(2**22 + 1, 1.0)
"""No process: beyond the largest number that Linux gives."""


def enlist(directory: RunDir, rank: int, process: Process = GONE, code: int | None = None) -> None:
    """Write a rank's record."""
    ended = None if code is None else Ended(5, code, None if code == 0 else "ValueError: bad lr")
    directory.write_member(Member(rank, rank, 2, process, "host", 0, "", "", None, ended))


def test_job_started_by_hand(new_run: Callable[..., RunDir], python: Callable[..., subprocess.Popen[str]]) -> None:
    """It starts, runs while a rank lives, and ends as its ranks say; the end is written once, sockets go."""
    directory = new_run(launched=False)
    assert survey.settle(directory).state == "starting"
    first, second = python(WAIT), python(WAIT)
    enlist(directory, 0, identify(first.pid) or GONE)
    assert survey.settle(directory).state == "starting"
    enlist(directory, 1, identify(second.pid) or GONE)
    now = survey.settle(directory)
    assert (now.state, now.supervised, now.orphaned, now.alive) == ("running", False, False, (0, 1))
    enlist(directory, 0, code=0)
    assert survey.settle(directory).dead == (0,)
    enlist(directory, 1, code=3)
    (directory.path / "1.cmd").touch()
    assert survey.look(directory).state == "failed"
    assert directory.read().state == "starting", "looking writes nothing"
    end = survey.settle(directory)
    assert (end.state, end.cause_rank, end.cause) == ("failed", 1, "rank 1: ValueError: bad lr")
    assert directory.read().ended_at_ns == 5
    assert not (directory.path / "1.cmd").exists()
    again = survey.settle(directory)
    assert again.state == "failed"
    (event,) = events_of(directory.database, directory.read())
    assert (event.at_ns, event.text, event.rank) == (5, "run failed: rank 1: ValueError: bad lr", 1)


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (3, "failed")])
def test_a_job_by_hand_is_over_when_it_has_returned(
    new_run: Callable[..., RunDir], python: Callable[..., subprocess.Popen[str]], code: int, state: str
) -> None:
    """Also while its observer still writes down the end, but not before its launcher is gone."""
    launcher = python(WAIT)
    directory = new_run(
        launched=False, state="running", observer=identify(python(WAIT).pid), torchrun=identify(launcher.pid)
    )
    enlist(directory, 0, code=0)
    enlist(directory, 1, code=code)
    assert survey.look(directory).state == "running"
    launcher.kill()
    launcher.wait()
    found = survey.look(directory)
    assert (found.state, found.exit_code, found.supervised) == (state, code, True)
    assert directory.read().state == "running"


def test_ends_that_nobody_saw(new_run: Callable[..., RunDir]) -> None:
    """Finished if every rank said so, lost if one left no word."""
    finished, lost = new_run(torchrun=GONE, observer=GONE), new_run(torchrun=GONE, observer=GONE)
    for rank in (0, 1):
        enlist(finished, rank, code=0)
    enlist(lost, 0, code=0)
    enlist(lost, 1)
    assert survey.settle(finished).state == "finished"
    assert finished.read().exit_code == 0
    assert survey.settle(lost).state == "lost"


def test_an_observer_that_comes_between_two_looks_is_seen(
    new_run: Callable[..., RunDir], python: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose record names nobody at first, and its observer a moment later, goes on."""
    directory = new_run()
    before = directory.read()
    directory.update(observer=identify(python(WAIT).pid))
    records = [before]
    read = RunDir.read
    monkeypatch.setattr(RunDir, "read", lambda self: records.pop() if records else read(self))
    now = survey.look(directory)
    assert (now.state, now.supervised, now.cause) == ("starting", True, None)


def test_run_without_anybody_is_lost_after_a_while(new_run: Callable[..., RunDir]) -> None:
    """An observer that never came is waited for; one that died at once is not, and its last line is the cause."""
    fresh, stale = new_run(), new_run(created_at_ns=time.time_ns() - 31 * 10**9)
    dead = new_run(observer=GONE)
    dead.observer_log.write_text("Traceback\nModuleNotFoundError: No module named 'zmq'\n")
    assert [survey.look(each).state for each in (fresh, stale, dead)] == ["starting", "lost", "lost"]
    assert survey.look(dead).cause == (
        "it ended before torchrun was started: ModuleNotFoundError: No module named 'zmq'"
    )


def test_last_word_of_the_observer_wins(new_run: Callable[..., RunDir]) -> None:
    """A record that says how the run ended is not judged again."""
    directory = new_run(state="failed", cause="as written", exit_code=9, torchrun=GONE)
    enlist(directory, 0, code=0)
    enlist(directory, 1, code=0)
    before = directory.read()
    assert (survey.settle(directory).state, survey.look(directory).cause) == ("failed", "as written")
    assert msgspec.json.encode(directory.read()) == msgspec.json.encode(before)


def test_a_run_whose_container_was_killed_is_over(new_run: Callable[..., RunDir]) -> None:
    """Processes out of sight are believed as long as anybody holds the run's folder, and no longer."""
    unseen = Process(7, 1.0, boot(), namespace() + "0")
    directory = new_run(observer=unseen, torchrun=unseen, state="running")
    for rank in (0, 1):
        enlist(directory, rank, unseen)
    hold = Hold.acquire(directory.path)
    found = survey.settle(directory)
    assert (found.state, found.supervised, found.alive) == ("running", True, (0, 1))
    hold.release()
    # Nobody holds it while ranks start, either.
    assert survey.settle(directory).state == "running"
    for path in (directory.path, directory.path / "run.json", directory.path / "ranks"):
        os.utime(path, (1e9, 1e9))
    assert survey.settle(directory).state == directory.read().state == "lost"


def test_a_look_whether_a_folder_is_held_disturbs_nobody(new_run: Callable[..., RunDir]) -> None:
    """While others look again and again, whoever takes hold of the folder gets it."""
    path = new_run().path
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            Hold.is_free(path)
            # In a folder that is always locked nobody gets in; those who look do so four times a second.
            time.sleep(0.0005)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            hold = Hold.acquire(path)
            assert not Hold.is_free(path)
            hold.release()
    finally:
        over.set()
        for looker in lookers:
            looker.join()
    assert Hold.is_free(path)


def test_an_end_is_written_under_the_claim_alone(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while somebody else holds it, and not into the record of another run that has the name by then."""
    directory = new_run(torchrun=GONE, observer=GONE)
    for rank in (0, 1):
        enlist(directory, rank, code=0)
    claim = Claim.acquire(directory.path)
    assert claim is not None
    assert survey.settle(directory).state == "finished"
    assert directory.read().state == "starting"
    claim.release()
    take = Claim.acquire

    def late(path: Path) -> Claim | None:
        directory.update(run_id="another")
        return take(path)

    with monkeypatch.context() as patch:
        before = directory.read().run_id
        patch.setattr(Claim, "acquire", late)
        survey.settle(directory)
    assert directory.read().state == "starting"
    directory.update(run_id=before)
    assert survey.settle(directory).state == directory.read().state == "finished"
