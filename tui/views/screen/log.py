"""The log of a rank: the end of its file, read as it grows."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Final

from rich.cells import cell_len
from rich.segment import Segment

from ddptop.agent.run.files.tail import Follower
from ddptop.agent.text import clean
from ddptop.tui.drawing.lines import Roll, Row
from ddptop.tui.drawing.theme import Ink
from ddptop.tui.model.frame import RankFrame

_CHUNK: Final = 128 * 1024
"""Bytes taken in one call, so that reading never holds up the screen."""


class LogFile:
    """The last lines of a growing file, cleaned of everything a terminal would act on."""

    def __init__(self, path: str, most_lines: int = 5000, tail_bytes: int = 1024 * 1024) -> None:
        self.path = path
        self.lines: deque[str] = deque(maxlen=most_lines)
        self.dropped = 0
        """Lines that were read and are no longer held, in all."""
        self.widest = 0
        self.error: str | None = None
        self._file = Follower(Path(path), tail_bytes)
        self._begun = 0
        self._open_line = False
        """Whether the last line is one that has not ended."""

    def read(self) -> bool:
        """Take in what was appended since the last call, at most one chunk; say whether anything changed."""
        error = self.error
        try:
            ended = self._file.read(_CHUNK)
            self.error = None
        except FileNotFoundError:
            self.error = "not written yet"
        except OSError as problem:
            self.error = problem.strerror or type(problem).__name__
        if self.error is not None:
            return self.error != error
        if self._begun != self._file.begun:
            self._begun = self._file.begun
            self.dropped += len(self.lines)
            self.lines.clear()
            self._open_line = False
        if ended is None:
            return error is not None
        # The last piece may be half a line: it is shown, and taken off again when more comes.
        if self._open_line:
            self.lines.pop()
        for line in ended:
            self._add(line)
        self._open_line = bool(self._file.rest)
        if self._open_line:
            self._add(self._file.rest)
            self._file.rest = self._file.rest[-_CHUNK:]
        return True

    def _add(self, line: bytes) -> None:
        # A carriage return begins the line anew, as progress bars use it; the terminal would show the last.
        text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        if len(self.lines) == self.lines.maxlen:
            self.dropped += 1
        self.lines.append(clean(text))
        self.widest = max(self.widest, cell_len(self.lines[-1]))


def _log_row(line: str, ink: Ink) -> Row:
    return [Segment(line, ink["value"])]


class LogView(Roll[str]):
    """The log of one rank at a time."""

    def __init__(self, *, wide: bool = False, **options: Any) -> None:
        super().__init__(_log_row, **options)
        self._wide = wide
        self._rank: int | None = None
        self.file: LogFile | None = None
        self._seen = 0

    def show(self, rank: RankFrame, *, still: bool = False) -> None:
        """Follow the log of this rank; where the view stands `still`, with what there is when it is opened."""
        path = None if self.file is None else self.file.path
        changed = rank.rank != self._rank or rank.log != path
        if changed:
            self._rank = rank.rank
            self.file = None if rank.log is None else LogFile(rank.log)
            self._seen = 0
            self.following = True
            self.border_title = f"log of rank {rank.rank}"
        if self.file is None:
            if changed:
                self.show_items((), empty="it writes to the terminal that started the run: look there")
            return
        if changed or not still:
            changed = self.file.read() or changed
        if changed:
            dropped, self._seen = self.file.dropped - self._seen, self.file.dropped
            empty = f"no log: {self.file.error}" if self.file.error else "this rank has printed nothing yet"
            # A deque is slow to index in its middle, so the view gets a list.
            widest = self.file.widest if self._wide else 0
            self.show_items(list(self.file.lines), widest, dropped, empty)
