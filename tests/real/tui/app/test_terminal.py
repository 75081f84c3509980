"""However the dashboard ends, the run goes on and the terminal is as it was. In a real pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from support.harness import DEADLINE_S, carriers, ddptop, until, write_script
from support.processes.scripts import OBEDIENT
from support.screens import terminal as programs

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir

SLEEPER = "import time\nwhile True:\n    time.sleep(0.1)\n"
SHELL = """
import os, signal, termios
before = termios.tcgetattr(0)
child = os.fork()
if child:
    stopped = os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    print(f"the shell: stopped {stopped}, terminal as before {termios.tcgetattr(0) == before}", flush=True)
    os.kill(child, signal.SIGCONT)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.setpgid(0, 0)
"""
"""Continues a program, which has a process group of its own, once it has suspended itself."""
SCRIPT = """
import os
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Has no job control, as `sh -c` has none, and would wait for ever for a program that is stopped."""
WAYS = {
    "q": lambda process, terminal: os.write(terminal, b"q"),
    "SIGHUP": lambda process, terminal: process.send_signal(signal.SIGHUP),
}


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory) -> Iterator[RunDir]:
    """A run of one rank that does nothing, so that it costs nothing."""
    folder = tmp_path_factory.mktemp("sleeper")
    (folder / "sleeper.py").write_text(SLEEPER)
    done = ddptop("launch", "--world", "1", "--name", "sleeper", "--no-wait", "sleeper.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    directory = rundir.find("sleeper")
    until(directory.members, "its rank")
    yield directory
    assert ddptop("kill", "sleeper").returncode == 0


class Terminal:
    """A dashboard in a pseudo-terminal of 80 by 24."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80)) if hasattr(termios, "tcsetwinsize") else None
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddptop.tui.cli.main", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        )  # fmt: skip
        self.output = b""

    def read(self, seconds: float = 0.05) -> bytes:
        """Return all output until now."""
        while select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 65536)
        return self.output

    def has_ended(self) -> bool:
        """Read, so that the program can write on, and look."""
        self.read()
        return self.process.poll() is not None

    def await_output(self, text: bytes) -> None:
        until(lambda: text in self.read(), f"{text!r} on the screen")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=DEADLINE_S)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(sleeper) -> Iterator[Terminal]:
    """A dashboard that shows the run."""
    opened = Terminal("attach", "sleeper")
    try:
        opened.await_output(b"sleeper")
        yield opened
    finally:
        opened.close()


def is_going_on(directory: RunDir) -> bool:
    """Say by its record and its processes whether it lives: a verb for each way to leave would take seconds."""
    (member,) = directory.members().values()
    run = directory.read()
    return run.state == "running" and rundir.is_alive(member.process) and rundir.is_alive(run.torchrun)


@pytest.mark.parametrize("way", WAYS)
def test_leaving_restores_the_terminal(sleeper, terminal, way):
    """Main screen, cursor, echo and mouse are back, the two lines say how to return, the run goes on."""
    WAYS[way](terminal.process, terminal.master)
    until(terminal.has_ended, f"the dashboard to end by {way}")
    terminal.read(0.2)
    tail = terminal.output[terminal.output.rindex(b"\x1b[?1049l") :]
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert b"\x1b[?25h" in tail or b"\x1b[?25h" in terminal.output[-2000:]
    assert terminal.output.rindex(b"\x1b[?1000l") > terminal.output.rindex(b"\x1b[?1000h")
    assert b"ddptop attach sleeper" in tail
    assert b"ddptop kill sleeper" in tail
    expected = {"q": 0, "SIGHUP": 129}[way]
    assert terminal.process.returncode == expected
    assert is_going_on(sleeper)


def test_suspending_gives_the_terminal_back_to_the_shell():
    """Ctrl-Z stops it, with the terminal as it was before; once it is continued it is painted again, and takes keys."""
    opened = programs.Terminal(SHELL + programs.RUN + "raise SystemExit(run_dashboard(source))")
    try:
        opened.read_until(b"resnet")
        os.write(opened.master, b"\x1a")
        opened.read_until(b"the shell: stopped True, terminal as before True")
        left = opened.written.rindex(b"\x1b[?1049l")
        until(lambda: b"resnet" in opened.written[left:], "the dashboard again")
        os.write(opened.master, b"q")
        assert opened.wait() == 0
    finally:
        opened.close()


