"""The part of one log that is held: some thousands of lines, which can be moved through all of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptop.agent.client.logs.entries import Entries, Entry
from ddptop.agent.client.logs.lines import LogLine, read_line
from ddptop.agent.client.logs.logfile import STRETCH, LogFile, RawLine, Stretch
from ddptop.agent.client.logs.matching import ALL, Wanted

MOST_LINES: Final = 5000
_MOST_CHARACTERS: Final = 4 << 20
_SCANNED: Final = 4 * STRETCH
"""Bytes read at once in a search."""

Going = Callable[[int], bool]
"""Called with the offset that was reached; returns False where reading is to end."""


@dataclass(frozen=True)
class LogSource:
    """A log to be read."""

    path: str
    rank: int | None = None
    name: str = ""
    """The name of its writer, where that is no rank."""
    host: str | None = None
    missing: str = "not written yet"
    """The reason why there is no such file."""


class Excerpt:
    """Entries of one log that follow each other; of more than a number of lines, those at the other end go."""

    def __init__(self, source: LogSource, most_lines: int = MOST_LINES, stretch: int = STRETCH) -> None:
        self.source = source
        self.entries: list[Entry] = []
        """Those that are wanted, oldest first."""
        self.begin = self.end = 0
        """Offsets between which all that is wanted is held."""
        self.rest: LogLine | None = None
        """The beginning of the last line, where that has not ended."""
        self.at_end = False
        """True where what is held reaches to the end of the log, or did so before more was written."""
        self.read_all = False
        """True where the last read came to the end of the log."""
        self.error: str | None = None
        """Why the log cannot be read, one line."""
        self.left = 0
        """Lines in front that were held and are no longer, in all."""
        self._file = LogFile(Path(source.path))
        self._most_lines = most_lines
        self._most_added = max(1, most_lines // 4)
        """Lines added at once, so that what one has gone to stays held."""
        self._stretch = stretch
        self._begun = 0
        self._wanted = ALL
        self._entries = Entries(source.rank)
        self._last: Entry | None = None
        """The last entry of what was read last, wanted or not: it may go on."""

    @property
    def _held(self) -> int:
        return sum(len(entry.lines) for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of the file at the last read."""
        return self._file.size

    def open_end(self, wanted: Wanted = ALL, most: int = 4 * STRETCH, going: Going | None = None) -> None:
        """Hold the end of the log; where not all is wanted, reach back until that has filled it, or is all."""
        self._clear(wanted)
        self._try(lambda: self._open_end(most, going))
        self.at_end = True

    def open_at(self, offset: int, wanted: Wanted = ALL, going: Going | None = None) -> None:
        """Hold the lines around the beginning of a line; where not all is wanted, reach on to some that are."""
        self._clear(wanted)
        self._try(lambda: self._open_at(offset, going))

    def grow(self, now: float | None = None, *, trim: bool = True) -> bool:
        """Read on at the end, at most one stretch; say whether anything changed.

        Args:
            now: the time, where what is read was written since the call before.
            trim: let the first lines go where there are too many; otherwise nothing more is read then.
        """
        if not trim and self._held > 2 * self._most_lines:
            self.at_end = False
            return False
        error = self.error
        changed = self._try(lambda: self._grow(now, trim=trim))
        return bool(changed) or self.error != error

    def back(self, going: Going | None = None) -> bool:
        """Read before the beginning; of too many lines the last ones go. Say whether anything was added."""
        return bool(self._try(lambda: self._back(going)))

    def on(self, going: Going | None = None) -> bool:
        """Read after the end; of too many lines the first ones go. Say whether anything was added."""
        return bool(self._try(lambda: self._on(going)))

    def _try(self, read: Callable[[], bool | None]) -> bool | None:
        try:
            changed = read()
        except FileNotFoundError:
            self.error = self.source.missing
        except OSError as problem:
            self.error = problem.strerror or type(problem).__name__
        else:
            self.error = None
            return changed
        return None

    def _clear(self, wanted: Wanted) -> None:
        self.left += self._held
        self._wanted = wanted
        self.entries, self.rest, self._last = [], None, None
        self.begin = self.end = 0
        self.at_end = self.read_all = False
        self._entries = Entries(self.source.rank)

    def _open_end(self, most: int, going: Going | None) -> None:
        begin = end = self._file.end()
        self._begun = self._file.begun
        held = 0
        while begin and end - begin < most and held < self._most_lines:
            stretch = self._file.before(begin, self._stretch)
            lines = [] if self._wanted else stretch.lines[held - self._most_lines :]
            held += len(lines)
            begin = lines[0].begin if lines else stretch.begin
        self.begin = self.end = begin
        while self.end < end and self._grow(None, trim=True):
            pass
        while self._wanted and len(self.entries) < self._most_lines // 10 and self._back(going):
            pass

    def _open_at(self, offset: int, going: Going | None) -> None:
        self._file.end()
        self._begun = self._file.begun
        self.begin = self.end = offset
        self._on(going)
        self._back(going)

    def _on(self, going: Going | None) -> bool:
        before = self.left + self._held
        while not self.at_end and self.left + self._held == before:
            if not self._grow(None, trim=True, few=True) or (going is not None and not going(self.end)):
                break
        return self.left + self._held != before or self.at_end

    def _grow(self, now: float | None, *, trim: bool, few: bool = False) -> bool:
        stretch = self._file.after(self.end, self._stretch)
        if self._file.begun != self._begun:
            self._clear(self._wanted)
            self._begun, self.at_end, now = self._file.begun, True, None
            if stretch is None:
                return True
        if stretch is None:
            changed, self.at_end, self.read_all = not self.at_end, True, True
            return changed
        return self._append(stretch, now, trim=trim, few=few)

    def _append(self, stretch: Stretch, now: float | None, *, trim: bool, few: bool) -> bool:
        rest, self.rest = self.rest, None
        raws = stretch.lines if self._may_have(stretch) else []
        if few and len(raws) > self._most_added:
            del raws[self._most_added :]
            stretch = Stretch(stretch.begin, raws[-1].end)
        lines = [self._read(raw) for raw in raws]
        begun = self._entries.add(lines, now)
        self.entries += [entry for entry in begun if self._wanted.takes(entry)]
        self._last = begun[-1] if begun else self._last if lines else None
        if stretch.rest and not self._wanted:
            self.rest = self._read(RawLine(stretch.end, stretch.end + len(stretch.rest), stretch.rest))
        self.end = stretch.end
        self.read_all = self.end + len(stretch.rest) >= self.size
        self.at_end = self.at_end or self.read_all
        if trim:
            self._trim_front()
        return stretch.begin != stretch.end or self.rest != rest

    def _may_have(self, stretch: Stretch) -> bool:
        if not self._wanted or (self._last is not None and self._wanted.takes(self._last)):
            return True
        return self._wanted.may_be_in(stretch.data)

    def _back(self, going: Going | None) -> bool:
        while self.begin:
            stretch = self._file.before(self.begin, self._stretch)
            if stretch.begin == self.begin:
                return False
            self.begin = stretch.begin
            if self._prepend(stretch):
                return True
            if going is not None and not going(self.begin):
                return False
        return False

    def _prepend(self, stretch: Stretch) -> bool:
        """Add what is wanted of a stretch, as far as it is not too much at once; say whether there was any."""
        if not self._wanted:
            raws = stretch.lines[-self._most_added :]
            self.begin = raws[0].begin
            self._prepend_all([self._read(raw) for raw in raws])
            return True
        found = list(self._in(stretch, self._wanted))[-self._most_added :]
        if len(found) == self._most_added:
            self.begin = found[0].begin
        # What seemed to begin in the stretch after it may belong to the last of these.
        own = {line.begin for line in found[-1].lines} if found else set()
        self.entries = found + [entry for entry in self.entries if entry.begin not in own]
        while len(self.entries) > self._most_lines:
            last = self.entries.pop()
            self.end, self.at_end = last.begin, False
        return bool(found)

    def _in(self, stretch: Stretch, wanted: Wanted) -> Iterator[Entry]:
        """Yield what is wanted of a stretch, whole also where it goes on after the stretch."""
        if not wanted.may_be_in(stretch.data):
            return
        entries = Entries(self.source.rank)
        begun = entries.add([self._read(raw) for raw in stretch.lines])
        if begun and wanted.takes(begun[-1]) and (following := self._file.after(stretch.end, self._stretch)):
            entries.add([self._read(raw) for raw in following.lines])
        yield from (entry for entry in begun if wanted.takes(entry))

    def _prepend_all(self, added: list[LogLine]) -> None:
        # An entry may begin before what was held: all are put together anew.  What was seen to be written stays so.
        seen = {entry.begin: entry.order[1] for entry in self.entries if entry.order[0]}
        lines = sorted((line for entry in self.entries for line in entry.lines), key=lambda line: line.begin)
        lines[:0] = added
        if len(lines) > self._most_lines:
            self.end = lines[self._most_lines].begin
            del lines[self._most_lines :]
            self.at_end, self.rest = False, None
        self._entries, self.entries = Entries(self.source.rank), []
        for line in lines:
            self.entries += self._entries.add((line,), seen.get(line.begin))

    def _trim_front(self) -> None:
        before = held = self._held
        characters = sum(entry.size for entry in self.entries)
        gone = 0
        while gone < len(self.entries) - 1 and (held > self._most_lines or characters > _MOST_CHARACTERS):
            held -= len(self.entries[gone].lines)
            characters -= self.entries[gone].size
            gone += 1
        if gone:
            self.left += before - held
            del self.entries[:gone]
            self.begin = self.entries[0].begin

    def find(self, wanted: Wanted, offset: int, *, backwards: bool, going: Going) -> int | None:
        """Return where the next wanted entry begins after an offset, or before it; None where there is none.

        Raises:
            OSError: the log cannot be read.
        """
        while going(offset):
            stretch = self._file.before(offset, _SCANNED) if backwards else self._file.after(offset, _SCANNED)
            if stretch is None or stretch.begin == stretch.end:
                return None
            found = [entry.begin for entry in self._in(stretch, wanted)]
            if found:
                return found[-1] if backwards else found[0]
            offset = stretch.begin if backwards else stretch.end
        return None

    def _read(self, raw: RawLine) -> LogLine:
        return read_line(raw, self._file.changed_at)
