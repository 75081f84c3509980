"""The report on a run that died, from what is on the disk; ranks are real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.harness import until
from support.processes.supervised import events, over, running

from ddptop.agent import wire
from ddptop.agent.end import cause, report, survey
from ddptop.agent.record import recording
from ddptop.agent.run import ends, hosts
from ddptop.agent.run.ends import Death
from ddptop.agent.run.rundir import Ended, Member, Process, RunDir, identify, is_alive
from ddptop.agent.wire.report import Report

TRAIN = """
import os, pathlib, sys, time
import ddptop.agent as agent
rank = int(os.environ["RANK"])
print("epoch 1 of rank", rank, "with s3cr3t-value", flush=True)
def crash():
    import ctypes
    ctypes.string_at(0)
agent.start(total_steps=9)
pathlib.Path(f"up-{rank}").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.02)
if rank == 1:
    END
deadline = time.monotonic() + 100
while time.monotonic() < deadline and not pathlib.Path("over").exists():
    time.sleep(0.02)
"""


def died(launch: Callable[..., RunDir], folder: Path, end: str, **fields: object) -> Report:
    """Let rank 1 of two end so, once both are up, and return the report on the run."""
    directory = launch(TRAIN.replace("END", end), **fields)
    running(directory)
    until(lambda: all((folder / f"up-{rank}").exists() for rank in (0, 1)), "both scripts have begun")
    until(lambda: all(each.memory_bytes for each in report.of(directory).ranks), "a recorded sign of life of both")
    (folder / "go").touch()
    over(directory)
    return report.of(directory)


def test_a_crash_is_reported_with_its_line(launch: Callable[..., RunDir], tmp_path: Path) -> None:
    """First cause, kind and advice, the stack once, the last output before it; the other rank is collateral."""
    found = died(launch, tmp_path, "crash()", environment={"EXEC": ""})
    assert (found.state, found.cause) == (
        "failed", "rank 1 was killed by SIGSEGV (a crash in native code) at script.py:8 crash; last output: epoch 1 of "
        "rank 1 with s3cr3t-value",
    )  # fmt: skip
    assert found.kind is not None
    assert found.kind.name == "native_crash"
    assert found.first is not None
    assert (found.first.rank, found.first.signal, found.first.exit_code) == (1, "SIGSEGV", None)
    assert found.first.where == "script.py:8 crash"
    assert found.first.output == ("epoch 1 of rank 1 with s3cr3t-value",)
    assert found.first.memory_bytes
    assert found.traceback.splitlines()[0] == "Fatal Python error: Segmentation fault"
    assert next(line for line in found.traceback.splitlines() if "script.py" in line).endswith("line 8 in crash")
    assert "agent/__main__.py" not in found.traceback
    assert found.collateral == "rank 0: ended by SIGTERM"
    assert "rank 0 was ended by SIGTERM" in [event.text for event in found.events]


def test_an_exception_is_reported_with_secrets_masked(launch: Callable[..., RunDir], tmp_path: Path) -> None:
    """Its own traceback once; a value that the record hides is hidden in what the script printed and raised, too."""
    end = "raise ValueError('bad key s3cr3t-value')"
    found = died(
        launch, tmp_path, end, arguments=("--api-key", "s3cr3t-value"), environment={"WANDB_API_KEY": "s3cr3t-value"}
    )
    assert (found.cause, found.exit_code) == ("rank 1: ValueError: bad key ***", 1)
    assert found.kind is not None
    assert found.kind.name == "exception"
    assert found.first is not None
    assert (found.first.where, found.first.told) == ("script.py:14", "ValueError: bad key ***")
    assert found.traceback.count("Traceback (most recent call last)") == 1
    assert found.launched_as.startswith("ddptop launch --world 2 ")
    assert found.launched_as.endswith("script.py -- --api-key '***'")
    assert "s3cr3t-value" not in repr(found)


def test_a_rank_that_was_killed_is_named_by_the_observer_alone(launch: Callable[..., RunDir], tmp_path: Path) -> None:
    """Its status is in the record as soon as it has died, while torchrun still looks after the others."""
    directory = launch(TRAIN.replace("END", "pass"))
    running(directory)
    victim = directory.members()[1].process.pid
    os.kill(victim, signal.SIGKILL)
    until(lambda: ends.read(directory.path, 0).get(1), "the end of rank 1 is recorded")
    while not (early := report.of(directory)).failed:
        assert early.state in ("starting", "running")
    assert early.cause.startswith("rank 1 was killed by SIGKILL (")
    death = ends.read(directory.path, 0)[1]
    assert death.status == -signal.SIGKILL
    over(directory)
    found = report.of(directory)
    assert found.cause.startswith("rank 1 was killed by SIGKILL (")
    assert found.kind is not None
    assert found.kind.name == ("host_memory" if death.out_of_memory else "killed")
    assert found.evidence == death.evidence


def test_a_failure_is_told_before_its_process_has_ended(launch: Callable[..., RunDir], tmp_path: Path) -> None:
    """An interpreter may take seconds to end after its script, or wait for a thread without end."""
    waits = "import threading; threading.Thread(target=time.sleep, args=(100,)).start(); raise ValueError('bad lr')"
    directory = launch(TRAIN.replace("END", waits))
    running(directory)
    (tmp_path / "go").touch()
    told = "rank 1's script ended with exit code 1: ValueError: bad lr"
    until(lambda: told in events(directory), "the failure is told")
    process = directory.members()[1].process
    assert is_alive(process)
    os.kill(process.pid, signal.SIGKILL)
    over(directory)
    assert events(directory).count(told) == 1
    assert report.of(directory).cause == "rank 1: ValueError: bad lr"


def test_after_a_kill_of_everything_the_last_minutes_are_there(launch: Callable[..., RunDir], tmp_path: Path) -> None:
    """Steps, signs of life, output: of ranks, launcher and observer nobody is left to write anything."""
    text = """
