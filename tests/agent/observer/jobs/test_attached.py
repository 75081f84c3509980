"""Jobs that something else launched: they get an observer, are recorded and judged, and nothing of them is ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.harness import WAIT, WAITING, carriers, ddptop, until
from support.processes.supervised import events
from support.values.recordings import read_history

from ddptop.agent.client.sources import takeover
from ddptop.agent.end import survey
from ddptop.agent.launcher import detached
from ddptop.agent.observer.jobs.attached import Attached
from ddptop.agent.run import ends, rundir
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.identity import table
from ddptop.agent.run.rundir import Process, RunDir, identify, is_alive
from ddptop.agent.wire.frames import ENDED

SPAWNER = Path(__file__).parents[1] / "spawner.py"
UNTIL_GO = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
SECRET = "TOKEN=of-the-rank"

ByHand = Callable[..., "tuple[subprocess.Popen[bytes], RunDir]"]


def bind() -> None:
    """Bind a process to one core, and block a signal, as launchers and scripts do."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def ancestors(pid: int) -> set[int]:
    """Return a process and those above it, by /proc."""
    rows, found = table(), set()
    while pid in rows and pid not in found:
        found.add(pid)
        pid = rows[pid].parent
    return found


def only_run() -> RunDir:
    """Return the only run of the test, once its record is there."""
    until(rundir.runs, "the run directory")
    return rundir.runs()[0]


def observed(directory: RunDir, other_than: Process | None = None) -> Process:
    """Return the observer of the run, once it looks after it."""

    def there() -> Process | None:
        now = directory.read().observer
        return now if now != other_than and is_alive(now) else None

    found = until(there, "the observer")
    assert isinstance(found, Process)
    return found


def recorded(directory: RunDir) -> set[str]:
    """Return the kinds of messages in the recording."""
    return {type(message).__name__ for message in read_history(directory.database)}


