"""The output of a launched rank: it goes to the rank's log, as long as the disk has room.

Without ddptop the script would print to the output of its launcher. The log must not be a reason for the script to
fail: where the file cannot be opened, the output stays as it was, and bytes that do not fit on a full disk are
counted instead of raising an error. The streams stay what scripts
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

from ddptop.agent.rank.faults import describe
from ddptop.agent.run.files import marks
from ddptop.agent.run.script import last_output

_OURS: Final = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "ESTALE", "ENODEV", "ENXIO", "ENOMEM", "ENOENT")
    if hasattr(errno, name)
)
"""Errors of a write that concern the file behind the descriptor, which is ours, and not the script."""


class Output:
    """The output of this process, and the bytes of it that are lost."""

    def __init__(self) -> None:
        self.log: str | None = None
        """The log file; None where the output was not redirected."""
        self.begin = 0
        """Bytes that the log had before: it goes on where the processes before this one have ended."""
        self.problem: str | None = None
        """Why redirecting failed, one line; None where it succeeded, or was not tried."""
        self.lost = 0
        """Bytes that could not be written."""
        self.reason = ""
        """The error of the last such write."""
        self._earlier: list[TextIO] = []
        """The former streams, which stay open for objects of the script that still write to them."""

    def redirect(self, path: Path) -> None:
        """Send stdout and stderr to the end of this file, in the order written; leave them where that fails."""
        try:
            # Where the script was started without stdout, `os.open` returns the number of stdout.
            opened = marks.append(path)
            try:
                descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
            finally:
                os.close(opened)
            try:
                flush()
                self.begin = os.fstat(descriptor).st_size
                self._replace(descriptor)
            finally:
                os.close(descriptor)
        except Exception as problem:  # the training goes on, whatever the error is
            why = problem.strerror if isinstance(problem, OSError) and problem.strerror else repr(problem)
            self.problem = f"output goes to the launcher's log: cannot write {path} ({why})"
        else:
            self.log = str(path)
            for name in ("stdout", "stderr"):
                # Whatever fails here, the stream works as it is.
                with contextlib.suppress(Exception):
                    self._soften(name)

    def explain(self, exit_code: int | None, error: str | None) -> str | None:
        """Return the text of an end; that of `sys.exit(2)`, which names no reason, gets what the script has printed.

        Raises:
            Exception: the log cannot be read.
        """
        if self.log is None or not exit_code or error != f"SystemExit: {exit_code}":
            return error
        return last_output.explain_exit(error, last_output.in_log(self.log, self.begin))

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
        # A stream that the script has replaced is left alone.
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
        fresh.mode = "w"  # type: ignore[misc]  # typeshed has it read-only, as the interpreter's own streams have not
        self._earlier.append(stream)
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)


class _Lossy(io.FileIO):
    """A descriptor whose writes count the bytes that the file has no room for, and succeed."""

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
            # On a disk that is nearly full a write is partial, which a text stream without a buffer ignores.
            while written < len(view):
                size = super().write(view[written:])
                if size is None:
                    return written
                written += size
        except OSError as error:
            # The script may use this number for a file of its own, whose errors it must get.
            if error.errno not in _OURS or _file_of(self.fileno()) != self._file:
                raise
            size = len(view) - written
            self._unmarked += size
            self._output.lost += size
            self._output.reason = error.strerror or type(error).__name__
        return len(view)

    def _mark(self) -> None:
        """Write a line on the lost bytes into the file, before the next output."""
        super().write(f"\n[ddptop: {self._unmarked:,} bytes lost here: {self._output.reason}]\n".encode())
        self._unmarked = 0


def say(line: str) -> None:
    """Print one line to stderr, past the buffer; an `Exception` is ignored."""
    with contextlib.suppress(Exception):  # stderr may be closed, or any object of the script
        if sys.stderr is not None:
            sys.stderr.flush()
            os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="replace"))


def say_unobserved(why: object) -> None:
    """Say that this rank trains without the agent, and why."""
    reason = describe(why) if isinstance(why, BaseException) else why
    say(f"ddptop: no agent in this rank ({reason}); the training goes on without")


def flush() -> None:
    """Flush the standard streams; a failure is ignored here, and recurs at the end of the interpreter."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # may be any object of the script
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
