"""An observer that is gone has a successor, never two, and what nobody saw end is not shown as alive."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from support.bases import marked
from support.fakes.clocks import Clock
from support.harness import WAIT, WAITING, carriers, ddptop, until
from support.processes import supervised
from support.processes.supervised import events, over, running

from ddptop.agent import wire
from ddptop.agent.client import runs
from ddptop.agent.client.sources import takeover
from ddptop.agent.end import survey
from ddptop.agent.launcher import detached, observers
from ddptop.agent.record.recording import read_ranks
from ddptop.agent.run import rundir
from ddptop.agent.run.files import marks
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.identity import is_stopped
from ddptop.agent.run.rundir import Member, Process, RunDir, RunDirError, identify, is_alive

Launch = Callable[..., RunDir]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(detached, "_AGAIN_S", 0.3)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let successors be forks, which start in a tenth of the time."""
    monkeypatch.setattr(observers, "start", supervised.observe)


def lose_observer(directory: RunDir) -> int:
    """End the run's observer by kill -9 and return its pid."""
    process = directory.read().observer
    assert process
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not is_alive(process), "the observer has gone")
    return process.pid


def succeeded(directory: RunDir, lost: int) -> Process:
    """Meet the run until another observer looks after it, and return that."""

    def another() -> bool:
        now = takeover.meet(directory)
        return now.supervised and now.run.observer is not None and now.run.observer.pid != lost

    until(another, "another observer")
    found = directory.read().observer
    assert found
    return found


def takeovers(directory: RunDir) -> int:
    """Return how often a successor has said that it looks after the run."""
    return sum("takes over" in text for text in events(directory))


def test_another_takes_over_and_obeys(launch: Launch) -> None:
    """After kill -9 of the observer the next one adopts torchrun, says so, records on, and can be told to kill."""
    directory = launch(WAIT)
    running(directory)
    run = directory.read()
    until(lambda: "rank 1 is up" in "".join(events(directory)), "the first batch of the recording")
    first = lose_observer(directory)
    second = succeeded(directory, first)
    assert directory.read().torchrun == run.torchrun
    until(lambda: any(f"observer {first} is gone" in text for text in events(directory)), "the event")
    assert "rank 0 is up" in "".join(events(directory)), "what was recorded before is still there"
    done = ddptop("kill", directory.name)
    assert (done.returncode, done.stdout) == (0, f"{directory.name}: 2 ranks ended, 0 left\n")
    until(lambda: not is_alive(second), "the second observer has gone")
    assert carriers(run.run_id) == []
    assert directory.read().state == "killed"
    assert not (directory.path / "lock").exists()


def test_of_many_that_want_to_take_over_one_does(launch: Launch) -> None:
    """Eight successors started at once: one looks after the run, the others leave; and none comes in later."""
    directory = launch(WAIT)
    running(directory)
    lose_observer(directory)
    contenders = [supervised.observe(directory) for _ in range(8)]

    def left() -> list[Process]:
        return [found for pid in contenders if (found := identify(pid))]

    until(lambda: survey.look(directory).supervised, "one of them")
    until(lambda: len(left()) == 1, "all but one have left")
    assert Claim.acquire(directory.path) is None
    assert [directory.read().observer] == left()
    until(lambda: takeovers(directory), "the event")
    assert takeovers(directory) == 1


def test_an_adopted_run_ends_as_its_ranks_say(launch: Launch, forks: None, tmp_path: Path) -> None:
    """The exit status of an adopted torchrun is not known: what the ranks wrote decides."""
    directory = launch("import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)")
    running(directory)
    succeeded(directory, lose_observer(directory))
    (tmp_path / "go").touch()
    end = over(directory)
    assert (end.state, end.exit_code) == ("finished", 0)
    assert any("own exit status will not be known" in text for text in events(directory))


