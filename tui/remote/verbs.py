"""Verbs that are carried out on the other machine, by the ddptop there: those that print what is there, or act on it.

What is written there is written here, and the exit code is the same.  Where all of it is on a terminal, the verb there
has one too, and Ctrl-C reaches it; elsewhere the verb notices the end of its stdin, which ends with this process.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final

from ddptop.tui.control import actor
from ddptop.tui.remote import ssh
from ddptop.tui.remote.target import Target
from ddptop.tui.remote.unreachable import Unreachable

FROM_VARIABLE: Final = "DDPTOP_FROM"
"""Environment variable that tells a verb who has it carried out from another machine, and by what: `ada@laptop/ssh`."""
BY_SSH: Final = "ssh"
_INHERITED: Final = ("COLORTERM", "NO_COLOR")
"""Variables of the terminal that ssh does not take along."""


def carry_out(target: Target, verb: Sequence[str], command: str | None = None) -> int:
    """Carry a verb out there; return its exit code.

    Args:
        target: the machine.
        verb: its name and arguments, as they are to stand there.
        command: what starts ddptop there, where it is not `ddptop`.

    Raises:
        Unreachable: the machine cannot be reached, or has no ddptop.
    """
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    command = ssh.remote(command)
    given = {FROM_VARIABLE: f"{actor.here()}/{BY_SSH}"} | {
        name: os.environ[name] for name in _INHERITED if name in os.environ
    }
    words = ssh.line(f"env {shlex.join(f'{name}={value}' for name, value in given.items())} {command}", list(verb))
    program, folder = ssh.program(), ssh.Folder()
    log = folder.path / "log"
    start = [
        program, "-t" if terminal else "-T", "-E", str(log), "-S", "none", *ssh.options(terminal=ssh.has_terminal()),
        "--", target.address, words,
    ]  # fmt: skip
    try:
        with _ending_in_order(), subprocess.Popen(start, stdin=None if terminal else subprocess.PIPE) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                # The verb there ends by itself, and says what has become of it.
                if process.stdin is not None:
                    process.stdin.close()
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
        if code == ssh.FAILED and (why := ssh.explained(target, log)):
            raise Unreachable(why)
        if code == ssh.NO_COMMAND:
            raise Unreachable(ssh.missing_command(target, command))
        return code
    finally:
        folder.close()


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let the signals that end this process end the connection, too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def begin_here() -> None:
    """Begin a verb that somebody on another machine has carried out here: it ends with its connection."""
    who, _, way = os.environ.pop(FROM_VARIABLE).rpartition("/")
    actor.asked_by = who, way
    # A step of srun gets signals, and its stdin may end before it.
    if way == BY_SSH and not sys.stdin.isatty():
        threading.Thread(target=_interrupt_at_end, name="connection", daemon=True).start()


def _interrupt_at_end() -> None:
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGINT)
