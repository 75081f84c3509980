"""Leaving the dashboard in a real pseudo-terminal; further ways in which it ends are in tests/real."""

from __future__ import annotations

import os
import termios

from support.screens.terminal import Terminal

from ddptop.agent.run import rundir


def test_leaving_gives_the_terminal_back_and_leaves_the_run(quiet_run: str) -> None:
    """Main screen, cursor, echo and mouse are as before; two lines say how to return, and how to end the run."""
    terminal = Terminal(f"sys.argv = ['ddptop', 'attach', {quiet_run!r}]\nfrom ddptop.tui.cli.main import main; main()")
    try:
        terminal.read_until(b"Leave")
        os.write(terminal.master, b"q")
        assert terminal.wait() == 0
        assert termios.tcgetattr(terminal.master) == terminal.before
        left = terminal.written.rindex(b"\x1b[?1049l")
        tail = terminal.written[left:]
        assert b"\x1b[?25h" in terminal.written[-2000:]
        assert terminal.written.rindex(b"\x1b[?1000l") > terminal.written.rindex(b"\x1b[?1000h")
        assert f"ddptop attach {quiet_run}".encode() in tail
        assert f"ddptop kill {quiet_run}".encode() in tail
    finally:
        terminal.close()
    run = rundir.find(quiet_run).read()
    assert run.state != "killed"
    assert rundir.is_alive(run.torchrun)
