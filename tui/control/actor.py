"""Who acts on a run, for its event list."""

from __future__ import annotations

import getpass
import os

from ddptop.agent.text import clean_line


def who(place: str) -> str:
    """Say who acts, for the run's event list: from the `dashboard` or the `shell`, which user, on which terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    try:
        terminal = os.ttyname(0).removeprefix("/dev/")
    except OSError:
        terminal = "no terminal"
    return clean_line(f"{place} of {user} on {terminal}", 100)
