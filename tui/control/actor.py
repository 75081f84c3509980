"""Who acts on a run, for its event list."""

from __future__ import annotations

import getpass
import os

from ddptop.agent.text import clean_line


def who(place: str) -> str:
    """Say who acts, for the run's event list: which user, in the `dashboard` or the `shell`, on which terminal.

    `ada (dashboard, pts/3)`; of a script or a service: `ada (non-interactive shell)`.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    try:
        at = f"{place}, {os.ttyname(0).removeprefix('/dev/')}"
    except OSError:
        at = "non-interactive shell" if place == "shell" else place
    return f"{clean_line(user, 64)} ({clean_line(at, 32)})"
