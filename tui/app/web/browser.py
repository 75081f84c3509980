"""The dashboard behind one tab of a browser; `serve` starts one for each.

    python …/agent/starter.py ddptop.tui.app.web.browser RUN ID [--control]

Without `--control` the run can only be looked at.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from ddptop.agent.client import runs
from ddptop.agent.client.acting.actor import who
from ddptop.agent.client.host import settings
from ddptop.agent.client.host.program import limit_memory
from ddptop.agent.client.watch import Watch
from ddptop.tui.app.program import run_dashboard

ROOM: Final = 1 << 30
"""Bytes of memory that a tab may get on top of what it has at its start."""


def exactly(name: str, run_id: str) -> runs.Run:
    """Return the run of that name and that id, and none that has taken its name since.

    Raises:
        RunDirError: it is gone.
    """
    run = runs.named(name)
    try:
        found = run.record().run_id
    except runs.RunDirError:
        found = ""
    if found != run_id:
        raise runs.RunDirError(
            f"run {name!r}: the run that is served is gone; end `ddptop serve` and start it for another"
        )
    return run


def main() -> None:
    """Show the run until the tab is closed."""
    limit_memory(ROOM)
    name, run_id, *mode = sys.argv[1:]
    try:
        run = exactly(name, run_id)
    except runs.RunDirError as problem:
        raise SystemExit(f"ddptop: {problem}") from problem
    found = settings.load()
    # What a browser can draw does not depend on the locale of the server.
    look = msgspec.structs.replace(found.look, glyphs="unicode" if found.look.glyphs == "auto" else found.look.glyphs)
    code = run_dashboard(
        Watch(run, who("browser"), looks_back=True),
        msgspec.structs.replace(found, look=look),
        read_only=mode != ["--control"],
    )
    # A kill without an observer keeps the process after this. The end of its output says that the dashboard has left.
    with open(os.devnull, "wb") as nowhere:
        for output in (sys.stdout, sys.stderr):
            os.dup2(nowhere.fileno(), output.fileno())
    raise SystemExit(code)


if __name__ == "__main__":
    main()
