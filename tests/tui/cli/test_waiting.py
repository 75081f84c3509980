"""What the verbs that act on a run show while they wait for ranks, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.run import rundir
from ddptop.agent.wire.vocabulary.refusals import Cancelled, Hung
from ddptop.tui.cli.main import main
from ddptop.tui.cli.verbs.options import LiveLine


def read(descriptor: int) -> str:
    """Return what was written to the terminal."""
    return os.read(descriptor, 10_000).decode()


def test_a_terminal_shows_one_line_and_loses_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same line is written once, with as much advice as fits, each piece whole; at the end it is erased."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((60, 24)))
        line = LiveLine("ctrl+c cancels", "in another terminal: ddptop pause resnet-7f3a --freeze")
        for _ in range(3):
            line.show("pausing: waiting for rank 1")
        shown = read(master)
        assert shown == "\r\x1b[Kpausing: waiting for rank 1 · ctrl+c cancels"
        line.show("")
        assert read(master) == "\r\x1b[K"
        monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((120, 24)))
        line.show("pausing: waiting for rank 2")
        assert read(master).endswith(" · ctrl+c cancels · in another terminal: ddptop pause resnet-7f3a --freeze")
        line.clear()
        assert read(master) == "\r\x1b[K"
    os.close(master)


Act = Callable[[Waiting], str]


@pytest.fixture
def pause(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], object]:
    """Run `ddptop pause` on a run, with this in place of the pause itself; returns the exit code."""
    name = f"waits-{os.getpid()}"

    def run(act: Act) -> object:
        monkeypatch.setattr(RunControl, "pause", lambda control, waiting: act(waiting))
        monkeypatch.setattr(sys, "argv", ["ddptop", "pause", name])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    rundir.create(rundir.Run(name, name, "toy", (), 2, "gloo", "cpu", 10**9, True, state="finished"))
    return run


def test_a_log_has_no_line_for_each_step(pause: Callable[[Act], object], capsys: pytest.CaptureFixture[str]) -> None:
    """A look at 1,000 steps says once of which ranks it waits for these."""

    def act(waiting: Waiting) -> str:
        for ranks, step in (("ranks 0, 1", 7), ("ranks 0, 1", 1008), ("rank 1", 1009)):
            waiting.tell(f"looking: {ranks} at step {step:,}")
        return "done"

    assert pause(act) == 0
    name = f"waits-{os.getpid()}"
    assert capsys.readouterr().err == f"{name}: looking: ranks 0, 1 at step 7\n{name}: looking: rank 1 at step 1,009\n"


def test_without_a_terminal_each_change_is_a_line(
    pause: Callable[[Act], object], capsys: pytest.CaptureFixture[str]
) -> None:
    """A log shows what the verb waits for, without control characters; the outcome stands alone on stdout."""

    def act(waiting: Waiting) -> str:
        for rank in (1, 1, 0, 0):
            waiting.tell(f"pausing: waiting for rank {rank}")
        return "paused after step 4"

    assert pause(act) == 0
    output, errors = capsys.readouterr()
    name = f"waits-{os.getpid()}"
    assert errors == f"{name}: pausing: waiting for rank 1\n{name}: pausing: waiting for rank 0\n"
    assert output == f"{name}: paused after step 4\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_wait(
    number: signal.Signals, pause: Callable[[Act], object], capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM does what ctrl+c does: one line stays that says what becomes of the run, and the exit code is 130."""

    def act(waiting: Waiting) -> str:
        # As the request to the observer does: it has the wait cancelled, which lets the ranks go on.
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        raise Cancelled("cancelled; the run goes on")

    before = signal.getsignal(signal.SIGTERM)
    assert pause(act) == 130
    assert capsys.readouterr().err == f"waits-{os.getpid()}: pause cancelled; the run goes on\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_hangs_is_told_with_what_can_be_done(
    pause: Callable[[Act], object], capsys: pytest.CaptureFixture[str]
) -> None:
    """A freeze would not help it, and is not offered."""

    def act(waiting: Waiting) -> str:
        raise Hung("rank 1 hangs: it sleeps")

    assert pause(act) == 1
    name, errors = f"waits-{os.getpid()}", capsys.readouterr().err
    assert f"rank 1 hangs: it sleeps; so it comes to no step: `ddptop stacks {name}` shows where" in errors
    assert f"`ddptop kill {name}` ends it" in errors
    assert "freeze" not in errors


def test_an_interrupt_after_the_wait_promises_nothing(
    pause: Callable[[Act], object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranks may have been told by then: the line says where to look."""

    def act(waiting: Waiting) -> str:
        raise KeyboardInterrupt

    assert pause(act) == 130
    assert "pause interrupted; see `ddptop status waits-" in capsys.readouterr().err
