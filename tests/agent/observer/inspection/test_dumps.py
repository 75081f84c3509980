"""Stacks by py-spy, for which programs stand in that write what a test wants them to."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.harness import WAITING

from ddptop.agent.observer.inspection import dumps
from ddptop.agent.observer.inspection.dumps import Dump, Frame, Thread
from ddptop.agent.outside import rights

Stand = Callable[[str], None]
"""Makes a program of these lines of a shell script, and has it started instead of py-spy."""


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """What is started instead of py-spy."""

    def make(lines: str) -> None:
        file = tmp_path / "py-spy"
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o700)
        monkeypatch.setattr(dumps, "executable", lambda: str(file))

    return make


def dumped(*, native: bool = False, seconds: float = 60.0) -> Dump:
    """Return the dump of one process."""
    (found,) = dumps.dumps({3: 12345}, native=native, until=time.monotonic() + seconds).values()
    return found


def test_threads_and_frames_are_read(spy: Stand) -> None:
    """What it tells beyond that is left alone; a thread may have neither name nor number."""
    spy(
        """echo '[{"pid": 1, "thread_name": "MainThread", "os_thread_id": 7, "owns_gil": true, "active": true,
        "frames": [{"name": "f", "filename": "/a.py", "line": 3, "locals": null}]},
        {"thread_name": null, "os_thread_id": null, "owns_gil": false, "frames": []}]'"""
    )
    assert dumped() == Dump([Thread("MainThread", 7, True, [Frame("f", "/a.py", 3)]), Thread()])


def test_a_process_is_stopped_only_for_native_frames(spy: Stand, tmp_path: Path) -> None:
    """It is read while it runs; the environment of py-spy does not make it one of the run's processes."""
    spy(f'echo "$@" >> {tmp_path}/asked; env > {tmp_path}/environment; echo "[]"')
    dumped()
    dumped(native=True)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["dump --json --nonblocking --pid 12345", "dump --json --native --pid 12345"]
    assert "DDPTOP" not in (tmp_path / "environment").read_text()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1", "SYS_PTRACE"),
        (
            "printf 'Error: No\\n\\nCaused by:\\n    0: \\033[31mit\\n    1: gone\\n\\nStack backtrace:\\n 0: x' >&2",
            "py-spy: gone",
        ),
        ("echo '[{]'", "py-spy: it said nothing"),
        ("echo '[[[[[[[[[['", "py-spy: it said nothing"),
        ("head -c 40000000 /dev/zero", "too large"),
    ],
)  # fmt: skip
def test_no_stacks_have_a_reason(
    spy: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: str, problem: str
) -> None:
    """One line, clean, with what would help; whatever it writes, and however much."""
    monkeypatch.setattr(rights, "_SCOPE", tmp_path / "none")
    spy(lines)
    found = dumped()
    assert found.threads == []
    assert problem in found.problem
    assert found.problem.isprintable()


@pytest.mark.parametrize(("scope", "help"), [("1", "sudo sysctl"), ("3", "until the next boot"), ("0", "SYS_PTRACE")])
def test_the_setting_that_forbids_it_is_named(
    spy: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str, help: str
) -> None:
    """Of the system's own settings, or of the container."""
    file = tmp_path / "ptrace_scope"
    file.write_text(f"{scope}\n")
    monkeypatch.setattr(rights, "_SCOPE", file)
    spy("echo 'Operation not permitted' >&2")
    assert help in dumped().problem


def test_one_that_hangs_is_ended(spy: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their stacks all the same; that of many more than are started at a time too."""
    folder = tmp_path / "came"
    folder.mkdir()
    hangs = f'case "$5" in 5) exec {shlex.join(WAITING)};; esac'
    spy(f'echo $$ > {folder}/$5; {hangs}; echo "[]"; touch {folder}/$5-over')

    class Clock:
        """Stands still until all but one are over."""

        def monotonic(self) -> float:
            return 1.0 if len(list(folder.glob("*-over"))) == 11 else 0.0

    monkeypatch.setattr(dumps, "time", Clock())
    found = dumps.dumps({number: number for number in range(12)}, native=False, until=0.2)
    # The last of the others may have been over, and not read.
    assert found[5].problem == dumps.LATE
    assert sum(each.problem == "" for each in found.values()) >= 12 - dumps.AT_A_TIME
    assert not os.path.exists(f"/proc/{(folder / '5').read_text().strip()}")


def test_without_py_spy_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither beside this Python nor where the shell looks."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dumped() == Dump([], dumps.MISSING)
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho '[]'\n")
    (tmp_path / "py-spy").chmod(0o700)
    assert dumped() == Dump([])


def test_what_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason is the system's."""
    monkeypatch.setattr(dumps, "executable", lambda: str(tmp_path / "none"))
    assert "cannot be started" in dumped().problem