import time
from ddptop import agent
session = agent._listener
while True:
    session.end_step()  # as the hooks do at each step, so that the test needs no torch
    session.count()
    print("step", flush=True)
    time.sleep(0.02)
"""
    directory = launch(text)
    running(directory)

    def steps() -> dict[int, int]:
        found = [each for each in recording.read_steps(directory.database, 100) if isinstance(each, wire.Steps)]
        return {each.rank: each.steps[-1].step for each in found}

    until(lambda: len(steps()) == 2 and min(steps().values()) > 20, "steps of both ranks are recorded")
    at_ns = time.time_ns()
    run = directory.read()
    members = directory.members()
    assert run.observer is not None
    assert run.torchrun is not None
    processes = [run.observer, run.torchrun, *(member.process for member in members.values())]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: not any(map(is_alive, processes)), "all dead")
    found = report.of(directory)
    assert (found.state, found.kind and found.kind.name) == ("lost", "unknown")
    assert [each.rank for each in found.ranks] == [0, 1]
    for each in found.ranks:
        assert each.step is not None
        # The signs of life may be older than the last step that was recorded.
        assert each.step >= steps()[each.rank] > 20
        assert each.heard_at_ns is not None
        # Signs of life come once a second, and are written once a second.
        assert each.heard_at_ns > at_ns - 10e9
        assert each.output[-1] == "step"
    assert min(steps().values()) > 20
    survey.settle(directory)
    again = report.of(directory)
    assert (again.state, again.ranks) == (found.state, found.ranks)


def test_a_run_that_lives_or_has_finished_has_nothing_to_explain(launch: Callable[..., RunDir], tmp_path: Path) -> None:
    """It says so; a finished one has all ranks at exit code 0."""
    directory = launch(TRAIN.replace("END", "pass"))
    running(directory)
    assert report.of(directory).state == "running"
    assert not report.of(directory).failed
    for name in ("over", "go"):
        (tmp_path / name).touch()
    over(directory)
    found = report.of(directory)
    assert (found.state, found.kind, found.failed, found.traceback) == ("finished", None, False, "")
    assert {each.state for each in found.ranks} == {"finished"}


def test_ranks_of_a_killed_run_were_ended_by_the_kill(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so of those that left no word, and names the hang in which they stood."""
    directory = new_run()
    directory.write_member(Member(0, 0, 2, Process(1, 1.0), "host", 0, "", "", None))
    at_ns = directory.read().created_at_ns + 10**10
    directory.update(state="killed", ended_at_ns=at_ns, cause="killed by ada", exit_code=143)
    stuck = wire.Verdict(1, "hang", "rank 1 hangs", at_ns - 9 * 10**9, hang=wire.Hang("waiting", (1,)))
    monkeypatch.setattr(recording, "read_verdicts", lambda database: [stuck])
    found = report.of(directory)
    assert (found.state, found.ranks[0].told, found.collateral) == (
        "killed",
        "ended by the kill",
        "rank 0: ended by the kill",
    )
    assert (found.hang, found.stood) == (stuck, False)