def test_a_kill_goes_on_where_the_observer_was_killed_at_it(launch: Launch, forks: None) -> None:
    """The successor finds in the record that the run was being killed, ends it, and does not call that a failure."""
    directory = launch(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}")
    running(directory)
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(directory.address("observer", "cmd"))
        asking.send(wire.encode(wire.Kill(1, 60.0, who="ada")))
        until(lambda: directory.read().killed_by, "the kill is under way")
    lose_observer(directory)
    until(lambda: takeover.meet(directory).state == "killed", "the run is killed")
    assert directory.read().cause == "killed by ada"
    assert carriers(directory.read().run_id) == []


def test_torchrun_is_found_though_nobody_wrote_down_who_it_is(launch: Launch, forks: None) -> None:
    """An observer killed between the start of torchrun and its note of it leaves a run, not an orphan."""
    directory = launch(WAIT)
    running(directory)
    torchrun = directory.read().torchrun
    lost = lose_observer(directory)
    directory.update(torchrun=None)
    assert survey.look(directory).state == "running"
    succeeded(directory, lost)
    until(lambda: directory.read().torchrun == torchrun, "the same torchrun in the record")


def test_what_an_unseen_end_has_left_behind_is_ended(launch: Launch, forks: None, tmp_path: Path) -> None:
    """Ranks that finish without an observer leave a child behind: the run's end is written only once it is gone."""
    directory = launch(
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {WAIT!r}], start_new_session=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)"
    )
    running(directory)
    run = directory.read()
    lose_observer(directory)
    (tmp_path / "go").touch()
    until(lambda: survey.look(directory).ended, "the ranks have finished")
    assert len(carriers(run.run_id)) == 2
    until(lambda: takeover.meet(directory).run.state == "finished", "the end is written down")
    assert carriers(run.run_id) == []


def test_ranks_of_an_orphaned_child_fall_to_the_observer(launch: Launch, tmp_path: Path) -> None:
    """A grandchild without marker, session and parent is still found: the observer has become its parent."""
    directory = launch(
        "import os, subprocess, sys, time\n"
        f"middle = 'import subprocess; print(subprocess.Popen({json.dumps(WAITING)}, env={{}}, '\n"
        "middle += 'start_new_session=True, '\n"
        "middle += 'stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)'\n"
        "found = subprocess.run([sys.executable, '-c', middle], env={}, capture_output=True, text=True).stdout\n"
        "open('pid-' + os.environ['RANK'], 'w').write(found)\n"
        f"{WAIT}"
    )
    files = [tmp_path / f"pid-{rank}" for rank in (0, 1)]
    until(lambda: all(file.exists() and file.read_text().strip() for file in files), "the grandchildren are up")
    strays = [identify(int(file.read_text())) for file in files]
    assert all(strays)
    assert not {stray.pid for stray in strays if stray} & set(carriers(directory.read().run_id))
    done = ddptop("kill", directory.name)
    assert "2 ranks and 2 helpers ended, 0 left" in done.stdout
    assert not any(is_alive(stray) for stray in strays)


def test_a_run_of_another_boot_is_lost(new_run: Callable[..., RunDir]) -> None:
    """After a reboot pid and start time may fit by chance; the boot does not, so nobody is taken for a rank."""
    me = identify(os.getpid())
    assert me
    assert me.boot, "Linux tells"
    then = msgspec.structs.replace(me, boot="an earlier one")
    directory = new_run(state="running", observer=then, torchrun=then)
    (directory.path / "0.pub").touch()
    assert not is_alive(then)
    assert takeover.meet(directory).state == "lost"
    assert directory.read().state == "lost"
    assert not (directory.path / "0.pub").exists()


