"""A thread that reads logs for a screen: it follows one, or the ends of many, goes back in one, and searches.

The screen asks, and gets a picture of the lines whenever they have changed.  A search through a large log goes on
until it has found something, or something else is asked for.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from rich.cells import cell_len

from ddptop.agent.client.logs.entries import Entry
from ddptop.agent.client.logs.excerpt import MOST_LINES, Excerpt, Going, LogSource
from ddptop.agent.client.logs.lines import Level
from ddptop.agent.client.logs.logfile import STRETCH
from ddptop.agent.client.logs.matching import ALL, Wanted
from ddptop.agent.client.logs.merging import Merged, merged, named

POLL_S: Final = 0.25
_STRETCHES: Final = 16
"""Stretches read of a log in one look, so that one that is written fast keeps nobody waiting."""
_FILLING: Final = 100
"""Entries that are held at least of a log that has them; of many logs together."""
_MANY_BYTES: Final = 8 << 20
"""Bytes read of the ends of all logs together."""
_PROGRESS_S: Final = 0.2
"""Seconds between two pictures of a search that goes on."""

Place = tuple[int, int]
"""A log by its number, and an offset in it."""


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line for the screen."""

    place: Place
    text: str
    label: str = ""
    """The ranks that have printed it; empty where a single log is read, and in lines that go on with one above."""
    host: str = ""
    level: Level | None = None
    at: float | None = None
    """Its time, in the first line of an entry."""
    first: bool = True
    found: bool = False
    """It belongs to what was found by the search."""


@dataclass(frozen=True)
class Picture:
    """The lines that there are to show."""

    lines: Sequence[ShownLine] = ()
    widest: int = 0
    """Cells of the widest text."""
    at_begin: bool = True
    """Nothing stands before the first line."""
    at_end: bool = True
    """Nothing stands after the last line."""
    size: int = 0
    """Bytes of the logs."""
    offset: int = 0
    """Where the first line stands in its log."""
    error: str = ""
    """Why there is nothing, one line."""
    found: Place | None = None
    note: str = ""
    """The outcome of the search last asked for."""
    progress: float | None = None
    """The part of the log that has been searched; None where no search goes on."""
    wanted: Wanted = ALL
    """The words that are searched for, and the level that lines must have."""