@pytest.mark.parametrize(("state", "told"), [("killed", True), ("finished", False)])
def test_a_run_that_was_killed_while_it_waited_at_exit_tells_for_what(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch, state: str, told: bool
) -> None:
    """The verdict comes after the end of the scripts, and none of them failed; who has got through explains nothing."""
    directory = new_run()
    at_ns = directory.read().created_at_ns + 10**10
    ended = Ended(at_ns, 0, awaits="thread uploader (train.py:9)")
    directory.write_member(Member(0, 0, 1, Process(1, 1.0), "host", 0, "", "", None, ended))
    directory.update(state=state, ended_at_ns=at_ns + 60 * 10**9, exit_code=143 if told else 0)
    waits = wire.Hang("at_exit", (0,), "train.py:9")
    stuck = wire.Verdict(1, "hang", "rank 0's script has finished", at_ns + 9 * 10**9, hang=waits)
    monkeypatch.setattr(recording, "read_verdicts", lambda database: [stuck])
    assert report.of(directory).hang == (stuck if told else None)


def test_of_a_host_that_did_not_answer_the_kill_nothing_is_claimed(new_run: Callable[..., RunDir]) -> None:
    directory = new_run()
    for rank in (0, 1):
        directory.write_member(Member(rank, rank, 2, Process(1, 1.0), f"node{rank}", 0, "", "", None))
    hosts.write_hosts(
        directory.path, (wire.HostFrame("node0", "linked", (0,)), wire.HostFrame("node1", "silent", (1,)))
    )
    directory.update(state="killed", ended_at_ns=directory.read().created_at_ns + 1, exit_code=143)
    assert report.of(directory).collateral == "rank 0: ended by the kill; rank 1: left no word"


def test_the_stack_of_a_rank_that_only_followed_is_not_shown(new_run: Callable[..., RunDir]) -> None:
    """A rank that left by itself has none; that of a rank that lost it tells only where that one waited then."""
    directory = new_run()
    trace = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer"
    ends_of = {
        0: Ended(6, 1, "RuntimeError: Connection closed by peer", trace, step=60),
        1: Ended(5, 3, "SystemExit: 3", step=60),
    }
    for rank, ended in ends_of.items():
        directory.write_member(Member(rank, rank, 2, Process(1, 1.0), "host", 0, "", "", None, ended))
    failed = {"state": "failed", "ended_at_ns": 7, "exit_code": 3, "cause_rank": 1}
    directory.update(**failed, cause="rank 1: SystemExit: 3", cause_kind="exit")
    found = report.of(directory)
    assert found.kind is not None
    assert (found.kind.name, found.traceback, found.traceback_rank) == ("exit", "", None)
    assert "wrong option" not in found.kind.advice
    directory.update(**failed, cause="rank 1 did not come", cause_kind="collective_timeout")
    assert report.of(directory).traceback_rank == 0


@pytest.mark.parametrize(
    ("last", "told", "where"),
    [
        ("RuntimeError: unexpected pos 1024 vs 918", "RuntimeError: unexpected pos 1024 vs 918", "train.py:12 main"),
        ("RuntimeError: Connection closed by peer", "OSError: bad image", "train.py:8 main"),
    ],
)
def test_text_and_line_of_an_end_are_of_the_same_exception(
    new_run: Callable[..., RunDir], last: str, told: str, where: str
) -> None:
    """Of two, of the last; where that one only says that the others are gone, of the first, and the cause is its."""
    opening = "Traceback (most recent call last):\n"
    trace = (
        f'{opening}  File "/home/ada/train.py", line 8, in main\nOSError: bad image\n'
        "\nDuring handling of the above exception, another exception occurred:\n\n"
        f'{opening}  File "/home/ada/train.py", line 12, in main\n{last}\n'
    )
    directory = new_run()
    member = Member(0, 0, 1, Process(1, 1.0), "host", 0, "", "", None, Ended(5, 1, last, trace))
    directory.write_member(member)
    judged = cause.judge(1, {0: member}, 1)
    directory.update(state="failed", ended_at_ns=7, exit_code=1, cause_rank=0, cause=judged.cause)
    found = report.of(directory)
    assert found.first is not None
    assert (found.cause, found.first.told, found.first.where) == (f"rank 0: {told}", told, where)


def test_records_of_ends_are_read_as_hostile(new_run: Callable[..., RunDir]) -> None:
    """Of another generation, damaged, a link or a lie: there is none, or what is in it is clean."""
    folder = new_run().path
    deaths = [Death(rank, 10 - rank, -9, None, "e\x1b[31mvil") for rank in range(3)]
    ends.write(folder, 2, deaths)
    assert ends.read(folder, 1) == {}
    assert {rank: death.evidence for rank, death in ends.read(folder, 2).items()} == dict.fromkeys(range(3), "evil")
    for content in (b"", b"{", b'{"generation": 2, "deaths": [{"rank": -1, "at_ns": 1}]}', b"[]"):
        (folder / "ends.json").write_bytes(content)
        assert ends.read(folder, 2) == {}
    (folder / "ends.json").unlink()
    (folder / "ends.json").symlink_to("/etc/passwd")
    assert ends.read(folder, 2) == {}