@pytest.mark.parametrize("above", ["", SCRIPT])
def test_without_a_shell_it_is_not_suspended(above):
    """Nobody could continue it: the key does nothing, and the next one is taken."""
    opened = programs.Terminal(above + programs.RUN + "raise SystemExit(run_dashboard(source))")
    try:
        opened.read_until(b"resnet")
        os.write(opened.master, b"\x1aq")
        assert opened.wait() == 0
    finally:
        opened.close()


def test_kill_9_of_the_dashboard_leaves_the_run_alone(sleeper, terminal):
    """What nobody can clean up after still does not touch the training."""
    terminal.process.kill()
    terminal.process.wait(timeout=DEADLINE_S)
    assert is_going_on(sleeper)


def test_it_ends_with_its_terminal(sleeper):
    """A dashboard whose terminal is gone, and that no SIGHUP tells of it, ends by itself; the run goes on."""
    opened = Terminal("attach", "sleeper")
    try:
        opened.await_output(b"sleeper")
        os.close(opened.master)
        os.close(opened.slave)
        until(lambda: opened.process.poll() is not None, "the dashboard to end")
    finally:
        opened.process.kill()
        opened.process.wait(timeout=DEADLINE_S)
    # Its last words have nowhere to go: the exit code may be that of their failure.
    assert opened.process.returncode in (1, 120, 129)
    assert is_going_on(sleeper)


def test_interrupting_a_launch_without_a_terminal_stops_the_run(tmp_path):
    """In CI nobody can be asked: one SIGINT ends the whole group, and the summary still comes."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = subprocess.Popen(
        [sys.executable, "-m", "ddptop.tui.cli.main", "launch", "--world", "1", "--name", "piped", "sleeper.py"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while "is up" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "piped killed" in output
    assert carriers(rundir.find("piped").read().run_id) == []


@pytest.mark.parametrize(("answer", "state"), [(b"l\r", "starting"), (b"k\r", "killed")])
def test_interrupting_a_launch_on_a_terminal_asks(tmp_path, monkeypatch, answer, state):
    """Leave or kill: the user's answer decides, and is carried out."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    name = f"asked-{answer[:1].decode()}"
    monkeypatch.chdir(tmp_path)
    opened = Terminal("launch", "--plain", "--world", "1", "--name", name, "sleeper.py")
    try:
        opened.await_output(b"is up")
        opened.process.send_signal(signal.SIGINT)
        opened.await_output(b"[l]eave it running")
        os.write(opened.master, answer)
        until(opened.has_ended, "the end")
    finally:
        opened.close()
    assert opened.process.returncode == 130
    assert json.loads(ddptop("status", name, "--json").stdout)["state"] == state
    if state == "starting":
        assert f"ddptop attach {name}".encode() in opened.output
        assert ddptop("kill", name).returncode == 0


def test_a_run_that_is_interrupted_and_stopped_saves_first(tmp_path, monkeypatch):
    """Stop means at a step, after a checkpoint, as it does everywhere: each rank has saved."""
    monkeypatch.chdir(tmp_path)
    script = str(write_script(tmp_path, OBEDIENT, "obedient.py"))
    opened = Terminal("launch", "--plain", "--world", "2", "--name", "saved", script, "--", str(tmp_path))
    try:
        # By then its checkpoint function is known, too.
        opened.await_output(b"  step ")
        opened.process.send_signal(signal.SIGINT)
        opened.await_output(b"[s]top it at a step, after a checkpoint")
        os.write(opened.master, b"s\r")
        until(opened.has_ended, "the end")
    finally:
        opened.close()
    assert opened.process.returncode == 0
    assert json.loads(ddptop("status", "saved", "--json").stdout)["state"] == "stopped"
    assert [(tmp_path / f"checkpoint-{rank}").exists() for rank in range(2)] == [True, True]


@pytest.mark.parametrize("asked", [False, True])
def test_a_sigterm_ends_a_launch_on_a_terminal_without_a_question(tmp_path, monkeypatch, asked):
    """Whoever sends it cannot answer: the group is ended, also where Ctrl-C had asked before."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    name = f"told-{asked}".lower()
    monkeypatch.chdir(tmp_path)
    opened = Terminal("launch", "--plain", "--world", "1", "--name", name, "sleeper.py")
    try:
        opened.await_output(b"is up")
        if asked:
            opened.process.send_signal(signal.SIGINT)
            opened.await_output(b"[l]eave it running")
        opened.process.send_signal(signal.SIGTERM)
        until(opened.has_ended, "the end")
    finally:
        opened.close()
    assert (b"[l]eave it running" in opened.output) == asked
    assert opened.process.returncode == 143
    assert json.loads(ddptop("status", name, "--json").stdout)["state"] == "killed"
    assert carriers(rundir.find(name).read().run_id) == []
