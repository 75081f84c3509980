"""Finding and ending the processes of a run, and nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.harness import DEADLINE_S, WAIT, WAIT_LOCKED, WAITING, carriers, started, until

from ddptop.agent.end import escalation, processes
from ddptop.agent.run import identity
from ddptop.agent.run.rundir import Member, Process, RunDir, identify

Start = Callable[..., subprocess.Popen[str]]

UP = f"print('up', flush=True); {WAIT}"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {UP}"


def ready(process: subprocess.Popen[str]) -> Process:
    """Wait until the process has printed a line, and return its identity."""
    assert process.stdout
    assert process.stdout.readline()
    found = identify(process.pid)
    assert found
    return found


def end(directory: RunDir, grace_s: float = 3.0) -> tuple[escalation.Outcome, list[str]]:
    """End the run and return outcome and progress; the grace is enough for whoever obeys, on a busy machine too."""
    lines: list[str] = []
    return escalation.end(directory, directory.read(), escalation.Grace(grace_s), lines.append), lines


def enlist(directory: RunDir, rank: int, process: Process) -> None:
    """Write a rank's record."""
    directory.write_member(Member(rank, rank, 2, process, "host", 0, "", "", None))


def test_the_marker_decides(new_run: Callable[..., RunDir], python: Start) -> None:
    """A process of the run is ended; its look-alikes without the marker, or with that of another run, are not."""
    directory = new_run()
    run_id = directory.read().run_id
    ours, bare, other = python(UP, run_id), python(UP), python(UP, run_id + "0")
    for process in (ours, bare, other):
        ready(process)
    outcome, _ = end(directory)
    assert outcome.text == "1 helper ended, 0 left"
    assert ours.wait(DEADLINE_S) == -signal.SIGTERM
    assert bare.poll() is None
    assert other.poll() is None


def test_an_observer_below_its_run_can_end_what_is_above_it(new_run: Callable[..., RunDir]) -> None:
    """In a container a process of the run may be the first one, and so the parent of the observer that it started; a
    command of the user still spares what it was started from.
    """
    above = identify(os.getppid())
    assert above is not None
    by_command = new_run(launched=False, run_id="", torchrun=above).read()
    by_observer = new_run(launched=False, run_id="", torchrun=above, observer=identify(os.getpid()))
    assert above not in [target.process for target in processes.find(by_command, {})]
    found = processes.find(by_observer.read(), {})
    by_observer.update(observer=None)
    assert above in [target.process for target in found]
    assert os.getpid() not in [target.process.pid for target in found]


def test_the_deaf_are_killed_and_the_stopped_may_end_in_order(new_run: Callable[..., RunDir], python: Start) -> None:
    """SIGKILL reaches what ignores SIGTERM, once the grace period is over; what is stopped is let go to take it."""
    directory = new_run()
    run_id = directory.read().run_id
    deaf, stopped = python(DEAF, run_id), python(UP, run_id)
    for rank, process in enumerate((deaf, stopped)):
        enlist(directory, rank, ready(process))
    os.kill(stopped.pid, signal.SIGSTOP)
    outcome, lines = end(directory, 4.0)
    assert (deaf.wait(DEADLINE_S), stopped.wait(DEADLINE_S)) == (-signal.SIGKILL, -signal.SIGTERM)
    assert outcome == escalation.Outcome(2, 0)
    assert lines == ["SIGTERM to 2 ranks", f"SIGKILL to rank (pid {deaf.pid}), still there after 4 s"]


def test_what_stops_after_it_was_asked_may_end_in_order(new_run: Callable[..., RunDir], python: Start) -> None:
    """A process that is stopped between SIGTERM and its end goes on, and ends by itself."""
    directory = new_run()
    stops = """
import os, signal, sys
def leave(*_):
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True:
    signal.pause()
"""
    process = python(stops, directory.read().run_id)
    enlist(directory, 0, ready(process))
    outcome, lines = end(directory, 10.0)
    assert process.wait(DEADLINE_S) == 7
    assert outcome == escalation.Outcome(1, 0)
    assert lines == [f"SIGTERM to rank (pid {process.pid})"]