def test_what_an_earlier_start_has_printed_is_no_cause_of_this_one(
    launch: Callable[..., RunDir], tmp_path: Path
) -> None:
    """The log of a rank goes on over the starts of its group; its traceback there is told of the first start alone."""
    script = """
import os, signal, time
import ddptop.agent as agent
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists(os.environ["SEEN"]):
        time.sleep(0.01)
    raise ValueError("the first start")
print("a new start", flush=True)
agent.start()
signal.pause()
"""
    seen_first = tmp_path / "seen"
    directory = launch(script, environment={"RESTARTS": "1", "SEEN": str(seen_first)}, max_restarts=1)
    running(directory)
    # Of ranks that end before the observer has found them nothing is left once others have their places.
    until(lambda: {"rank 0", "rank 1"} <= {text[:6] for text in events(directory)}, "both ranks are found")
    seen_first.touch()
    until(lambda: "a new start" in directory.rank_log(1).read_text(), "the second start has begun")
    member = until(lambda: directory.members().get(1), "its record")
    assert member is not None
    seen = {1: Death(1, time.time_ns(), 3)}
    found = cause.judge(2, {1: member}, 1, directory=directory, deaths=seen)
    assert found.cause == "rank 1 exited with code 3 and no exception; last output: a new start"
    # Its observer writes it down some moments later.
    until(lambda: any("ValueError: the first start" in text for text in events(directory)), "the cause of the restart")


def test_the_kind_is_the_same_before_the_process_has_ended(new_run: Callable[..., RunDir]) -> None:
    """A rank that has failed may live on for long; what its observer says by then is only the first cause."""
    directory = new_run(world=1)
    trace = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 8, in main\nValueError: x\n'
    ended = Ended(time.time_ns(), 1, "ValueError: x", trace, step=0)
    with subprocess.Popen(["sleep", "60"]) as living:
        process = identify(living.pid)
        assert process is not None
        directory.write_member(Member(0, 0, 1, process, "host", 0, "", "", None, ended))
        found = report.of(directory)
        living.kill()
    assert found.kind is not None
    assert (found.state, found.kind.name, found.cause) == ("running", "exception", "rank 0: ValueError: x")


def test_the_exception_that_a_rank_printed_is_in_its_last_output(new_run: Callable[..., RunDir]) -> None:
    """Nothing else shows it; its line is that of the rank's end."""
    directory = new_run(world=1)
    directory.write_member(Member(0, 0, 1, Process(1, 1.0), "host", 0, "", "", None, Ended(time.time_ns(), 0)))
    directory.rank_log(0).write_text(
        'step 7\nTraceback (most recent call last):\n  File "/home/ada/train.py", line 8, in main\nValueError: x\nbye\n'
    )
    directory.update(state="failed", ended_at_ns=7, exit_code=1, cause="rank 0 left", cause_rank=0)
    found = report.of(directory).first
    assert found is not None
    assert found.where == "train.py:8 main"
    assert found.output[-2:] == ("ValueError: x", "bye")


@pytest.mark.parametrize(("communicated", "step"), [(True, 60), (False, 57)])
def test_a_rank_that_was_killed_has_completed_the_step_that_the_others_have(communicated: bool, step: int) -> None:
    """Its own records end some steps before; of ranks that do not meet in any collective nothing follows."""
    members = {rank: Member(rank, rank, 3, Process(1, 1.0), "host", 0, "", "", None) for rank in range(3)}
    members[2] = msgspec.structs.replace(members[2], ended=Ended(5, 1, "RuntimeError: closed", step=60))
    beats = {rank: wire.Beat(rank, 1, "running", "", 40, 1, 40, communicated=communicated) for rank in range(3)}
    assert report.completed(members, {0: 61, 1: 57, 2: 58}, beats) == {0: 61, 1: step, 2: 60}
    assert report.completed(members, {}, {}) == {2: 60}
    # Nobody counts the steps of ranks that nobody prepared: the 0 of their signs of life is none.
    outside = {rank: msgspec.structs.replace(member, by_agent=False) for rank, member in members.items()}
    assert report.completed(outside, {}, beats) == {}