class LogReader:
    """Reads what a screen asks for. All but `run` is called by the screen, and returns at once."""

    def __init__(self, publish: Callable[[Picture], None]) -> None:
        """Prepare; `publish` is called by the thread of `run`."""
        self._publish = publish
        self._asked: queue.SimpleQueue[tuple[int, Callable[[], bool]]] = queue.SimpleQueue()
        self._turn = 0
        """How often something was asked for."""
        self._doing = 0
        """Number of what is being done: a search ends once something else was asked for after it."""
        self._closed = threading.Event()
        self._excerpts: list[Excerpt] = []
        self._level: Level | None = None
        self._text = ""
        self._found: Place | None = None
        self._note = ""
        self._following = True
        self._still = False
        self._progress: float | None = None
        self._told_at = 0.0

    # What a screen asks for

    def open(self, sources: Sequence[LogSource]) -> None:
        """Read these logs, from their ends."""
        self._ask(partial(self._open, tuple(sources)))

    def follow(self) -> None:
        """Go to the end, and follow it."""
        self._ask(self._follow)

    def begin(self) -> None:
        """Go to the first line."""
        self._ask(self._begin)

    def back(self) -> None:
        """Hold more lines before the first."""
        self._ask(self._back)

    def on(self) -> None:
        """Hold more lines after the last."""
        self._ask(self._on)

    def follow_end(self, *, following: bool, still: bool) -> None:
        """Say whether the end is in sight, so that the first lines may go; and whether nothing new is to be read."""
        self._following, self._still = following, still

    def want(self, level: Level | None) -> None:
        """Hold only what is of a level or above; None: all."""
        self._ask(partial(self._want, level))

    def search(self, text: str, place: Place | None, *, backwards: bool, here: bool = False) -> None:
        """Find a text in any case after a place or before it, and go there; an empty one ends the search.

        Args:
            text: what is looked for.
            place: where to begin; None: at the end.
            backwards: towards the beginning.
            here: whether what stands at the place itself counts.
        """
        self._ask(partial(self._search, text, place, backwards=backwards, here=here))

    def cancel(self) -> None:
        """End what goes on."""
        self._ask(lambda: False)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._ask(lambda: False)

    def _ask(self, work: Callable[[], bool]) -> None:
        self._turn += 1
        self._asked.put((self._turn, work))

    # The thread

    def run(self) -> None:
        """Read until `close` is called."""
        while not self._closed.is_set():
            work: Callable[[], bool] = self._poll
            with contextlib.suppress(queue.Empty):
                self._doing, work = self._asked.get(timeout=POLL_S)
            changed = work()
            changed, self._progress = changed or self._progress is not None, None
            if changed and not self._closed.is_set():
                self._tell()

    def _poll(self) -> bool:
        if self._still:
            return False
        changed = False
        for excerpt in self._excerpts:
            now = time.time() if excerpt.read_all else None
            error = excerpt.error
            # What comes after a part that is not held is read when it is scrolled to.
            for _ in range(_STRETCHES if excerpt.at_end else 0):
                if not excerpt.grow(now, trim=self._following):
                    break
                changed = True
            changed = changed or excerpt.error != error
        return changed

    def _open(self, sources: tuple[LogSource, ...]) -> bool:
        share = max(1, len(sources))
        most, stretch = max(40, MOST_LINES // share), max(4096, min(STRETCH, _MANY_BYTES // share))
        self._excerpts = [Excerpt(source, most, stretch) for source in sources]
        self._found, self._note = None, ""
        return self._follow()

    def _follow(self) -> bool:
        share = max(1, len(self._excerpts))
        for excerpt in self._excerpts:
            excerpt.open_end(self._filter, max(4096, min(4 * STRETCH, _MANY_BYTES // share)), self._towards_begin())
            # Lines as long as a stretch would leave nothing to scroll.
            for _ in range(0 if self._filter else _FILLING // share):
                if len(excerpt.entries) >= _FILLING // share or not excerpt.back():
                    break
        self._following = True
        return True

    def _begin(self) -> bool:
        for excerpt in self._excerpts:
            excerpt.open_at(0, self._filter, self._towards_end())
        return True

    def _back(self) -> bool:
        read = [excerpt.back(self._towards_begin()) for excerpt in self._excerpts]
        return any(read)

    def _on(self) -> bool:
        read = [excerpt.on(self._towards_end()) for excerpt in self._excerpts if not excerpt.at_end]
        return any(read)

    def _want(self, level: Level | None) -> bool:
        self._level = level
        return self._follow()

    def _search(self, text: str, place: Place | None, *, backwards: bool, here: bool) -> bool:
        self._text, self._note = text, ""
        self._told_at = time.monotonic()
        if not text:
            self._found = None
            return True
        wanted = Wanted(self._level, text)
        entries = {
            (number, each.begin): each for number, excerpt in enumerate(self._excerpts) for each in excerpt.entries
        }
        held = [line.place for line in self._lines() if line.first and line.place in entries]
        at = len(held)
        if place is not None:
            log, offset = place
            at = next((i for i, each in enumerate(held) if each[0] == log and entries[each].has(offset)), at)
        order = reversed(held[: at + here]) if backwards else iter(held[at + 1 - here :])
        found = next((each for each in order if wanted.takes(entries[each])), None)
        if found is None and len(self._excerpts) == 1:
            found = self._search_file(wanted, backwards=backwards)
        if found is not None:
            self._found = found
        elif not self._note:
            which = "above" if backwards else "below"
            where = "" if len(self._excerpts) == 1 else " in what is held of the logs"
            self._note = f"not found {which}{where}"
        return True

    def _search_file(self, wanted: Wanted, *, backwards: bool) -> Place | None:
        (excerpt,) = self._excerpts
        start = excerpt.begin if backwards else excerpt.end
        whole = max(1, start if backwards else excerpt.size - start)
        going = self._going(lambda at: abs(at - start) / whole)
        try:
            offset = excerpt.find(wanted, start, backwards=backwards, going=going)
        except OSError as problem:
            self._note = problem.strerror or type(problem).__name__
            return None
        if offset is None:
            if self._turn != self._doing:
                self._note = "search cancelled"
            return None
        excerpt.open_at(offset, self._filter)
        return 0, offset

    def _towards_begin(self) -> Going:
        size = max(1, self._excerpts[0].size)
        return self._going(lambda at: 1 - at / size)

    def _towards_end(self) -> Going:
        size = max(1, self._excerpts[0].size)
        return self._going(lambda at: at / size)

    def _going(self, part: Callable[[int], float]) -> Going:
        """Return whether to read on: until something else is asked for; of many logs only what is near the end.

        Args:
            part: the part that has been read, by the offset that was reached.
        """
        if len(self._excerpts) > 1:
            return lambda _: False

        def goes_on(offset: int) -> bool:
            if time.monotonic() - self._told_at > _PROGRESS_S:
                self._progress = part(offset)
                self._tell()
            return self._turn == self._doing and not self._closed.is_set()

        return goes_on

    # What is shown

    @property
    def _filter(self) -> Wanted:
        return Wanted(self._level)

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        lines = self._lines()
        excerpts = self._excerpts
        error = next((excerpt.error for excerpt in excerpts if excerpt.error is not None), "")
        self._publish(
            Picture(
                lines,
                max((_width(line.text) for line in lines), default=0),
                all(not excerpt.begin for excerpt in excerpts),
                all(excerpt.at_end for excerpt in excerpts),
                sum(excerpt.size for excerpt in excerpts),
                excerpts[0].begin if len(excerpts) == 1 else 0,
                error if all(excerpt.error for excerpt in excerpts) else "",
                self._found,
                self._note,
                self._progress,
                replace(self._filter, text=self._text),
            )
        )

    def _lines(self) -> list[ShownLine]:
        if len(self._excerpts) == 1:
            (excerpt,) = self._excerpts
            lines = []
            for entry in [*excerpt.entries, *_unended(excerpt)]:
                other = entry.rank if entry.rank != excerpt.source.rank else None
                label = "" if other is None or excerpt.source.rank is not None else str(other)
                lines += self._shown(entry, 0, label, "")
            return lines
        logs = [[*excerpt.entries, *_unended(excerpt)] for excerpt in self._excerpts]
        together = list(islice(merged([reversed(log) for log in logs], backwards=True), 2 * MOST_LINES))
        return [line for each in reversed(together) for line in self._shown(each.entry, each.logs[0], *self._who(each))]

    def _who(self, each: Merged) -> tuple[str, str]:
        """Return the ranks and the host of an entry."""
        sources = [self._excerpts[number].source for number in each.logs]
        first = sources[0]
        if len(sources) > 1:
            ranks = sorted(source.rank for source in sources if source.rank is not None)
            hosts = {source.host for source in sources}
            return named(ranks), (first.host or "") if len(hosts) == 1 else f"{len(hosts)} hosts"
        return first.name if each.entry.rank is None else str(each.entry.rank), first.host or ""

    def _shown(self, entry: Entry, number: int, label: str, host: str) -> list[ShownLine]:
        found = self._found is not None and self._found[0] == number and entry.has(self._found[1])
        own = entry.rank is not None and (bool(label) or entry.rank == self._excerpts[number].source.rank)
        shown = []
        for line in entry.lines:
            text = line.own if own else line.text
            if line.left_out:
                text += f" … {line.left_out:,} characters more"
            first = line is entry.lines[0]
            at, who = (entry.at, (label, host)) if first else (None, ("", ""))
            shown.append(ShownLine((number, line.begin), text, *who, entry.level, at, first, found))
        return shown


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _unended(excerpt: Excerpt) -> list[Entry]:
    """Return the line of a log that has not ended, as an entry."""
    if excerpt.rest is None:
        return []
    last = excerpt.entries[-1].order if excerpt.entries else (0, float("-inf"))
    return [Entry(excerpt.source.rank if excerpt.rest.rank is None else excerpt.rest.rank, [excerpt.rest], order=last)]
