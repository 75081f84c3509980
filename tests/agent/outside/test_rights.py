"""The permission to look into a process, as the system shows it beforehand."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.harness import WAITING, started, until

from ddptop.agent.outside import rights
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process, identify, namespace


def process(pid: int) -> Process:
    """Return the identity of a process that lives."""
    found = identify(pid)
    assert found is not None
    return found


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A setting of Yama, and a user without capabilities."""
    file = tmp_path / "ptrace_scope"
    monkeypatch.setattr(rights, "_SCOPE", file)
    monkeypatch.setattr(rights, "_has_capability", lambda: False)
    return file


def test_yama_asks_for_ancestors(scope: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Yama any process of the user may be looked at; with it a child, and no other, until it forbids all."""
    other = process(os.getppid())
    with started(*WAITING) as child:
        assert rights.may_look(process(child.pid)) == ""
        assert rights.may_look(other) == ""
        scope.write_text("1\n")
        assert rights.may_look(process(child.pid)) == ""
        assert "sudo sysctl kernel.yama.ptrace_scope=0" in rights.may_look(other)
        scope.write_text("2\n")
        assert "ptrace_scope is 2" in rights.may_look(process(child.pid))
        monkeypatch.setattr(rights, "_has_capability", lambda: True)
        assert rights.may_look(other) == ""
        scope.write_text("3\n")
        assert "until the next boot" in rights.may_look(other)


def test_other_users_and_containers(scope: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another user, or in another container, is named as that, with what helps; one that is gone, too."""
    with started(*WAITING) as child:
        found = process(child.pid)
        monkeypatch.setattr(identity, "namespace_of", lambda pid: "1" + namespace())
        assert "--cap-add SYS_PTRACE" in rights.may_look(found)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert "belongs to user" in rights.may_look(found)
    assert rights.may_look(found) == f"process {found.pid} is gone"


def test_a_debugger_is_named(scope: Path) -> None:
    """A process that a debugger holds says by which, before anything is tried."""
    code = """
import ctypes, signal, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
print(libc.ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True)  # PTRACE_SEIZE
signal.pause()
"""
    with started(*WAITING) as child, started(
        "python3", "-c", code, str(child.pid), stdout=subprocess.PIPE
    ) as tracer:  # fmt: skip
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "0\n":
            pytest.skip("the system lets nobody trace here")
        until(lambda: rights.held_by(process(child.pid)) == tracer.pid, "the debugger")
        assert f"held by a debugger (process {tracer.pid})" in rights.may_look(process(child.pid))
        tracer.send_signal(signal.SIGKILL)