def test_new_sessions_new_parents_and_scrubbed_environments_do_not_hide(
    new_run: Callable[..., RunDir], python: Start, tmp_path: Path
) -> None:
    """A daemon is found by its marker, a child without marker by its parent; a zombie counts as nothing."""
    directory = new_run()
    pids = tmp_path / "pids"
    parent = python(
        f"""
import os, signal, subprocess, sys
scrubbed = subprocess.Popen([sys.executable, "-c", {UP!r}], env={{}}, stdout=subprocess.PIPE, text=True)
scrubbed.stdout.readline()
read, write = os.pipe()
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        signal.pause()
    os._exit(0)
os.waitid(os.P_PID, middle, os.WEXITED | os.WNOWAIT)   # it is a zombie now, and stays one
daemon = int(os.read(read, 20))
open({str(pids)!r}, "w").write(f"{{scrubbed.pid}} {{daemon}}")
print("up", flush=True)
signal.pause()
""",
        directory.read().run_id,
    )
    enlist(directory, 0, ready(parent))
    scrubbed, daemon = map(int, pids.read_text().split())
    assert os.getsid(daemon) != os.getsid(0)
    outcome, _ = end(directory)
    assert (outcome.ranks, outcome.helpers, outcome.survivors) == (1, 2, ())
    assert identify(scrubbed) is None
    assert identify(daemon) is None
    parent.wait(DEADLINE_S)


def test_children_forked_during_the_kill_are_found(new_run: Callable[..., RunDir], python: Start) -> None:
    """A process that answers SIGTERM by forking leaves nobody behind."""
    directory = new_run()
    run_id = directory.read().run_id
    fertile = python(
        """
import os, signal, time
def fork(*_):
    for _ in range(3):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            signal.pause()
signal.signal(signal.SIGTERM, fork)
print("up", flush=True)
while True: time.sleep(1)
""",
        run_id,
    )
    enlist(directory, 0, ready(fertile))
    outcome, _ = end(directory)
    assert (outcome.ranks, outcome.helpers, outcome.survivors) == (1, 3, ())
    fertile.wait(DEADLINE_S)
    assert not carriers(run_id)


def test_a_reused_number_is_never_signalled(
    new_run: Callable[..., RunDir], python: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose start time differs from the record is a stranger, with pidfds and without."""
    directory = new_run()
    stranger = python(UP)
    process = ready(stranger)
    past = Process(process.pid, process.started - 5)
    enlist(directory, 0, past)
    assert not identity.send(past, signal.SIGKILL)
    assert end(directory)[0] == escalation.Outcome(0, 0)
    monkeypatch.delattr(os, "pidfd_open")
    assert not identity.send(past, signal.SIGKILL)
    assert stranger.poll() is None
    assert identity.send(process, signal.SIGKILL)
    assert stranger.wait(DEADLINE_S) == -signal.SIGKILL


def test_the_caller_and_those_above_it_are_spared(new_run: Callable[..., RunDir]) -> None:
    """A record that names the caller's own parent as torchrun, by mistake or malice, ends nobody."""
    directory = new_run()
    directory.update(torchrun=identify(os.getppid()))
    enlist(directory, 0, identify(os.getpid()) or Process(0, 0))
    assert processes.find(directory.read(), directory.members()) == []


def test_one_rank_only(new_run: Callable[..., RunDir], python: Start) -> None:
    """Ending a rank takes its helpers along and leaves the other ranks; a rank that is not there is refused."""
    directory = new_run()
    run_id = directory.read().run_id
    worker = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {UP!r}]); p.wait()"
    first, second = python(worker, run_id), python(UP, run_id)
    enlist(directory, 0, ready(first))
    enlist(directory, 1, ready(second))
    outcome = escalation.end_rank(directory, directory.read(), 0, 0.3, lambda line: None)
    assert outcome == escalation.Outcome(1, 1)
    first.wait(DEADLINE_S)
    assert carriers(run_id) == [second.pid]
    with pytest.raises(ValueError, match="rank 0: already ended"):
        escalation.end_rank(directory, directory.read(), 0, 0.3, lambda line: None)
    with pytest.raises(ValueError, match="rank 5: not in this run"):
        escalation.end_rank(directory, directory.read(), 5, 0.3, lambda line: None)


