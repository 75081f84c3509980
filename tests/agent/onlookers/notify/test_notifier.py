"""The process beside a run: it follows the run through successors of its observer, and ends with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from support import servers
from support.fakes.observers import Observer, observed
from support.fakes.ranks import beat
from support.harness import DDPTOP, ddptop, until, write_script

from ddptop.agent import wire
from ddptop.agent.client.host.settings import Notify, Settings
from ddptop.agent.client.runs import Run
from ddptop.agent.client.start import notifier as start
from ddptop.agent.onlookers.notify.notifier import Notifier
from ddptop.agent.run import rundir
from ddptop.tui.cli.verbs.launch import addresses

S = 10**9


def taken(mood: servers.Mood, kind: str) -> list[dict[str, Any]]:
    """Return the messages of a kind that a server has taken."""
    return [each for _, _, content in mood.taken if (each := json.loads(content))["kind"] == kind]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def looked(notifier: Notifier, observer: Observer, threads: ThreadPoolExecutor) -> bool:
    """Let a notifier look at a run while its observer answers; return whether more is to come."""
    look = threads.submit(notifier.look)
    until(lambda: observer.turn() and look.done(), "the look")
    return look.result()


def test_a_run_is_followed_through_its_observers_to_its_end(own_base: Path, threads: ThreadPoolExecutor) -> None:
    """Each look is one of its own: it asks for no rank, and leaves no subscription; a heartbeat goes out besides."""
    record = rundir.Run("r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")
    hang = wire.Verdict(1, "hang", "rank 1 has not entered · 3 s", time.time_ns() - 3 * S, rank=1)
    with servers.http() as mood, servers.http() as heart, observed(record) as observer:
        run = Run(observer.directory)
        start.set_targets(run, [f"http://127.0.0.1:{mood.port}/secret-path"])
        chosen = Notify(heartbeat=f"http://127.0.0.1:{heart.port}/", heartbeat_s=3600)
        said: list[str] = []
        secret = own_base / "r" / "notify.json"
        assert secret.stat().st_mode & 0o777 == 0o600
        assert "secret-path" not in (own_base / "r" / "run.json").read_text()
        notifier = Notifier(run, chosen, said.append)
        observer.tell(beat(0, 1), beat(1, 1))
        assert looked(notifier, observer, threads)
        until(lambda: observer.turn() and not observer.topics, "the end of its subscription")
        assert not mood.taken
        observer.tell(verdicts=[hang])
        assert looked(notifier, observer, threads)
        until(lambda: mood.taken, "the message on the hang")
        # Another observer comes, which knows as much.
        observer.close()
        observer.open()
        observer.tell(beat(0, 1), beat(1, 1), verdicts=[hang])
        assert looked(notifier, observer, threads)
        # Somebody else is to be told, too.
        start.set_targets(run, [*start.targets(run), f"http://127.0.0.1:{heart.port}/"])
        observer.directory.update(state="failed", cause="rank 1: exit code 1", cause_rank=1, ended_at_ns=time.time_ns())
        assert not looked(notifier, observer, threads)
        notifier.finish()
    assert [each["kind"] for each in map(json.loads, (content for _, _, content in mood.taken))] == ["hang", "end"]
    assert [each["kind"] for each in map(json.loads, (content for _, _, content in heart.taken))] == [
        "heartbeat",
        "end",
    ]
    assert not said


def test_what_waits_for_an_address_that_is_taken_back_is_not_sent(own_base: Path, threads: ThreadPoolExecutor) -> None:
    """Its thread ends; that of another address goes on."""
    record = rundir.Run("r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")
    before = threading.enumerate()
    with observed(record) as observer:
        run = Run(observer.directory)
        start.set_targets(run, [f"http://127.0.0.1:{servers.free_port()}/"])
        notifier = Notifier(run, Notify(to=("exec:true",)), print)
        observer.tell(verdicts=[wire.Verdict(1, "hang", "rank 1 has not entered", time.time_ns() - 3 * S, rank=1)])
        assert looked(notifier, observer, threads)
        couriers = [each for each in threading.enumerate() if each.name == "courier" and each not in before]
        assert len(couriers) == 2
        start.set_targets(run, [])
        assert looked(notifier, observer, threads)
        until(lambda: [each.is_alive() for each in couriers].count(True) == 1, "the end of one of them")


def test_what_is_taken_back_after_the_end_is_tried_no_more(own_base: Path, threads: ThreadPoolExecutor) -> None:
    """The notifier ends at once, and not when it would give up."""
    record = rundir.Run("r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="failed")
    said: list[str] = []
    run = Run(rundir.create(record))
    start.set_targets(run, [f"http://127.0.0.1:{servers.free_port()}/"])
    notifier = Notifier(run, Notify(), said.append)
    assert not notifier.look()
    finished = threads.submit(notifier.finish)
    until(lambda: said, "the first attempt")
    assert not finished.done()
    start.set_targets(run, [])
    until(finished.done, "the end of the notifier")
    assert [line for line in said if "tried again" not in line] == []


@pytest.mark.parametrize("becomes", ["removed", "launched again"])
def test_the_last_message_of_a_run_that_is_gone_is_still_sent(
    own_base: Path, threads: ThreadPoolExecutor, becomes: str
) -> None:
    """Its addresses went with its folder, and nobody has taken them back."""
    record = rundir.Run("r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="failed")
    port, said = servers.free_port(), list[str]()
    run = Run(rundir.create(record))
    start.set_targets(run, [f"http://127.0.0.1:{port}/"])
    notifier = Notifier(run, Notify(), said.append)
    assert not notifier.look()
    until(lambda: said, "the first attempt")
    rundir.remove(run.directory)
    if becomes == "launched again":
        rundir.create(replace(record, run_id="another"))
    finished = threads.submit(notifier.finish)
    with servers.http(port) as mood:
        until(finished.done, "the end of the notifier")
    assert [each["state"] for each in taken(mood, "end")] == ["failed"]


def test_a_message_has_no_secret_of_the_run(own_base: Path, threads: ThreadPoolExecutor) -> None:
    """Neither in the cause nor in what a verdict says: a message leaves the machine."""
    record = rundir.Run(
        "r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running",
        environment={"API_KEY": "s3cr3t-value"},
    )  # fmt: skip
    hang = wire.Verdict(1, "hang", "rank 1 waits for s3cr3t-value", time.time_ns() - 3 * S, rank=1)
    with servers.http() as mood, observed(record) as observer:
        notifier = Notifier(Run(observer.directory), Notify(to=(f"http://127.0.0.1:{mood.port}/",)), print)
        observer.tell(beat(0, 1), beat(1, 1), verdicts=[hang])
        assert looked(notifier, observer, threads)
        cause = "rank 1: ValueError: bad key s3cr3t-value"
        observer.directory.update(state="failed", cause=cause, cause_rank=1, ended_at_ns=time.time_ns())
        assert not looked(notifier, observer, threads)
        notifier.finish()
    told = [json.loads(content)["text"] for _, _, content in mood.taken]
    assert told == ["rank 1 waits for ***", "rank 1: ValueError: bad key ***"]


def test_a_run_that_is_gone_or_another_is_left(own_base: Path, threads: ThreadPoolExecutor) -> None:
    """One that takes its name has a notifier of its own."""
    record = rundir.Run("r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")
    with observed(record) as observer:
        run = Run(observer.directory)
        assert not Notifier(run, Notify(), print).look()
        notifier = Notifier(run, Notify(to=("exec:true",)), print)
        assert looked(notifier, observer, threads)
        observer.directory.update(run_id="another")
        assert not notifier.turn()


def test_a_look_that_fails_is_not_the_last_one(own_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, and tried again."""
    record = rundir.Run("r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")
    said: list[str] = []
    run = Run(rundir.create(record))
    notifier = Notifier(run, Notify(to=("exec:true",)), said.append)
    monkeypatch.setattr(Notifier, "look", lambda self: 1 / 0)
    assert notifier.turn()
    assert notifier.turn()
    assert said == ["a look has failed, and is tried again: ZeroDivisionError: division by zero"]


