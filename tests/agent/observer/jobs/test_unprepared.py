"""The ranks that nobody prepared and their ends, as their observer records them."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from support.harness import WAITING, started

from ddptop.agent.end import cause, processes
from ddptop.agent.observer.jobs.attached import Attached
from ddptop.agent.observer.jobs.unprepared import Unprepared, record_ends
from ddptop.agent.observer.one_run import Observer
from ddptop.agent.outside import groups
from ddptop.agent.outside.groups import Group
from ddptop.agent.run import identity
from ddptop.agent.run.ends import Death
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Member, RunDir

OUTPUT = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 5, in <module>
[rank1]:     raise ValueError("bad lr")
[rank1]: ValueError: bad lr
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 6, in <module>
[rank0]:     dist.all_reduce(t)
[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [::1]:1
E1128 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 11) of binary: py
"""


@pytest.fixture
def job(new_run: Callable[..., RunDir], tmp_path: Path) -> RunDir:
    """Two ranks whose output goes to one file, in which an earlier job has left an error."""
    log = tmp_path / "out.log"
    log.write_text(earlier := "[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 'of yesterday'\n")
    directory = new_run(launched=False, outside=True)
    for rank in (0, 1):
        process = Process(10 + rank, 1.0)
        member = Member(
            rank, rank, 2, process, "host", 0, "", "", str(log), log_begin=len(earlier), by_agent=False
        )  # fmt: skip
        directory.write_member(member)
    log.write_text(earlier + OUTPUT)
    return directory


def test_the_exception_of_each_rank_is_its_own(job: RunDir) -> None:
    """Of an output that several ranks share, each has its own traceback, and the first cause is the one that failed."""
    status = {0: 1, 1: 1}
    record_ends(job, {0: 2_000, 1: 2_000}, status)
    members = job.members()
    errors = {rank: member.ended.error for rank, member in members.items() if member.ended is not None}
    assert errors[1] == "ValueError: bad lr"
    assert errors[0] is not None
    assert errors[0].startswith("RuntimeError: [/pytorch/")
    deaths = {rank: Death(rank, 2_000, code, None, "") for rank, code in status.items()}
    found = cause.judge(2, members, None, directory=job, deaths=deaths)
    assert (found.state, found.rank, found.cause) == ("failed", 1, "rank 1: ValueError: bad lr")


def test_what_is_not_known_is_not_said(job: RunDir) -> None:
    """A signal, or an end without a status, is no word of the rank; an end in order has no exception."""
    record_ends(job, {0: 2_000, 1: 2_000}, {0: -9})
    assert [member.ended for member in job.members().values()] == [None, None]
    record_ends(job, {0: 2_000}, {0: 0, 1: 1})
    first, second = job.members().values()
    assert first.ended is not None
    assert (first.ended.exit_code, first.ended.error, second.ended) == (0, None, None)


def test_who_starts_a_second_group_is_no_launcher_any_more(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor what was seen below it meanwhile is of the run then, and a kill spares both."""
    above, own = identity.identify(os.getppid()), identity.identify(os.getpid())
    assert above is not None
    assert own is not None
    directory = new_run(launched=False, outside=True, world=1, local_world=1, torchrun=above, known=(own,))
    group = Group(
        {0: Process(10, 1.0)}, {0: 0}, 1, above, ("python", "sweep.py", "--token", "hf_secret"), "train.py", ()
    )
    now = [0.0]
    outside = Unprepared(directory, lambda: now[0])

    def look(found: Group) -> dict[str, object]:
        now[0] += 60
        monkeypatch.setattr(groups, "again", lambda *_: found)
        changes = outside.turn(directory.read(), complete=True)
        directory.update(**changes)
        return changes

    assert "torchrun" not in look(group)
    look(replace(group, world=2))
    assert (directory.read().world, directory.read().command) == (2, ("python", "sweep.py", "--token", "***"))
    look(replace(group, world=2, launcher=None, command=(), starter=above))
    after = directory.read()
    assert (after.torchrun, after.starter, after.command, after.known) == (None, above, (), ())


def test_the_shell_between_a_sweep_and_its_trials_is_not_remembered(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of the first trial only until it starts the next one: a kill of the first reaches neither then."""
    monkeypatch.setattr(groups, "again", lambda *_: None)
    words = sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"
    shell = "bash", "-c", f"while read; do {shlex.join(WAITING)} & echo $!; done"
    trials: list[Process] = []
    now = [0.0]
    with started(*words, *shell, stdin=-1, stdout=-1) as process:
        assert process.stdin
        assert process.stdout
        directory = new_run(launched=False, outside=True, starter=identity.identify(process.pid), owner=os.getuid())
        outside = Unprepared(directory, lambda: now[0])
        try:
            for count in (3, 1):
                print(file=process.stdin, flush=True)
                trials += filter(None, [identity.identify(int(process.stdout.readline()))])
                directory.write_member(Member(0, 0, 1, trials[0], "host", 0, "", "", None, by_agent=False))
                now[0] += 60
                directory.update(**outside.turn(directory.read(), complete=True))
                assert len(processes.find(directory.read(), directory.members())) == count
            assert directory.read().known == ()
        finally:
            for trial in trials:
                identity.send(trial, signal.SIGKILL)


def test_a_launcher_that_is_none_any_more_is_not_waited_for(job: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has started another group, the end of the run does not wait for its own, without another observer."""
    above = identity.identify(os.getppid())
    assert above is not None
    job.update(torchrun=above, local_world=2)
    found = Group({rank: each.process for rank, each in job.members().items()}, {}, 2, None, (), "train.py", ())
    monkeypatch.setattr(groups, "again", lambda *_: replace(found, starter=above))
    with observed(job) as observer:
        observer._launcher = launcher = Attached(job, job.read())
        assert launcher.process == above
        observer._look_outside()
        assert launcher.process is None
        assert launcher.is_over()


@contextlib.contextmanager
def observed(directory: RunDir) -> Iterator[Observer]:
    """The observer of a run, in this process, before it has begun."""
    claim = Claim.acquire(directory.path)
    assert claim is not None
    with zmq.Context() as context:
        observer = Observer(directory, directory.read(), context, claim)
        try:
            yield observer
        finally:
            observer._close()
            claim.release()


def test_records_that_cannot_be_written_end_no_observer(
    job: RunDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the folder of the ranks is gone, the look for them fails, its log says so, and the run goes on."""
    found = Group({rank: each.process for rank, each in job.members().items()}, {}, 2, None, (), "train.py", ())
    monkeypatch.setattr(groups, "again", lambda *_: found)
    shutil.rmtree(job.path / "ranks")
    (job.path / "ranks").touch()
    with observed(job) as observer:
        observer._look_outside()
    assert "looking for ranks: OSError" in caplog.text