def test_no_ranks_are_looked_up_of_a_run_that_is_looked_after(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ps` lists it without the records of its ranks being read before, and still ends what nobody looks after."""
    me = identify(os.getpid())
    assert me
    directory = new_run(state="running", observer=me, torchrun=me)
    read: list[str] = []
    members = RunDir.members

    def look_up(self: RunDir) -> dict[int, Member]:
        read.append(self.name)
        return members(self)

    monkeypatch.setattr(RunDir, "members", look_up)
    runs.tidy()
    assert (read, directory.read().state) == ([], "running")
    gone = msgspec.structs.replace(me, boot="an earlier one")
    directory.update(observer=gone, torchrun=gone)
    runs.tidy()
    assert directory.read().state == "lost"
    assert read
    # Of another container, which nobody holds any more.
    unseen = Process(7, 1.0, me.boot, f"{me.namespace}0")
    other = new_run(state="running", observer=unseen, torchrun=unseen)
    for path in (other.path, other.path / "run.json", other.path / "ranks"):
        os.utime(path, (1e9, 1e9))
    runs.tidy()
    assert other.read().state == "lost"


def hellos(directory: RunDir) -> list[tuple[int, int]]:
    """Return the generations and ranks that the observer has heard."""
    return [(m.generation, m.rank) for m in read_ranks(directory.database) if isinstance(m, wire.Hello)]


def test_each_generation_has_its_cause(launch: Launch, tmp_path: Path) -> None:
    """Torchrun starts the ranks anew: they register again, and the event of the restart names the first cause."""
    directory = launch(
        "import os, time\n"
        "def wait(file):\n"
        "    while not os.path.exists(file): time.sleep(0.02)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        f"    if os.environ['RANK'] == '1': wait({str(tmp_path / '0')!r}); raise ValueError('bad lr')\n"
        f"    {WAIT}\n"
        f"wait({str(tmp_path / '1')!r})",
        max_restarts=2,
        environment={"RESTARTS": "2"},
    )
    for generation in range(2):
        until(lambda: len(hellos(directory)) == 2 * (generation + 1), "the observer hears both ranks")  # noqa: B023
        (tmp_path / str(generation)).touch()
    end = over(directory)
    assert (end.state, {member.generation for member in end.members.values()}) == ("finished", {1})
    assert "restart 1 of 2: rank 1: ValueError: bad lr" in events(directory)
    assert hellos(directory) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> Iterator[Path]:
    """A runtime directory on a file system of 256 KiB."""
    mounted = runtime / "small"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", mounted], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("needs the right to mount a small file system")
    monkeypatch.setenv("DDPTOP_RUNTIME_DIR", str(mounted))
    yield mounted
    subprocess.run(["umount", mounted], check=True)


def test_a_full_disk_is_told_in_one_line_and_hides_no_end(full: Path) -> None:
    """Nothing begins on it, and a run that is over there is said to be over, which is written over its record."""
    run = rundir.Run("old", "id", "x.py", (), 1, None, None, 1, True, state="running", torchrun=Process(2**22 + 1, 1.0))
    directory = RunDir(full / "old")
    for folder in (directory.path, directory.path / "ranks", directory.logs):
        folder.mkdir(mode=0o700)
    marked(directory.path)
    directory.write(run)
    with (full / "flood").open("wb", buffering=0) as flood, contextlib.suppress(OSError):
        while True:
            flood.write(bytes(4096))
    assert takeover.meet(directory).state == "lost"
    assert directory.read().state == "lost"
    assert [each.name for each in directory.path.glob(".*")] == [marks.NAME], "no half of a record"
    with pytest.raises(RunDirError, match=r"full \(0 KiB free\); make room, or set DDPTOP_RUNTIME_DIR"):
        rundir.create(msgspec.structs.replace(run, run="new"))


def test_a_clock_that_is_set_back_delays_no_takeover(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dates an hour ahead, of the last attempt and of the run itself, count as past; those of now do not."""
    monkeypatch.setattr(detached, "_AGAIN_S", 60.0)
    started: list[RunDir] = []
    monkeypatch.setattr(observers, "start", started.append)
    me = identify(os.getpid())
    directory = new_run(state="running", torchrun=me, run_id="", created_at_ns=time.time_ns() + 3600 * 10**9)
    directory.observer_log.touch()
    takeover.meet(directory)
    assert started == [], "the last attempt was just now"
    ahead = time.time() + 3600
    os.utime(directory.observer_log, (ahead, ahead))
    takeover.meet(directory)
    assert len(started) == 1
    takeover.meet(directory)
    assert len(started) == 1, "one that was just made is waited for"
    directory.update(state="lost", torchrun=None)


def test_a_run_from_the_future_that_nobody_started_is_lost(new_run: Callable[..., RunDir]) -> None:
    """Nobody has come for half a minute, whatever the clock says of when that began."""
    directory = new_run(created_at_ns=time.time_ns() + 3600 * 10**9)
    assert survey.look(directory).state == "lost"
    assert survey.look(new_run(created_at_ns=time.time_ns() + 10**9)).state == "starting"


def test_a_kill_that_was_ended_at_its_last_word_is_a_kill(new_run: Callable[..., RunDir]) -> None:
    """Whoever ended the run without an observer, and was ended before writing so, had said that he was at it."""
    gone = Process(2**22 + 1, 1.0)
    directory = new_run(state="running", observer=gone, torchrun=gone, killed_by="ada")
    assert takeover.meet(directory).state == "killed"
    assert (directory.read().cause, directory.read().exit_code) == ("killed by ada", 128 + signal.SIGTERM)


def test_an_observer_has_the_limit_that_its_caller_had_before_it_took_a_lower_one(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is started again from a browser's tab is not bound by the memory of that tab, nor told of it."""
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg] # as a base it takes no parameter at run time
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(observers, "isolated", lambda module: [*WAITING])
    soft, most = resource.getrlimit(resource.RLIMIT_DATA)
    room = 7 << 40 if most == resource.RLIM_INFINITY else most // 2
    for given, expected in ((str(room), room), ("no number", soft), (None, soft)):
        if given is None:
            monkeypatch.delenv(observers.DATA_ROOM_VARIABLE)
        else:
            monkeypatch.setenv(observers.DATA_ROOM_VARIABLE, given)
        observers.start(new_run())
        child = started.pop()
        try:
            assert resource.prlimit(child.pid, resource.RLIMIT_DATA) == (expected, most)
            until(lambda: b"tail" in Path(f"/proc/{child.pid}/cmdline").read_bytes(), "it runs")  # noqa: B023 # at once
            assert observers.DATA_ROOM_VARIABLE.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes()
        finally:
            child.kill()
            child.wait()


def test_a_stopped_observer_goes_on_once_somebody_looks(
    new_run: Callable[..., RunDir], python: Callable[..., subprocess.Popen[str]]
) -> None:
    """Who opens the run, and `ps`, which looks up no rank of it."""
    process = identify(python(WAIT).pid)
    assert process is not None
    directory = new_run(state="running", observer=process)
    for look in (lambda: takeover.meet(directory), runs.tidy, lambda: takeover.await_observer(directory)):
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: is_stopped(process), "it is stopped")
        look()
        until(lambda: not is_stopped(process), "it is continued")


def test_an_observer_that_says_nothing_for_long_is_ended(
    new_run: Callable[..., RunDir], python: Callable[..., subprocess.Popen[str]]
) -> None:
    """By whoever listens to it all the time, and not by who stood still himself; another one has its own time."""
    clock = Clock(0.0)
    patience = takeover.Patience(clock)
    first, second = identify(python(WAIT).pid), identify(python(WAIT).pid)

    def listen(observer: Process | None, seconds: int, *, heard: bool = False) -> None:
        for _ in range(seconds):
            clock.now += 1.0
            patience.listen(observer, heard=heard)

    listen(first, 20)
    listen(second, 20)
    listen(second, 1, heard=True)
    listen(second, 20)
    clock.now += 3600.0
    listen(second, 5)
    assert first is not None
    assert is_alive(first)
    assert is_alive(second)
    listen(second, 10)
    until(lambda: not is_alive(second), "the end of the one that is silent")
    # Nobody of another container is reached from here.
    listen(msgspec.structs.replace(first, namespace="1"), 40)
    assert is_alive(first)
