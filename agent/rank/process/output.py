"""Where the output of a launched rank goes: its log, as long as there is room for it.

Without us the script would print to where its launcher says. That its output goes to a file of
ours must never be why it fails: where the file cannot be opened the output stays where it went
before, and what a full disk does not take is counted, not raised. The streams stay what scripts
expect of them: text wrappers with a buffer, a descriptor and a line mode.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import sys
from pathlib import Path
from typing import Any, Final, TextIO

_OURS: Final = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "ESTALE", "ENODEV", "ENXIO", "ENOMEM", "ENOENT")
    if hasattr(errno, name)
)
"""Errors of a write that come of the file behind the descriptor, and so of us."""


class Output:
    """The output of this process, and what has become of it."""

    def __init__(self) -> None:
        self.log: str | None = None
        """The file that it goes to; None where it goes to where it went before."""
        self.problem: str | None = None
        """Why it does not go to a file, one line; None where it does, or was never meant to."""
        self.lost = 0
        """Bytes that the file did not take."""
        self.reason = ""
        """Why it did not."""
        self._earlier: list[TextIO] = []
        """The streams before ours: what holds on to one of them can still write."""

    def redirect(self, path: Path) -> None:
        """Send stdout and stderr to the end of this file, in the order written; else leave them as they are."""
        try:
            # Where the script was started without stdout the first free number would be that of stdout.
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
            finally:
                os.close(opened)
            try:
                flush()
                self._replace(descriptor)
            finally:
                os.close(descriptor)
        except Exception as problem:
            why = problem.strerror if isinstance(problem, OSError) and problem.strerror else repr(problem)
            self.problem = f"output goes to the launcher's log: cannot write {path} ({why})"
        else:
            self.log = str(path)
            for name in ("stdout", "stderr"):
                # A stream that the script has put there itself is the script's.
                with contextlib.suppress(Exception):
                    self._soften(name)

    def _replace(self, descriptor: int) -> None:
        saved = [_saved(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(descriptor, number)
        except OSError:
            for number, copy in zip((1, 2), saved, strict=True):
                if copy is not None:
                    os.dup2(copy, number)
            raise
        finally:
            for copy in saved:
                if copy is not None:
                    os.close(copy)

    def _soften(self, name: str) -> None:
        """Replace a standard stream by one like it whose writes do not raise where the file is full."""
        stream: Any = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper or stream is not getattr(sys, f"__{name}__"):
            return
        raw = _Lossy(stream.fileno(), self)
        raw.name = f"<{name}>"
        unbuffered = isinstance(stream.buffer, io.RawIOBase)
        fresh = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            newline="\n",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        fresh.mode = "w"  # type: ignore[misc]
        self._earlier.append(stream)
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)


class _Lossy(io.FileIO):
    """A descriptor whose writes count what the file behind it does not take, and then go on."""

    def __init__(self, descriptor: int, output: Output) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._output = output
        self._file = _file_of(descriptor)
        self._unmarked = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        try:
            if self._unmarked:
                self._mark()
            # A disk that is nearly full takes a part, and a text stream without a buffer does not look at how much.
            while written < len(view):
                taken = super().write(view[written:])
                if taken is None:
                    return written
                written += taken
        except OSError as error:
            # The script may have put something of its own under this number; its errors are the script's.
            if error.errno not in _OURS or _file_of(self.fileno()) != self._file:
                raise
            size = len(view) - written
            self._unmarked += size
            self._output.lost += size
            self._output.reason = error.strerror or type(error).__name__
        return len(view)

    def _mark(self) -> None:
        """Say in the file that something is missing here, before what comes next."""
        super().write(f"\n[ddptop: {self._unmarked:,} bytes lost here: {self._output.reason}]\n".encode())
        self._unmarked = 0


def say(line: str) -> None:
    """Print one line to stderr; never fails, and leaves nothing in a buffer for the end of the script to trip over."""
    with contextlib.suppress(Exception):
        if sys.stderr is not None:
            sys.stderr.flush()
            os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="replace"))


def flush() -> None:
    """Write out what the script has printed; what cannot be written fails where the interpreter ends, as ever."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _saved(number: int) -> int | None:
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        if error.errno == errno.EBADF:
            return None
        raise


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
