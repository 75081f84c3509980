"""A verb that is carried out on another machine: its line there, its process here, and its beginning there.

What is written there is written here, and the exit code is the same.  On a terminal the verb there has it, too: keys
and Ctrl-C reach it.  Elsewhere it notices the end of its stdin, which ends with this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import BinaryIO, Final

from ddptop.agent.client.acting import actor
from ddptop.agent.client.host.program import VERSION
from ddptop.agent.text import clean_line

COMMAND_VARIABLE: Final = "DDPTOP_REMOTE"
"""Environment variable with the command that is ddptop on other machines."""
NAME_IT: Final = f"name it: --remote-command '~/venv/bin/ddptop', {COMMAND_VARIABLE}"
"""The advice where there is no such command."""
FROM_VARIABLE: Final = "DDPTOP_FROM"
"""Environment variable with the user and the way by which a verb comes from another machine: `ada@laptop/ssh`."""
HOST_VARIABLE: Final = "DDPTOP_HOST"
"""Environment variable with the name that this machine has for the one who has a verb carried out on it by ssh."""
BY_SSH: Final = "ssh"
BY_SRUN: Final = "srun"
FAILED: Final = 255
"""Exit code of ssh where the connection failed."""
OWN_FAILED: Final = 253
"""Exit code that stands for this one, where it is that of the verb."""
_PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h; see prctl(2)."""
_INHERITED: Final = ("COLORTERM", "NO_COLOR")
_LEAVE_SCREEN: Final = (
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?2048l\x1b[<u\x1b[?7h\x1b[?25h\x1b[0m"
    "\x1b[?1047l\x1b[999;1H\r\n"
)
"""Ends the modes that a dashboard has set in the terminal: to report mouse, focus, pastes, sizes and keys in its way,
to hide the cursor, and to show another screen.  Of these, 1047 alone does nothing where that was ended before."""


def has_terminal() -> bool:
    """Say whether a verb can be shown on a terminal, and somebody is there who can answer."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def marks(way: str) -> dict[str, str]:
    """Return the environment that a verb there gets from here: who asks for it, and what this terminal can show."""
    # In the order in which a C library looks at them; there, none of the others need to be as they are here.
    language = next(filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))), None)
    found = {FROM_VARIABLE: f"{actor.here()}/{way}"}
    found |= {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return found if language is None else {**found, "LC_CTYPE": language}


def line(command: str, verb: Sequence[str], given: dict[str, str], host: str, advice: str) -> list[str]:
    """Return the words that carry a verb out there.

    Where there is no such command, they write a line that says so and what to do, and end with 2. Where the verb ends
    with 2, because the ddptop there is another version with other verbs and options, they say that too.

    Args:
        command: what starts ddptop there, a piece of a command line of its shell.
        verb: the verb and its arguments.
        given: the environment that the verb gets besides.
        host: the other machine, as people read it.
        advice: what to do where there is no such command.
    """
    lexer = shlex.shlex(command, posix=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    # As the shell there sees them, with their quotes.
    words = list(lexer)
    first = next((word for word in words if word != "env" and "=" not in word), command)
    command = f"env {command}" if words and "=" in words[0] else command
    missing = shlex.quote(f"ddptop: {host}: no `{first}` there; {advice}")
    other = shlex.quote(f"; here is {VERSION}: one may know verbs and options that the other does not")
    script = "; ".join(
        [
            f"command -v {first} >/dev/null 2>&1 || {{ printf '%s\\n' {missing} >&2; exit 2; }}",
            # Ctrl-C is the verb's, whose exit code counts.
            "trap : INT",
            f'env {shlex.join(f"{name}={value}" for name, value in given.items())} {command} "$@"',
            "code=$?",
            f'[ $code = 2 ] && its=$({command} --version 2>/dev/null) && case $its in "ddptop {VERSION}") ;; '
            f'"ddptop "[0-9]*) printf \'%s%s\\n\' {shlex.quote(f"ddptop: {host} has ")}"$its" {other} >&2;; esac',
            f"[ $code = {FAILED} ] && exit {OWN_FAILED}",
            "exit $code",
        ]
    )
    return ["sh", "-c", script, "ddptop", *verb]


class Terminal:
    """The terminal of this process as it is before something is drawn on it from another machine."""

    def __init__(self) -> None:
        self._before = termios.tcgetattr(0) if has_terminal() else None

    @property
    def is_there(self) -> bool:
        """True where the verb there can have one."""
        return self._before is not None

    def restore(self) -> None:
        """Leave it as it was, where what is drawn there cannot do that any more."""
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
            print(end=_LEAVE_SCREEN, flush=True)


def wait(start: Sequence[str], terminal: Terminal, errors: BinaryIO | None = None) -> int:
    """Start a program of this machine that carries a verb out on another one; return its exit code.

    Args:
        start: its words.
        terminal: left as it was, where the program cannot see to that any more.
        errors: takes its stderr.
    """
    stdin = None if terminal.is_there else subprocess.PIPE
    with _ending_in_order(), subprocess.Popen(start, stdin=stdin, stderr=errors, preexec_fn=_end_with_us) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # The verb there ends by itself, and says what has become of it.
            if process.stdin is not None:
                process.stdin.close()
            code = process.wait()
            return code if 0 <= code < FAILED else 130
        except BaseException:
            process.terminate()
            process.wait()
            terminal.restore()
            raise
    if code < 0:
        terminal.restore()
    return code if code >= 0 else 128 - code


def _end_with_us() -> None:
    """Let the program end where this process is killed: it would go on to draw over the shell."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let the signals that end this process end the program, too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def begin() -> None:
    """Begin a verb that somebody on another machine has carried out here: it ends with its connection."""
    who, _, way = os.environ.pop(FROM_VARIABLE).rpartition("/")
    actor.asked_by = who, way
    actor.named = clean_line(os.environ.pop(HOST_VARIABLE, ""), 100)
    if not sys.stdin.isatty():
        threading.Thread(target=_interrupt_at_end, name="connection", daemon=True).start()


def _interrupt_at_end() -> None:
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGINT)
