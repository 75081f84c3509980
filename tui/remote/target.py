"""`HOST:RUN`, as a person writes it. A run's name has no colon, so that this is never one of this machine."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ddptop.agent.text import Complaint

_USER: Final = r"(?:[A-Za-z0-9_][A-Za-z0-9._+\\-]*@)?"
_HOST: Final = re.compile(rf"{_USER}(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\])")
"""A host or an alias of ssh's configuration: never an option of ssh, and nothing with a meaning to a shell."""
_RUN: Final = re.compile(r"(?:[^\W_][\w.-]*)?")


class Unreachable(Complaint):
    """Why no verb can be carried out on another machine; one line with the machine and what to do."""

    def __init__(self, text: str, *, code: int = 2) -> None:
        """Say it; `code` is the exit code."""
        super().__init__(text)
        self.code = code


class Target(NamedTuple):
    """A run on another machine."""

    host: str
    """The name as it was written, and as people read it."""
    run: str
    """Its name or a part of it; empty for the only live one."""

    @property
    def address(self) -> str:
        """The host as ssh takes it: an IPv6 address without its brackets."""
        return self.host.replace("[", "").replace("]", "")


def parse(text: str | None) -> Target | None:
    """Return the run on another machine that a text names; None where it names one of this machine.

    Raises:
        Unreachable: it is neither.
    """
    if text is None or ":" not in text:
        return None
    host, _, run = text.rpartition(":")
    if not _HOST.fullmatch(host):
        why = "put an IPv6 address in brackets" if ":" in host and "[" not in host else "a run elsewhere is HOST:RUN"
        raise Unreachable(f"{text!r}: {host!r} is no host; {why}, as in ada@node1:resnet-7f")
    if not _RUN.fullmatch(run):
        raise Unreachable(f"{text!r}: {run!r} is no name of a run; `ddptop ps {host}:` lists those of {host}")
    return Target(host, run)
