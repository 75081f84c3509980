"""The log of a rank beside other views: the end of its file, read as it grows."""

from __future__ import annotations

from typing import Any, Final

from rich.segment import Segment

from ddptop.agent.client.logs.excerpt import Excerpt, LogSource
from ddptop.agent.client.logs.lines import Level
from ddptop.agent.wire.frames import RankFrame
from ddptop.tui.drawing.lines import Row, ScrolledLines
from ddptop.tui.drawing.theme import Ink

_CHUNK: Final = 128 * 1024
"""Bytes taken in one call, so that reading never holds up the screen."""
_LINES: Final = 2000

Told = tuple[str, Level | None]
"""A line, and the level of what it belongs to."""


def hue_of(level: Level | None) -> str:
    """Return the hue of a line of that level."""
    if level is None or level is Level.INFO:
        return "value"
    return "label" if level is Level.DEBUG else f"level-{level.name.lower()}"


def absence(rank: RankFrame) -> str:
    """Return why a rank's log is not to be seen here; empty where it is."""
    if rank.log is not None:
        return ""
    if rank.far and not rank.unkept:
        return f"the log of rank {rank.rank} is on {rank.host or 'another host'}: `ddptop logs` there shows it"
    if not rank.unkept:
        return "nothing has come of this rank yet"
    return (
        f"it writes to the terminal that started it{f' on {rank.host}' if rank.far and rank.host else ''}: look there"
    )


def missing(far: bool, host: str | None) -> str:
    """Return what it means that there is no file of a log, or of the copy of one on another host."""
    return f"not copied from {host or 'its host'} yet" if far else "not written yet"


class LogView(ScrolledLines[Told]):
    """The log of one rank at a time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[int, str] | None = None
        """The rank, and why it has no log here."""
        self.excerpt: Excerpt | None = None
        """The part of the log that is held; None where the rank has no log."""
        self._left = 0

    def row_of(self, item: Told, ink: Ink) -> Row:
        return [Segment(item[0], ink[hue_of(item[1])])]

    def show(self, rank: RankFrame, *, still: bool = False) -> None:
        """Follow the log of this rank; where the view stands `still`, with what there is when it is opened."""
        path = None if self.excerpt is None else self.excerpt.source.path
        changed = (rank.rank, absence(rank)) != self._shown or rank.log != path
        if changed:
            self._shown = rank.rank, absence(rank)
            self.excerpt = None
            if rank.log is not None:
                source = LogSource(rank.log, rank.rank, missing=missing(rank.far, rank.host))
                self.excerpt = Excerpt(source, _LINES, _CHUNK)
            self._left = 0
            self.following = True
            self.border_title = f"log of rank {rank.rank}"
        excerpt = self.excerpt
        if excerpt is None:
            if changed:
                self.show_items((), empty=absence(rank))
            return
        if changed:
            excerpt.open_end(most=_CHUNK)
        elif not still:
            changed = excerpt.grow()
        if changed:
            lines = [(line.text, entry.level) for entry in excerpt.entries for line in entry.lines]
            if excerpt.rest is not None:
                lines.append((excerpt.rest.text, excerpt.rest.level))
            dropped, self._left = excerpt.left - self._left, excerpt.left
            empty = f"no log: {excerpt.error}" if excerpt.error else "this rank has printed nothing yet"
            self.show_items(lines, 0, dropped, empty)
