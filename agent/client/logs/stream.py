"""All of a log from its beginning, then what is added to it. Memory is bounded, however long the log is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from ddptop.agent.client.logs.entries import Entries, Entry
from ddptop.agent.client.logs.excerpt import LogSource
from ddptop.agent.client.logs.lines import LogLine, read_line, read_text
from ddptop.agent.client.logs.logfile import STRETCH, LogFile, RawLine

HOLD_S: Final = 0.3
"""Seconds for which a new entry waits for lines that belong to it, and for the same entry of other ranks."""
_ALL_BYTES: Final = 4 << 20
"""Bytes read at once of all logs together."""
_LEAST: Final = 4096
_OPEN: Final = 8
"""Last entries that wait for further lines: several ranks may write to one log."""


class LogStream:
    """One log, read once from its beginning to its end, either by lines or by entries. What it raises are OSErrors."""

    def __init__(self, source: LogSource, stretch: int = STRETCH) -> None:
        """Prepare to read so many bytes at once; a longer line comes in pieces."""
        self.source = source
        self._file = LogFile(Path(source.path))
        self._stretch = stretch
        self._begun = 0
        self._at = 0
        self._rest = b""
        self._entries = Entries(source.rank)
        self._waiting: list[Entry] = []

    def lines(self) -> Iterator[str]:
        """Yield the lines that have ended since the last call, clean, in the order written.

        Raises:
            OSError: it cannot be read although a part of it was.
        """
        for raw in self._raw():
            yield read_text(raw, 2 * self._stretch)[0]

    def _raw(self) -> Iterator[RawLine]:
        """Yield the lines that have ended since the last call."""
        while True:
            try:
                stretch = self._file.after(self._at, self._stretch)
            except FileNotFoundError:
                # It is not written yet, or was removed with its run.
                return
            except OSError:
                # Half a log is not shown as a whole one.
                if self._file.begun:
                    raise
                return
            if stretch is None:
                return
            if self._begun != self._file.begun:
                self._begun, self._entries = self._file.begun, Entries(self.source.rank)
            self._at, self._rest = stretch.end, stretch.rest
            if stretch.begin == stretch.end:
                return
            yield from stretch.lines

    def unended(self) -> list[LogLine]:
        """Return what is written of the last line, once."""
        rest, self._rest = self._rest, b""
        return [self._read(RawLine(self._at, self._at + len(rest), rest))] if rest else []

    def history(self) -> Iterator[Entry]:
        """Yield the entries that are there by now."""
        last: list[Entry] = []
        # One by one: of a thousand logs the entries of all stretches together would take much memory.
        for raw in self._raw():
            last += self._entries.add((self._read(raw),))
            if len(last) > _OPEN:
                yield last.pop(0)
        self._entries.close(last)
        yield from last

    def fresh(self, seen: float) -> list[Entry]:
        """Return the entries that were added, each `HOLD_S` after it was seen; `seen` is the time now."""
        for raw in self._raw():
            self._waiting += self._entries.add((self._read(raw),), seen)
        # An entry of a time to come was seen before the clock was set back.
        ready = list(takewhile(lambda entry: not 0 <= seen - entry.order[1] < HOLD_S, self._waiting))
        del self._waiting[: len(ready)]
        self._entries.close(ready)
        return ready

    def last(self) -> list[Entry]:
        """Return what is left once nothing is written any more, a line that has not ended included."""
        ready, self._waiting = self._waiting, []
        return ready + self._entries.add(self.unended())

    def _read(self, raw: RawLine) -> LogLine:
        return read_line(raw, self._file.changed_at, 2 * self._stretch)


def streams(sources: Sequence[LogSource], before: Iterable[LogStream] = ()) -> list[LogStream]:
    """Return logs to be read together; of those that were read `before`, the reading goes on."""
    stretch = max(_LEAST, min(STRETCH, _ALL_BYTES // max(1, len(sources))))
    known = {log.source.path: log for log in before}
    made = [known.get(source.path) or LogStream(source, stretch) for source in sources]
    for log, source in zip(made, sources, strict=True):
        log.source = source
    return made
