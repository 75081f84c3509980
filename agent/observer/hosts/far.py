"""The observers of the other hosts of a run, as commands know them: who they are, and a question to one of them.

The observer on the host of rank 0 is the *head*, every other one a *branch*.  The relay has the connections, and
implements `FarHosts`; a run on one host has `Nobody`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ddptop.agent import wire

Then = Callable[[wire.Reply | None], None]
"""Takes the reply of another observer, on any thread; None where none came in time."""

HEAD: Final = ""
"""Stands for the host of the head in `FarHosts.ask`."""
LINK: Final = b"link:"
"""Beginning of the sender of a command that has come from another observer."""
EACH_HOST: Final = LINK + b"00:each"
"""Sender of a kill that every host is told by itself, as by its scheduler: this one does not wait for the head."""

LINKED: Final = "linked"
SILENT: Final = "silent"
GONE: Final = "gone"
"""States of a host; see `wire.HostState`."""


class FarHosts(Protocol):
    """The observers of the other hosts. Thread-safe."""

    @property
    def role(self) -> str:
        """`head`, `branch` where this host is linked to the head, or `alone`: one host, or no link now."""
        ...

    def hosts(self) -> tuple[wire.HostState, ...]:
        """Return what is known of the other hosts."""
        ...

    def ask(self, host: str, command: wire.Command, timeout_s: float, then: Then) -> None:
        """Send a command to the observer of a host, `HEAD` for that of the head; `then` is called once."""
        ...


class Nobody:
    """There is no other host."""

    role: Final = "alone"

    def hosts(self) -> tuple[wire.HostState, ...]:
        """Return none."""
        return ()

    def ask(self, host: str, command: wire.Command, timeout_s: float, then: Then) -> None:
        """Answer that nobody answers."""
        then(None)


def is_from_elsewhere(sender: bytes) -> bool:
    """Say whether a command has come from another observer."""
    return sender.startswith(LINK)
