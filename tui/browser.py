"""The dashboard behind one tab of a browser; `serve` starts one for each.

    python -m ddptop.tui.browser RUN [--control]

Without `--control` the run can only be looked at.
"""

from __future__ import annotations

import sys

import msgspec

from ddptop.agent import rundir
from ddptop.tui import settings, view
from ddptop.tui.app import run_dashboard
from ddptop.tui.link import Link


def main() -> None:
    """Show the run until the tab is closed."""
    name, *mode = sys.argv[1:]
    directory = rundir.find(name)
    found = settings.load()
    # What a browser can draw does not depend on the locale of the server.
    look = msgspec.structs.replace(found.look, glyphs="unicode" if found.look.glyphs == "auto" else found.look.glyphs)
    link = Link(directory, view.who("browser"), found.thresholds, looks_back=True)
    code = run_dashboard(
        link, directory.read().grace_s, msgspec.structs.replace(found, look=look), read_only=mode != ["--control"]
    )
    raise SystemExit(code)


if __name__ == "__main__":
    main()
