"""The entries of a log: a line, or the lines of a traceback, a warning or a message of several lines.

Several ranks may write to one log, line by line. Where torch or torchrun puts the rank before each line, the lines of
each are put together again; lines that name no rank cannot be kept apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent.client.logs.lines import Level, LogLine

_MOST_LINES: Final = 400
"""Lines of an entry; what follows is an entry of its own, of the same level."""
_MOST_CHARACTERS: Final = 1 << 20
_MOST_OPEN: Final = 1024
"""Ranks in one log whose last entries may still go on."""
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ |Fatal Python error: |Extension modules: ")
"""Lines of `faulthandler`."""
_CHAIN: Final = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_NATIVE: Final = re.compile(r"Exception raised from |frame #\d+: ")
"""The lines that torch adds to a message from C++."""


@dataclass(slots=True, eq=False)
class Entry:
    """The lines that one rank printed at once."""

    rank: int | None
    """The rank that the lines name, else that of the log; None where neither is known."""
    lines: list[LogLine]
    level: Level | None = None
    at: float | None = None
    """Its time, in seconds since the epoch: that in the line, else the moment at which it was seen; None where neither
    is known."""
    order: tuple[int, float] = (0, 0.0)
    """Place in time: that of the entry before where it has no time of its own."""
    size: int = field(default=0, repr=False)

    @property
    def begin(self) -> int:
        """Offset in its log."""
        return self.lines[0].begin

    @property
    def end(self) -> int:
        """Offset after its last line."""
        return self.lines[-1].end

    def has(self, offset: int) -> bool:
        """Say whether a line of it begins at an offset."""
        return self.begin <= offset < self.end and any(line.begin == offset for line in self.lines)

    @property
    def said(self) -> tuple[str, ...]:
        """Its lines without rank, time and process: what is the same where several ranks print the same."""
        return tuple(line.said for line in self.lines)


UNKNOWN: Final = (0, float("-inf"))
"""The place in time of what stands before the first known time."""


class _Open:
    """An entry that may go on."""

    __slots__ = ("entry", "given", "state")

    def __init__(self, entry: Entry, state: str) -> None:
        self.entry = entry
        self.state = state
        self.given = False
        """It was passed on: what belongs to it becomes an entry of its own."""


class Entries:
    """Puts the lines of one log together, in the order in which entries begin."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._open: dict[int | None, _Open] = {}
        self._order = UNKNOWN

    def add(self, lines: Iterable[LogLine], seen: float | None = None) -> list[Entry]:
        """Return the entries that begin with these lines; others go on with entries that were returned before.

        Args:
            lines: lines in the order written.
            seen: the moment at which they were seen to be written, in seconds since the epoch; None where they were
                there before.
        """
        begun = []
        for line in lines:
            entry = self._take(line, seen)
            if entry is not None:
                begun.append(entry)
        return begun

    def close(self, passed: Iterable[Entry]) -> None:
        """Let these entries not change any more: lines that belong to one of them begin another, of the same level."""
        numbers = {id(entry) for entry in passed}
        for each in self._open.values():
            each.given = each.given or id(each.entry) in numbers

    def _take(self, line: LogLine, seen: float | None) -> Entry | None:
        before = self._open.get(line.rank)
        own = line.own
        # A message with a time that another thread puts into a traceback is no part of it.
        apart = before is not None and before.state == "frames" and line.at is not None
        state = None if before is None or apart else _goes_on(before, line, own)
        if before is not None and state is not None:
            before.state = state
            return self._go_on(before, line)
        rank = self._rank if line.rank is None else line.rank
        entry = Entry(rank, [line], line.level, line.at if line.at is not None else seen, self._placed(line, seen))
        entry.size = len(line.text)
        if not apart:
            if len(self._open) >= _MOST_OPEN:
                self._open.clear()
            self._open[line.rank] = _Open(entry, _begins(own))
        return entry

    def _go_on(self, before: _Open, line: LogLine) -> Entry | None:
        entry = before.entry
        begun = before.given or len(entry.lines) >= _MOST_LINES or entry.size >= _MOST_CHARACTERS
        if begun:
            entry = before.entry = Entry(entry.rank, [], entry.level, entry.at, self._order)
            before.given = False
        entry.lines.append(line)
        entry.size += len(line.text)
        if line.level is not None:
            entry.level = max(line.level, entry.level or line.level)
        return entry if begun else None

    def _placed(self, line: LogLine, seen: float | None) -> tuple[int, float]:
        """Return the place in time of an entry that begins with a line."""
        if seen is not None:
            # The clocks of ranks may be set otherwise than that of the reader.
            self._order = 1, seen
        elif line.at is not None and not self._order[0]:
            self._order = 0, line.at
        return self._order


def _begins(own: str) -> str:
    """Return the state of an entry after its first line."""
    if _TRACEBACK.match(own):
        return "frames"
    return "threads" if _THREAD.match(own) else "message"


def _goes_on(before: _Open, line: LogLine, own: str) -> str | None:
    """Return the state of an entry once it has gone on with a line; None where the line begins another."""
    indented, entry = own[:1] == " ", before.entry
    match before.state:
        case "frames":
            # Down to the first line at the edge, which is the exception.
            return "frames" if indented or not own else "raised"
        case "threads":
            return "threads" if indented or not own or _THREAD.match(own) else None
        case "chained":
            return "frames" if _TRACEBACK.match(own) else None if own else "chained"
        case "raised" if _CHAIN.match(own):
            return "chained"
        case "raised" if indented or not own or _NATIVE.match(own):
            return "raised"
    # Of plain output nothing says that an indented line belongs to the one above.
    if line.at is not None or (entry.level is None and entry.lines[0].at is None):
        return None
    if indented or (entry.level is Level.ERROR and _NATIVE.match(own)):
        return before.state
    # `logging.exception` adds a traceback to its message.
    return "frames" if entry.level is Level.ERROR and entry.lines[0].at is not None and _TRACEBACK.match(own) else None
