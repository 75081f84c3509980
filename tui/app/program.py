"""The dashboard as a program: shown until the user leaves, with an exit code, and one line on an error of its own."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import traceback
from typing import Final

import msgspec

from ddptop.agent.client.host.settings import Settings
from ddptop.agent.text import clean_line
from ddptop.tui.app.app import DEFAULT, DdptopApp
from ddptop.tui.app.keys.hint import FirstHint
from ddptop.tui.drawing.glyphs import locale_is_unicode
from ddptop.tui.link.fleet import Fleet
from ddptop.tui.link.source import Source

GARBAGE: Final = 10_000
"""Objects between two looks for unreachable ones: a frame makes and drops thousands, none of them in a cycle."""
FAILED: Final = 70
"""Exit code when the dashboard itself failed (EX_SOFTWARE of sysexits.h)."""


def run_dashboard(
    source: Source,
    settings: Settings = DEFAULT,
    fleet: Fleet | None = None,
    *,
    read_only: bool = False,
    listed: bool = False,
) -> int:
    """Show the dashboard until the user leaves it; for `fleet` and `listed` see `DdptopApp`.

    Returns:
        0 when the user left, 128 + the number of the signal that ended it, `FAILED` after an error of its own.
    """
    if settings.look.glyphs == "auto" and not locale_is_unicode():
        look = msgspec.structs.replace(settings.look, glyphs="ascii")
        settings = msgspec.structs.replace(settings, look=look)
    # Who may only look on is not the user of this machine.
    hint = FirstHint() if settings.look.hint and not read_only else None
    app = DdptopApp(source, settings=settings, fleet=fleet, hint=hint, read_only=read_only, listed=listed)
    # What is imported stays: to look through it for garbage again and again took an eighth of the CPU of 64 panels.
    gc.freeze()
    # The middle generation in good time, too: after ten times as much it held up a key by 0.1 s.
    gc.set_threshold(GARBAGE, 5)
    try:
        try:
            app.run()
        finally:
            source.close()
            if fleet is not None:
                fleet.close()
    except Exception as error:  # The last wall: what comes here, Textual has not caught.
        app.failure = app.failure or error
    if app.failure is not None:
        print(f"ddptop: the dashboard failed; the run goes on. {report(app.failure)}", file=sys.stderr)
        return FAILED
    return app.return_code or 0


def report(error: Exception) -> str:
    """Write the traceback of an error to a file; return what failed and the file's name, in one line."""
    what = clean_line(traceback.format_exception_only(error)[-1], 400)
    try:
        descriptor, path = tempfile.mkstemp(prefix="ddptop-", suffix=".traceback")
        with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError as problem:
        return f"{what} (no traceback kept: {problem.strerror})"
    return f"{what} (traceback in {path})"