def test_one_rank_without_the_orphans_of_others(new_run: Callable[..., RunDir], python: Start) -> None:
    """What was seen as a process of the job, and may be of any of its ranks, does not end with a single one."""
    rank, orphan = python(UP), python(UP)
    directory = new_run(launched=False, outside=True, run_id="r", known=(ready(orphan),), owner=os.getuid())
    enlist(directory, 0, ready(rank))
    assert escalation.end_rank(directory, directory.read(), 0, 0.3, lambda line: None) == escalation.Outcome(1, 0)
    assert orphan.poll() is None


@pytest.mark.parametrize(
    ("mark", "values", "found"),
    [("1", ("1", "10", "1/2"), [0]), ("/tmp/a/none_b/", ("/tmp/a/none_b/attempt_0/0/e", "/tmp/a/none_bc/"), [0])],
)
def test_a_mark_is_a_whole_value_or_a_folder(
    new_run: Callable[..., RunDir], mark: str, values: tuple[str, ...], found: list[int]
) -> None:
    """Step 1 of Slurm is not step 10: only a mark that is a folder has further values below it."""
    run = new_run(launched=False, outside=True, marks={"MY_MARK": mark}, owner=os.getuid()).read()
    with contextlib.ExitStack() as stack:
        these = [stack.enter_context(started(*WAITING, env={**os.environ, "MY_MARK": value})) for value in values]
        expected = {these[index].pid for index in found}
        assert {target.process.pid for target in processes.find(run, {})} == expected


def test_the_next_trial_of_a_sweep_is_no_part_of_the_first(new_run: Callable[..., RunDir]) -> None:
    """A script ends with the ranks that it has started, but not once it has started anything else: that is another
    job, also before it shows what it is.
    """
    sweep = f"import subprocess\nwhile True: input(); print(subprocess.Popen({WAITING!r}).pid, flush=True)"
    trials: list[Process] = []
    with started(sys.executable, "-c", sweep, stdin=-1, stdout=-1) as process:
        assert process.stdin
        assert process.stdout
        directory = new_run(launched=False, outside=True, starter=identify(process.pid), owner=os.getuid())
        try:
            for rank in (0, 1):
                print(file=process.stdin, flush=True)
                trial = identify(int(process.stdout.readline()))
                assert trial is not None
                trials.append(trial)
                if rank == 0:
                    enlist(directory, 0, trial)
                    found = processes.find(directory.read(), directory.members())
                    assert {(each.process.pid, each.role) for each in found} == {
                        (process.pid, "torchrun"), (trial.pid, "rank"),
                    }  # fmt: skip
            assert end(directory)[0].text.startswith("1 rank ended, 0 left")
            assert [identity.is_alive(each) for each in trials] == [False, True]
            assert process.poll() is None
        finally:
            for trial in trials:
                identity.send(trial, signal.SIGKILL)


SWEEP = f"""
import signal, subprocess, sys
def start():
    trial = subprocess.Popen({WAITING!r})
    print(trial.pid, flush=True)
    return trial
def leave(*_):
    if sys.argv[1] == "goes on":
        start()
    first.kill()
    first.wait()
first = start()
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
{WAIT}
"""
BETWEEN = (sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])")


@pytest.mark.parametrize("above", [(), BETWEEN])
@pytest.mark.parametrize("then", ["goes on", "waits"])
def test_a_sweep_that_goes_on_in_the_course_of_a_kill_lives(
    new_run: Callable[..., RunDir], above: tuple[str, ...], then: str
) -> None:
    """A script, or a shell below it, that begins its next trial once it is asked to end is spared with that trial;
    one that only stays is killed.
    """
    trials: list[Process] = []
    with started(*above, sys.executable, "-c", SWEEP, then, stdout=-1) as process:
        assert process.stdout
        trials += filter(None, [identify(int(process.stdout.readline()))])
        assert process.stdout.readline() == "up\n"
        sweep = identify(identity.table()[trials[0].pid].parent)
        assert sweep is not None
        try:
            directory = new_run(launched=False, outside=True, starter=identify(process.pid), owner=os.getuid())
            enlist(directory, 0, trials[0])
            text = end(directory)[0].text
            if then == "goes on":
                trials += filter(None, [identify(int(process.stdout.readline()))])
            assert [identity.is_alive(each) for each in (sweep, *trials)] == (
                [True, False, True] if then == "goes on" else [False, False]
            )
            ended = "1 rank and 1 helper" if above and then == "waits" else "1 rank"
            assert text.startswith(f"{ended} ended, 0 left")
        finally:
            for each in (sweep, *trials):
                identity.send(each, signal.SIGKILL)


