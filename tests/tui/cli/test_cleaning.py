"""`ddptop clean` and the sizes of `ddptop ps`."""

from __future__ import annotations

import errno
import json
import os
import pty
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.harness import DDPTOP

from ddptop.agent.client import runs
from ddptop.agent.client.host import settings
from ddptop.agent.client.start import run as start
from ddptop.agent.launcher import observers
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.tui.cli import main
from ddptop.tui.cli.verbs import cleaning

DAY_S = 86_400


def made(name: str, days: float, *, state: str = "finished", size: int = 1 << 20) -> RunDir:
    """Make a run that ended so many days ago, or that this very process looks after."""
    ended = int((time.time() - days * DAY_S) * 1e9)
    live = state == "running"
    directory = rundir.create(
        Run(
            name, secrets.token_hex(8), "p", (), 1, "gloo", "cpu", ended - 10**9, live, state=state,
            ended_at_ns=None if live else ended, observer=rundir.identify(os.getpid()) if live else None,
        )
    )  # fmt: skip
    (directory.logs / "rank-0.log").write_bytes(os.urandom(size))
    return directory


def left() -> list[str]:
    """Return the runs that are there."""
    return sorted(run.name for run in rundir.runs())


class Done(NamedTuple):
    """What a command line came to."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command line in this process, without a terminal."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["ddptop", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capfd.readouterr())

    return run


def test_it_tells_and_removes_nothing_without_a_yes(own_base: Path, command: Callable[..., Done]) -> None:
    """Without a terminal the table comes, and the word that nothing was removed; the exit code is 0."""
    made("old", 3)
    made("live", 0, state="running")
    (own_base / "foreign").mkdir()
    done = command("clean")
    assert done.returncode == 0, done.stderr
    assert "say --yes" in done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", "old", "1"]
    assert "finished" in lines[1]
    assert "3d 00h ago" in lines[1]
    assert left() == ["live", "old"]
    assert command("clean", "--yes").stdout.splitlines()[-1].startswith("removed 1 run: ")
    assert left() == ["live"]
    assert (own_base / "foreign").is_dir()
    assert command("clean", "--yes").stdout.startswith("no ended run to remove")


def test_runs_are_chosen_by_number_age_and_name(own_base: Path, command: Callable[..., Done]) -> None:
    """`--keep` keeps those that ended last, `--older` those that ended lately, names mean these alone."""
    for days in (1, 2, 3, 4):
        made(f"d{days}", days, size=4096)
    assert command("clean", "--keep", "1", "--older", "2.5", "--yes").returncode == 0
    assert left() == ["d1", "d2"]
    assert command("clean", "--keep", "5", "--yes").returncode == 0
    assert left() == ["d1", "d2"]
    assert command("clean", "d1", "--yes").returncode == 0
    assert left() == ["d2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["live"], "run live: it has not ended, and nothing was removed; `ddptop kill live` ends it"),
        (["old", "nobody"], "run 'nobody': no such run"),
        (["old", "--keep", "1"], "clean: name the runs, or choose them"),
        (["--keep", "-1"], "argument --keep"),
        (["--older", "nan"], "argument --older"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    own_base: Path, command: Callable[..., Done], arguments: list[str], says: str
) -> None:
    """A live run, a run that is not there, and choices that contradict each other: exit code 2, nothing removed."""
    made("old", 3, size=4096)
    made("live", 0, state="running", size=4096)
    done = command("clean", *arguments, "--yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert left() == ["live", "old"]


@pytest.mark.parametrize(("answer", "stays"), [("\n", True), ("y\n", False)])
def test_on_a_terminal_it_asks(own_base: Path, answer: str, stays: bool) -> None:
    """Only a yes removes."""
    made("old", 3, size=4096)
    ours, theirs = pty.openpty()
    with subprocess.Popen([*DDPTOP, "clean"], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(ours, 4096)
        os.write(ours, answer.encode())
        assert process.wait(60) == 0
    os.close(ours)
    assert left() == (["old"] if stays else [])


def test_ps_says_the_size(own_base: Path, command: Callable[..., Done]) -> None:
    """Logs included, in the table and as a number."""
    made("old", 3, size=3 << 20)
    (row,) = json.loads(command("ps", "--json").stdout)
    assert 3 << 20 <= row["size_bytes"] <= (3 << 20) + (64 << 10)
    header, line = command("ps").stdout.splitlines()
    assert header.index("SIZE") == line.index("3 MiB")


def test_a_restart_tells_what_it_removed_and_spares_what_it_repeats(
    own_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where runs have to go for room, the repeated one stays though it is the oldest, and one line names the others."""
    monkeypatch.setattr(observers, "start", lambda directory: None)
    monkeypatch.setattr(rundir, "KEEP_ENDED", 3)
    monkeypatch.setattr(settings, "load", lambda: settings.Settings(storage=settings.Storage(all_mib=8)))
    for days in range(1, 5):
        made(f"old-{days}", days, size=6 << 20 if days == 2 else 1 << 20)
    oldest = made("oldest", 9)
    oldest.update(launched=True, cwd=str(tmp_path), command=("x",))
    said: list[str] = []
    again = start.restart(runs.Run(oldest), tell=said.append).directory
    assert left() == ["old-1", "oldest", "oldest.2"]
    assert said == ["removed 3 finished runs, 8 MiB: old-2, old-3, old-4"]
    assert again.read().removal == said[0]
    assert start.restart(runs.Run(oldest), tell=said.append).name == "oldest.3"
    assert len(said) == 1


def test_a_run_that_has_taken_the_name_meanwhile_stays(own_base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between the table and the yes a run may end, go, and leave its name to another one: that one was not chosen."""
    old = made("same", 3, size=4096)
    (chosen,) = cleaning._named(["same"])
    rundir.remove(old)
    new = made("same", 1, size=4096)
    assert cleaning._remove([chosen]) == ([], 1)
    assert "another run has taken this name meanwhile" in capsys.readouterr().err
    assert new.read().run_id != chosen.record.run_id
    assert left() == ["same"]


def test_a_run_that_ended_on_a_full_disk_can_be_removed(
    command: Callable[..., Done], own_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end could not be written down: it is over all the same, for `ps`, which stops to count, and for `clean`."""
    directory = made("full", 1, state="running")
    gone = rundir.Process(2**22 + 1, 1.0)
    ended = directory.read().created_at_ns + 90 * 10**9
    member = rundir.Member(0, 0, 1, gone, "host", 0, "", "", None, rundir.Ended(ended, 0))
    directory.write_member(member)
    directory.update(observer=gone, torchrun=gone)

    def full(self: RunDir, run: Run) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunDir, "write", full)
    (line,) = json.loads(command("ps", "--all", "--json").stdout)
    assert (line["state"], round(line["ended_at"] - line["started_at"])) == ("finished", 90)
    assert command("clean", "full", "--yes").returncode == 0
    assert left() == []