def gone(process: Process) -> None:
    """Wait until a process has ended."""
    until(lambda: not is_alive(process), f"process {process.pid} has gone")


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[ByHand]:
    """Start a script of two ranks by a launcher of which ddptop knows what it knows of torchrun."""
    started: list[subprocess.Popen[bytes]] = []

    def go(text: str, **variables: str) -> tuple[subprocess.Popen[bytes], RunDir]:
        (tmp_path / "script.py").write_text(text)
        name, _, value = SECRET.partition("=")
        process = subprocess.Popen(
            [sys.executable, str(SPAWNER), "2", "script.py"],
            cwd=tmp_path,
            env=os.environ
            | {"EXEC": "", "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", name: value}
            | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=bind,
        )
        started.append(process)
        return process, only_run()

    yield go
    for directory in rundir.runs():
        run = directory.read()
        for pid in carriers(run.run_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if is_alive(run.observer):
            assert run.observer is not None
            os.kill(run.observer.pid, signal.SIGKILL)
    for process in started:
        process.kill()
        process.wait()


def targets(pid: int) -> set[str]:
    """Return what the descriptors of a process refer to, but for those that it closes meanwhile."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(entry))
    return found


def test_a_job_started_by_hand_is_observed_to_its_end_and_stays(by_hand: ByHand, tmp_path: Path) -> None:
    """Its observer has nothing of the rank; afterwards the record, its events and its history are there, as of a
    launched run, no process is left, and the verbs show it.
    """
    process, directory = by_hand(UNTIL_GO)
    watching = observed(directory)
    until(lambda: directory.read().state == "running", "both ranks are up")
    assert survey.look(directory).supervised
    ranks = [member.process.pid for member in directory.members().values()]
    files = Path(f"/proc/{watching.pid}")
    variables = (files / "environ").read_bytes().decode().split("\0")
    names = {entry.partition("=")[0] for entry in variables}
    assert SECRET not in variables
    assert not {name for name in names if name.startswith(("RANK", "WORLD", "LOCAL_", "MASTER", "TORCH", "LD_PRELOAD"))}
    assert {name for name in names if name.startswith("DDPTOP")} == {rundir.BASE_VARIABLE}
    assert os.getsid(watching.pid) == os.getpgid(watching.pid) == watching.pid
    assert os.getpriority(os.PRIO_PROCESS, watching.pid) >= os.getpriority(os.PRIO_PROCESS, ranks[0]) + 10 or (
        os.getpriority(os.PRIO_PROCESS, watching.pid) == 19
    )
    assert Path(os.readlink(files / "cwd")) == directory.path
    assert not ancestors(watching.pid) & {process.pid, *ranks}
    theirs = {os.readlink(entry) for entry in Path(f"/proc/{ranks[0]}/fd").iterdir() if entry.name in ("0", "1", "2")}
    assert os.readlink(files / "fd" / "0") == "/dev/null"
    assert {os.readlink(files / "fd" / number) for number in "12"} == {str(directory.observer_log)}
    assert not {target for target in theirs if target.startswith(("pipe", "socket"))} & targets(watching.pid)
    assert os.sched_getaffinity(watching.pid) == os.sched_getaffinity(0) > os.sched_getaffinity(ranks[0])
    assert f"SigBlk:\t{0:016x}\n" in (files / "status").read_text()
    assert not [row for row in table().values() if row.parent in ranks], "no child of a rank is left"
    until(lambda: {"Hello", "Beat"} <= recorded(directory), "it has heard a rank")
    (tmp_path / "go").touch()
    process.wait()
    gone(watching)
    record = directory.read()
    assert (record.state, record.exit_code) == ("finished", 0)
    last = max(member.ended.at_ns for member in directory.members().values() if member.ended)
    assert record.ended_at_ns == last
    assert {"rank 0 finished", "rank 1 finished", "run finished"} <= set(events(directory))
    assert recorded(directory) >= {"Hello", "Beat", "Event"}
    assert {".pub", ".cmd"}.isdisjoint(path.suffix for path in directory.path.iterdir())
    assert not (directory.path / "lock").exists()
    assert carriers(record.run_id) == []
    assert "finished" in ddptop("ps").stdout
    assert "rank 1 finished" in ddptop("events", directory.name).stdout


def test_its_observer_is_replaced_and_the_ranks_do_not_notice(by_hand: ByHand, tmp_path: Path) -> None:
    """After kill -9 the next process that looks starts another one, also a second and a third time; never two."""
    process, directory = by_hand(UNTIL_GO)
    watching = observed(directory)
    until(lambda: directory.read().state == "running", "both ranks are up")
    ranks = {rank: member.process for rank, member in directory.members().items()}
    for number in (1, 2):
        os.kill(watching.pid, signal.SIGKILL)
        gone(watching)
        assert survey.look(directory).state == "running"
        until(lambda: takeover.meet(directory).supervised, "another one")
        watching = observed(directory, watching)
        assert Claim.acquire(directory.path) is None
        # One too many leaves at once.
        detached.start(directory).wait()

        def said(number: int = number) -> bool:
            return sum("takes over" in text for text in events(directory)) == number

        until(said, "it says so")
    assert {rank: member.process for rank, member in directory.members().items()} == ranks
    assert directory.read().observer == watching
    (tmp_path / "go").touch()
    assert process.wait() == 0
    gone(watching)
    assert directory.read().state == "finished"
    assert said()


def test_each_generation_is_followed_and_the_first_cause_told(by_hand: ByHand, tmp_path: Path) -> None:
    """While its torchrun lives the run is not over though no rank does; the last generation decides."""
    failing = f"if os.environ['RANK'] == '1': raise ValueError('bad lr')\n{WAIT}\n"
    process, directory = by_hand(UNTIL_GO + failing, RESTARTS="1")
    watching = observed(directory)
    until(lambda: directory.read().state == "running", "both ranks are up")
    (tmp_path / "go").touch()
    assert process.wait() == 1
    gone(watching)
    record = directory.read()
    assert (record.state, record.cause_rank, record.cause) == ("failed", 1, "rank 1: ValueError: bad lr")
    assert "restart 1: rank 1: ValueError: bad lr" in events(directory)
    assert {member.generation for member in directory.members().values()} == {1}


def test_a_new_generation_brings_an_observer_with_it(by_hand: ByHand, tmp_path: Path) -> None:
    """Nobody looks: the first rank of the next generation finds that the observer was killed, and starts another."""
    script = UNTIL_GO + (
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise SystemExit(1)\n"
        "while not os.path.exists('end'): time.sleep(0.05)\n"
    )
    process, directory = by_hand(script, RESTARTS="1")
    first = observed(directory)
    until(lambda: directory.read().state == "running", "both ranks are up")
    os.kill(first.pid, signal.SIGKILL)
    gone(first)
    # The last attempt was a while ago.
    os.utime(directory.observer_log, (1e9, 1e9))
    (tmp_path / "go").touch()
    watching = observed(directory, first)
    (tmp_path / "end").touch()
    assert process.wait() == 0
    gone(watching)
    assert directory.read().state == "finished"
    assert {member.generation for member in directory.members().values()} == {1}


def test_ranks_that_are_killed_without_a_word_are_the_cause(by_hand: ByHand, tmp_path: Path) -> None:
    """The observer has seen which rank went first; helpers that outlive such a job are left alone."""
    # The other rank ends once it was seen which one went first.
    lingers = (
        "import os, signal, time\n"
        "def linger(*_):\n"
        "    while not os.path.exists('seen'): time.sleep(0.02)\n"
        "    os.kill(os.getpid(), 9)\n"
        "signal.signal(signal.SIGTERM, linger)\n"
    )
    process, directory = by_hand(lingers + UNTIL_GO)
    stray = subprocess.Popen(
        WAITING,
        env=os.environ | {rundir.MARKER: directory.read().run_id},
    )
    try:
        watching = observed(directory)
        until(lambda: directory.read().state == "running", "both ranks are up")
        os.kill(directory.members()[1].process.pid, signal.SIGKILL)
        until(lambda: ends.read(directory.path, 0).get(1), "its end is seen")
        (tmp_path / "seen").touch()
        process.wait()
        gone(watching)
        record = directory.read()
        assert (record.state, record.cause_rank) == ("failed", 1)
        assert record.cause is not None
        # Nobody but the system knows the signal, and it tells it to the observer.
        assert record.cause.startswith("rank 1 was killed by SIGKILL (")
        assert stray.poll() is None
    finally:
        stray.kill()
        stray.wait()


def test_kill_goes_through_the_observer(by_hand: ByHand) -> None:
    """Launcher and ranks end, the author is recorded, and nothing is left of what can be found.

    A daemon with an empty environment cannot: who reads `0 left` is told what was looked for.
    """
    process, directory = by_hand(UNTIL_GO)
    watching = observed(directory)
    until(lambda: directory.read().state == "running", "both ranks are up")
    done = ddptop("kill", directory.name)
    sought = "(of what they started, or what has the run's mark in its environment)"
    assert done.stdout == f"{directory.name}: 2 ranks ended, 0 left {sought}\n", done.stderr
    assert done.returncode == 0
    process.wait()
    gone(watching)
    assert directory.read().state == "killed"
    assert any("kill requested · " in text for text in events(directory))
    assert carriers(directory.read().run_id) == []


def test_an_observer_without_its_directory_ends_with_the_job(by_hand: ByHand, tmp_path: Path) -> None:
    """Somebody removes the run directory by hand: the training goes on, and the observer does not stay for ever."""
    process, directory = by_hand(UNTIL_GO)
    watching = observed(directory)
    until(lambda: directory.read().state == "running", "both ranks are up")

    def removed() -> bool:
        # The observer may write into it meanwhile.
        shutil.rmtree(directory.path, ignore_errors=True)
        return not directory.path.exists()

    until(removed, "the directory is gone")
    (tmp_path / "go").touch()
    assert process.wait() == 0
    gone(watching)
    assert not directory.path.exists()


@pytest.mark.parametrize(
    ("launcher", "codes", "over_after"),
    [
        # A notebook goes on with other things; torchrun would start the failed ranks anew.
        ("lives", (0, 0), 2.0),
        ("lives", (0, 1), None),
        ("lives", (0,), None),
        ("lives", (), None),
        # A job that has returned starts nothing any more.
        ("gone", (0, 0), 0.0),
        ("gone", (0, 1), 0.0),
        ("gone", (), 30.0),
        ("unknown", (0, 1), 2.0),
    ],
)
def test_when_a_job_without_a_living_rank_is_over(
    new_run: Callable[..., RunDir], launcher: str, codes: tuple[int, ...], over_after: float | None
) -> None:
    """With its launcher, or a moment after its last rank, and not while its launcher may start others."""
    gone_by = Process(2**22 + 1, 1.0)
    launchers = {"lives": identify(os.getppid()), "gone": gone_by, "unknown": None}
    directory = new_run(launched=False, local_world=2, torchrun=launchers[launcher])
    for rank, code in enumerate(codes):
        directory.write_member(
            rundir.Member(rank, rank, 2, gone_by, "host", 0, "", "", None, rundir.Ended(7, code, pid=gone_by.pid))
        )
    now = 100.0
    job = Attached(directory, directory.read(), lambda: now)
    assert not job.is_deserted([0], [0])
    known = range(len(codes))
    for seconds in (1.9, 29.9, 1e6):
        now = 100.0 + seconds
        assert job.is_deserted([], known) == (over_after is not None and seconds > over_after)
    directory.update(torchrun=None)


def test_a_job_of_many_hosts_runs_and_ends_by_the_ranks_of_this_one(
    new_run: Callable[..., RunDir], python: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ranks on other hosts never report here: neither is the job starting for ever, nor lost at its end."""
    now = Process(2**22 + 1, 1.0)
    told = new_run(launched=False, world=8, local_world=1)
    untold = new_run(launched=False, world=8, created_at_ns=1)
    for directory in (told, untold):
        process = identify(python(WAIT).pid)
        assert process is not None
        directory.write_member(rundir.Member(5, 0, 8, process, "host", 0, "", "", None))
        assert survey.look(directory).state == "running"
        directory.write_member(rundir.Member(5, 0, 8, now, "host", 0, "", "", None, rundir.Ended(7, 0)))
        assert survey.settle(directory).state == directory.read().state == "finished"
        assert directory.read().state in ENDED


def test_a_job_elsewhere_gets_no_observer_from_here(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in another pid namespace would seem to have no process at all."""
    me = identify(os.getpid())
    assert me is not None
    started: list[RunDir] = []
    monkeypatch.setattr(detached, "start", started.append)
    there = Process(7, me.started, me.boot, me.namespace + "0")
    directory = new_run(launched=False, torchrun=there, created_at_ns=1)
    assert takeover.meet(directory).state in ("starting", "running")
    assert started == []