def test_a_launch_tells_of_its_end_and_hides_where(own_base: Path, tmp_path: Path) -> None:
    """The notifier is no child of the launch, is one for each run, and ends with it; no process shows the address."""
    script = write_script(tmp_path, "import time\ntime.sleep(600)\n")
    with servers.http() as mood:
        # Other tests, of which processes are seen here, have other words.
        url = f"http://127.0.0.1:{mood.port}/hidden-from-others"
        launch = subprocess.Popen(
            [*DDPTOP, "launch", "--world", "1", "--start", "spawn", "--name", "told", "--notify", url, str(script)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            run = Run.at(own_base / "told")
            until(lambda: start.is_live(run), "the notifier")
            shown = []
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                # One that has ended meanwhile shows nothing.
                with contextlib.suppress(OSError):
                    shown.append(Path(f"/proc/{pid}/cmdline").read_bytes())
            assert not [line for line in shown if b"hidden-from-others" in line and b"pytest" not in line]
            assert any(b"/***" in line for line in shown)
            # Another target for the same run, and no other process.
            other = ddptop("notify", "told", "--to", f"{url}/more")
            assert other.returncode == 0, other.stderr
            assert "hidden-from-others" not in other.stdout
            assert len(start.targets(run)) == 2
            assert ddptop("kill", "told").returncode == 0
            until(lambda: len(mood.taken) == 2, "the end, at both")
            until(lambda: not start.is_live(run), "the end of the notifier")
        finally:
            launch.terminate()
            launch.communicate()
    assert {each["state"] for each in taken(mood, "end")} == {"killed"}
    refused = ddptop("notify", "told", "--to", url)
    assert (refused.returncode, "has ended" in refused.stderr) == (2, True)


def test_a_second_notifier_does_not_wait_for_the_end_of_the_first(
    own_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would tell of the end of the run once more; who only asks whether there is one is none."""
    record = rundir.Run("r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")
    run = Run(rundir.create(record))
    started = Mock()
    monkeypatch.setattr(subprocess, "Popen", started)
    assert not start.is_live(run)
    with open(log := start.log(run), "ab"), open(log, "rb") as asks:
        fcntl.flock(asks, fcntl.LOCK_SH)
        assert not start.is_live(run)
    notifier = start.lock(run)
    assert notifier is not None
    assert start.is_live(run)
    start.start(run, ["exec:true"])
    assert not started.called
    assert start.targets(run) == ("exec:true",)
    os.close(notifier)
    start.start(run)
    assert started.called


def test_the_task_of_a_scheduler_waits_for_the_last_message(
    own_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it all ends that it has started; what is delivered by a command is there when it ends."""
    for name in ("JOB_ID", "STEP_ID", "PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    out = tmp_path / "out"
    command = f"exec:tee {out}"
    done = ddptop(
        "launch", "--world", "1", "--start", "spawn", "--notify", command, str(write_script(tmp_path, "pass\n"))
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["title"].endswith("has finished")


def test_a_bad_address_starts_nothing(own_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given on the line or set; one line, exit code 2, and no run."""
    script = write_script(tmp_path, "pass\n")
    refused = ddptop("launch", "--world", "1", "--notify", "secret-path", str(script))
    assert (refused.returncode, refused.stderr.count("\n"), "no URL" in refused.stderr) == (2, 1, True)
    assert "secret-path" not in refused.stderr
    settings = tmp_path / "config.toml"
    settings.write_text('[notify]\nto = ["secret-path"]\n')
    monkeypatch.setenv("DDPTOP_CONFIG", str(settings))
    assert ddptop("launch", "--world", "1", str(script)).returncode == 2
    assert not list(own_base.glob("*/run.json"))
    shown = ddptop("config")
    assert "to is set" in shown.stdout
    assert "secret-path" not in shown.stdout
    settings.write_text('[notify]\nkinds = ["hangs"]\n')
    assert "is not one of hang, death" in ddptop("notify", "--test", "exec:true").stderr


def test_the_launches_on_the_nodes_of_an_allocation_inherit_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a variable that no rank gets: the command line of `srun` can be read on every node."""
    monkeypatch.setenv("DDPTOP_NOTIFY", "exec:true\nexec:false a b")
    assert addresses(["exec:cat"], Settings()) == ["exec:cat", "exec:true", "exec:false a b"]
    assert "DDPTOP_NOTIFY" not in os.environ


def test_a_test_message_says_whether_it_was_taken() -> None:
    """Exit code 0 or 1, and one line."""
    assert ddptop("notify", "--test", "exec:true").returncode == 0
    failed = ddptop("notify", "--test", "exec:false")
    assert (failed.returncode, failed.stderr) == (1, "ddptop: exec:false: exit code 1\n")