def test_the_run_of_nobody_has_no_processes(new_run: Callable[..., RunDir], python: Start) -> None:
    """An empty run id is no marker that everything without one would match."""
    directory = new_run(run_id="")
    ready(python(UP))
    assert processes.find(directory.read(), {}) == []


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
NOBODY = 65534


@pytest.fixture
def nobody() -> Callable[[str], str]:
    """Run a line of code as user nobody and return what it printed; the modules are loaded before, as root."""

    def go(code: str) -> str:
        prologue = (
            "import os; from ddptop.agent.end import escalation\n"
            "from ddptop.agent.run.rundir import *\n"
            f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        )
        done = subprocess.run([sys.executable, "-c", prologue + code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return go


@needs_root
def test_another_user_with_our_marker_is_a_stranger(new_run: Callable[..., RunDir], python: Start) -> None:
    """Whoever copies the environment of a run into a process of his own does not make it ours to end."""
    directory = new_run(owner=0)
    theirs = python(f"import os, select; os.setuid({NOBODY}); {UP}", directory.read().run_id)
    ours = python(UP, directory.read().run_id)
    process = ready(theirs)
    ready(ours)
    # /proc shows the process as the other user's only once that user has started it; ours has changed hands since.
    assert process.pid
    assert [target.process.pid for target in processes.find(directory.read(), {})] == [ours.pid]
    assert end(directory)[0].text == "1 helper ended, 0 left"
    assert theirs.poll() is None


@needs_root
def test_another_user_ends_nobody_and_is_told_why(python: Start, nobody: Callable[[str], str]) -> None:
    """A rank of root's, named in a record of nobody's, survives nobody's kill; the outcome says whose it is."""
    process = ready(python(UP))
    said = nobody(
        f"rank = Member(0, 0, 1, Process({process.pid}, {process.started}), 'h', 0, '', '', None)\n"
        "run = Run('r', 'id', 'x', (), 1, None, None, 1, True)\n"
        "directory = type('D', (), {'members': lambda self: {0: rank}})()\n"
        "escalation._KILL_PATIENCE_S = 0.2\n"
        "print(escalation.end(directory, run, escalation.Grace(0.1), lambda line: None).text)"
    )
    expected = f"1 left; rank with pid {process.pid} (belongs to user 0, no permission to end it)"
    assert said == f"0 ranks ended, {expected}"
    assert identify(process.pid) == process


def test_what_waits_in_the_kernel_is_killed_all_the_same(new_run: Callable[..., RunDir], python: Start) -> None:
    """A process that waits uninterruptibly for its vforked child takes no TERM; KILL reaches both."""
    directory = new_run()
    waiting = python(
        "import ctypes, os, signal; signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "libc = ctypes.PyDLL(None); print('up', flush=True)\n"
        f"if libc.vfork() == 0: {WAIT_LOCKED}; os._exit(0)",
        directory.read().run_id,
    )
    enlist(directory, 0, ready(waiting))
    until(lambda: "D (disk" in Path(f"/proc/{waiting.pid}/status").read_text(), "it waits")
    outcome, _ = end(directory)
    assert (outcome.ranks, outcome.survivors) == (1, ())
    # Where its child goes first, it wakes on a stack that the child has changed.
    assert waiting.wait(DEADLINE_S) in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT)


def test_what_cannot_die_is_named_with_the_reason(
    new_run: Callable[..., RunDir], python: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen process does not even take KILL: it is a survivor, in an uninterruptible wait; thawed it goes."""
    group = Path(f"/sys/fs/cgroup/freezer/ddptop-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs a cgroup freezer of version 1")
    monkeypatch.setattr(escalation, "_KILL_PATIENCE_S", 0.3)
    directory = new_run()
    frozen = python(UP, directory.read().run_id)
    enlist(directory, 0, ready(frozen))
    try:
        (group / "cgroup.procs").write_text(str(frozen.pid))
        (group / "freezer.state").write_text("FROZEN")
        outcome, _ = end(directory, 0.1)
        assert outcome.text == (
            f"0 ranks ended, 1 left; rank with pid {frozen.pid} "
            "(in an uninterruptible wait of the kernel, for a disk or a device)"
        )
    finally:
        (group / "freezer.state").write_text("THAWED")
        frozen.wait(DEADLINE_S)
        group.rmdir()


def test_one_process_only_and_only_of_this_run(new_run: Callable[..., RunDir], python: Start) -> None:
    """One process is ended and its siblings are not; one that is none of the run's is refused."""
    directory = new_run()
    run_id = directory.read().run_id
    first, second, stranger = python(UP, run_id), python(UP, run_id), python(UP)
    victim, _, outside = ready(first), ready(second), ready(stranger)
    assert escalation.end_process(directory, directory.read(), victim, 0.3, lambda line: None) == escalation.Outcome(
        0, 1
    )
    assert first.wait(DEADLINE_S) == -signal.SIGTERM
    assert second.poll() is None
    with pytest.raises(escalation.NotOurs, match=f"process {outside.pid}: not of run"):
        escalation.end_process(directory, directory.read(), outside, 0.3, lambda line: None)
    reused = Process(second.pid, outside.started - 7)
    with pytest.raises(escalation.NotOurs, match="or gone"):
        escalation.end_process(directory, directory.read(), reused, 0.3, lambda line: None)
    assert second.poll() is None
    assert stranger.poll() is None


def test_a_signal_goes_to_ranks_and_what_cannot_be_handled_to_all(
    new_run: Callable[..., RunDir], python: Start
) -> None:
    """USR1 reaches the rank and not its worker, which it would kill; STOP and CONT reach both."""
    directory = new_run()
    handling = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('usr1', flush=True))\n"
        f"worker = subprocess.Popen([sys.executable, '-c', {UP!r}], stdout=subprocess.PIPE)\n"
        "worker.stdout.readline(); print(worker.pid, flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    rank = python(handling, directory.read().run_id)
    assert rank.stdout
    worker = int(rank.stdout.readline())
    found = identify(rank.pid)
    assert found
    enlist(directory, 0, found)
    run, members = directory.read(), directory.members()

    def send(number: int) -> str:
        return escalation.deliver(escalation.signal_targets(run, members, number, rank=0), number)

    def stopped(pid: int) -> bool:
        return "T (stopped)" in Path(f"/proc/{pid}/status").read_text()

    assert send(signal.SIGUSR1) == f"SIGUSR1 to rank (pid {rank.pid})"
    assert rank.stdout.readline() == "usr1\n"
    assert send(signal.SIGSTOP) == "SIGSTOP to 1 rank and 1 helper"
    until(lambda: stopped(rank.pid) and stopped(worker), "both are stopped")
    assert send(signal.SIGCONT) == "SIGCONT to 1 rank and 1 helper"
    until(lambda: not stopped(rank.pid) and not stopped(worker), "both go on")
    with pytest.raises(escalation.NotOurs, match="rank 5: no process"):
        escalation.signal_targets(run, members, signal.SIGTERM, rank=5)


def test_a_session_of_a_rank_is_the_runs(new_run: Callable[..., RunDir], python: Start) -> None:
    """A child without marker whose parent has gone is still in the session that its rank leads."""
    directory = new_run()
    leader = python(
        "import os, subprocess, sys, time; os.setsid()\n"
        f"code = 'import subprocess; p = subprocess.Popen({json.dumps(WAITING)}, env={{}}, '\n"
        "code += 'stdout=subprocess.DEVNULL); '\n"
        "code += 'print(p.pid)'\n"
        "out = subprocess.run([sys.executable, '-c', code], env={}, stdout=subprocess.PIPE, text=True).stdout\n"
        f"print(out, flush=True); {WAIT}",
        directory.read().run_id,
    )
    assert leader.stdout
    stray = int(leader.stdout.readline())
    found = identify(leader.pid)
    assert found
    enlist(directory, 0, found)
    assert end(directory)[0] == escalation.Outcome(1, 1)
    assert identify(stray) is None
