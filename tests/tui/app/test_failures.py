"""An error of the dashboard's own, wherever it comes up, leaves the terminal whole and the run alone."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
from support.screens.terminal import RUN, Terminal

from ddptop.tui.app.program import FAILED

PLACES = {
    "timer": ("source", "poll", b""),
    "thread": ("source", "pause", b" "),
    "compose": ("RankScreen", "compose", b"\r"),
    "drawing": ("LogView", "render_line", b""),
    "palette": ("RunCommands", "_actions", b"\x10"),
    "end": ("source", "close", b"q"),
}
"""Where it fails: whose method, and the key after which it is called."""


@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_its_own_is_one_line_and_a_file(place: str) -> None:
    """Terminal restored, one line that names the error as text, a traceback kept, the code not 0."""
    owner, method, key = PLACES[place]
    fault = f"""
from ddptop.tui.app.palette import RunCommands
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.views.screen.log import LogView
def fail(*args, **options):
    raise ZeroDivisionError('seeded [/fault]')
{owner}.{method} = fail
raise SystemExit(run_dashboard(source))
"""
    terminal = Terminal(RUN + fault)
    try:
        if key:
            terminal.read_until(b"RUNNING")
            os.write(terminal.master, key)
        assert terminal.wait() == FAILED
        after = terminal.written[terminal.written.rindex(b"\x1b[?1049l") :].decode()
        assert "\x1b[?25h" in after
        said = re.search(r"ddptop: the dashboard failed; the run goes on\. (.*)\(traceback in (.*)\)", after)
        assert said is not None, after
        assert "ZeroDivisionError: seeded [/fault]" in said[1]
        assert "in fail" in Path(said[2]).read_text()
        assert "Traceback" not in after
        assert Path(said[2]).parent == Path(tempfile.gettempdir())
        Path(said[2]).unlink()
    finally:
        terminal.close()
