"""Who acts on a run, for its event list."""

from __future__ import annotations

import getpass
import os
import socket

from ddptop.agent.text import clean_line

asked_by: tuple[str, str] | None = None
"""Who has had this process do something from another machine, `ada@laptop`, and the way; None for a user here."""

named: str = ""
"""Name of this machine for a user on another one; empty for a user here."""


def who(place: str) -> str:
    """Say who acts, for the run's event list: which user, in the `dashboard` or the `shell`, on which terminal.

    `ada (dashboard, pts/3)`; of a script or a service: `ada (non-interactive shell)`.
    """
    if asked_by is not None:
        asker, way = asked_by
        return f"{clean_line(asker, 64)} ({place}, {clean_line(way, 16)})"
    return f"{user()} ({_where(place)})"


def reached(run: str) -> str:
    """Return the run as the user names it: `node1:resnet-7f` where he has this process run by ssh."""
    return f"{named}:{run}" if named else run


def in_run(actor: str, several: bool) -> str:
    """Return the actor as a run's events name it: with the host, `ada@node2 (shell, pts/3)`, of a run on several."""
    name, space, where = actor.partition(" (")
    if not several or not space or "@" in name or asked_by is not None:
        return actor
    return f"{clean_line(f'{name}@{_machine()}', 64)} ({where}"


def here() -> str:
    """Return the user and the machine, as the other machine is told: `ada@laptop`."""
    return clean_line(f"{user()}@{_machine()}", 64)


def _machine() -> str:
    return socket.gethostname().partition(".")[0]


def user() -> str:
    """Return the name of the user."""
    try:
        return clean_line(getpass.getuser(), 64)
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _where(place: str) -> str:
    try:
        return clean_line(f"{place}, {os.ttyname(0).removeprefix('/dev/')}", 32)
    except OSError:
        return "non-interactive shell" if place == "shell" else place
