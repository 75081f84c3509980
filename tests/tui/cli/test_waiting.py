"""What the verbs that act on a run show while they wait for ranks, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from ddptop.tui.cli.verbs.control import _LiveLine


def read(descriptor: int) -> str:
    """Return what was written to the terminal."""
    return os.read(descriptor, 10_000).decode()


def test_a_terminal_shows_one_line_and_loses_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same line is written once, with as much advice as fits, each piece whole; at the end it is erased."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((60, 24)))
        line = _LiveLine("ctrl+c cancels", "in another terminal: ddptop pause resnet-7f3a --freeze")
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


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """What reads the output of a verb finds its outcome alone."""
    line = _LiveLine("ctrl+c cancels")
    line.show("pausing: waiting for rank 1")
    line.clear()
    assert capsys.readouterr().err == ""
