"""The log of a rank, or those of all as one: followed, scrolled through all of its file, and searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from ddptop.agent.client.logs.excerpt import LogSource
from ddptop.agent.client.logs.lines import Level
from ddptop.agent.client.logs.matching import places
from ddptop.agent.text import size
from ddptop.tui.drawing import units
from ddptop.tui.drawing.filtered import Filtered
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Row, ScrolledLines, width_of
from ddptop.tui.drawing.theme import Ink
from ddptop.tui.link.reader import LogReader, Picture, Place, ShownLine
from ddptop.tui.views.screen.log import hue_of

_MARKS: Final = {Level.WARNING: "! ", Level.ERROR: "✗ "}
_LEVELS: Final = (None, Level.WARNING, Level.ERROR)
_NAMES: Final = {None: "", Level.WARNING: "warnings and errors", Level.ERROR: "errors"}
_MATCH: Final = Style(reverse=True)
_WIDEST_LABEL: Final = 24
_NEAR: Final = 100
"""Lines before the edge of what is held at which more is asked for."""


class LogList(Filtered, ScrolledLines[ShownLine], can_focus=True):
    """The lines of one log or of several; what is typed after `/` is searched for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Search", id="log.search", key_display="/",
                tooltip="Search the whole log for a text, upwards from here"),
        Binding("escape", "clear", "End search", id="log.clear", tooltip="Cancel the search, or end it"),
        Binding("n", "search_on(False)", "Next", id="log.below", tooltip="Go to the next line below with the text"),
        Binding("N", "search_on(True)", "Above", id="log.above", tooltip="Go to the next line above with the text"),
        Binding("L", "level", "Level", id="log.level", tooltip="Show only warnings and errors, only errors, or all"),
        Binding("w", "wrap", "Wrap", id="log.wrap", tooltip="Wrap lines that are too long, or cut them at the edge"),
        Binding("home", "begin", "Beginning", id="log.begin", tooltip="Go to the first line of the log", show=False),
    ]  # fmt: skip
    begins = "log.search"

    class Read(Message):
        """Lines have been read."""

        def __init__(self, picture: Picture) -> None:
            super().__init__()
            self.picture = picture

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.picture = Picture()
        """The lines that were read last."""
        self.level: Level | None = None
        """The least level of the lines shown; None: all."""
        self._reader = LogReader(self._publish)
        self._sources: Sequence[LogSource] | None = None
        self.wraps = False
        """True where what does not fit into a line goes on in the next one."""
        self._timed = False
        """True once any line of these logs had a time: until then there is no column for it."""
        self._label = 0
        """Cells for the ranks before each line."""
        self._asked = False
        """More lines have been asked for, and have not come yet."""
        self._to_end = False
        """The end has been asked for, and has not come yet."""

    def on_mount(self) -> None:
        """Begin to read."""
        self.run_worker(self._reader.run, thread=True)

    def on_unmount(self) -> None:
        """End the thread."""
        self._reader.close()

    def _publish(self, picture: Picture) -> None:
        """Pass on what the thread has read."""
        self.post_message(self.Read(picture))

    def show(self, sources: Sequence[LogSource], *, still: bool = False) -> None:
        """Show these logs, as one where they are several; where the view stands `still`, nothing new is read."""
        if sources != self._sources:
            self._sources = sources
            self.following = True
            self.picture, self._timed = Picture(), False
            self.show_items((), empty="reading …")
            self._reader.open(sources)
        self._reader.follow_end(following=self.following, still=still)

    @property
    def told(self) -> str:
        """The part of the log that is shown, and the outcome of a search, for the line above."""
        picture, keys = self.picture, keys_of(self)
        parts = [self.typed] if self.typed else []
        if picture.progress is not None:
            parts.append(f"searched {picture.progress:.0%}: {keys['log.clear']} cancels")
        elif self.typed and not self.typing and picture.note:
            parts.append(picture.note)
        if name := _NAMES[self.level]:
            parts.append(name)
        held = units.count(len(picture.lines))
        if picture.at_begin and picture.at_end:
            parts.append(f"{held} {'line' if len(picture.lines) == 1 else 'lines'}")
        elif picture.at_end:
            parts.append(f"the last {held} lines of {size(picture.size)}")
        else:
            parts.append(f"at {picture.offset / max(1, picture.size):.0%} of {size(picture.size)}")
        return "  ".join(parts)

    # What the reader has read

    def on_log_list_read(self, message: Read) -> None:
        """Show it, with the same line on top, or with what was found in sight."""
        anchor = None if self.following or (self._to_end and message.picture.at_end) else self._anchor()
        found = message.picture.found
        moved = found is not None and found != self.picture.found
        searching = self.picture.progress is not None
        self.picture, self._asked = message.picture, False
        if self._to_end and self.picture.at_end:
            self.following, self._to_end = True, False
        if moved:
            self.following = self._to_end = False
        self._lay_out()
        if moved:
            at = next((number for number, line in enumerate(self._items) if line.place == found), 0)
            self.scroll_to(y=max(0, at - self.size.height // 2), animate=False, force=True)
        elif anchor is not None:
            self._go_to(anchor)
        self.post_message(self.Followed())
        if searching != (self.picture.progress is not None):
            self.refresh_bindings()

    def _lay_out(self) -> None:
        """Show the lines that are held, each in one or, where they wrap, in as many as it takes."""
        lines = self.picture.lines
        self._label = min(_WIDEST_LABEL, max((len(_who(line)) for line in lines), default=0))
        self._timed = self._timed or any(line.at is not None for line in lines)
        if self.wraps:
            # With room for the bar beside them, which comes with many lines.
            width = max(1, self.size.width - self.styles.scrollbar_size_vertical - self._lead)
            lines = [piece for line in lines for piece in _wrapped(line, width)]
        self.show_items(lines, 0 if self.wraps else self.picture.widest + self._lead, empty=self._nothing())

    def _anchor(self) -> tuple[Place, int] | None:
        """Return the line on top, and which of its pieces."""
        top = min(int(self.scroll_y), len(self._items) - 1)
        if top < 0:
            return None
        place = self._items[top].place
        return place, next((back for back in range(top) if self._items[top - back - 1].place != place), top)

    def _go_to(self, anchor: tuple[Place, int]) -> None:
        """Bring a line to the top, where it is still held."""
        place, piece = anchor
        at = next((number for number, line in enumerate(self._items) if line.place == place), None)
        if at is not None and at + piece != int(self.scroll_y):
            self.scroll_to(y=at + piece, animate=False, force=True)

    def on_resize(self) -> None:
        """Wrap at another width."""
        if self.wraps:
            self._lay_out()
        super().on_resize()

    def _nothing(self) -> str:
        if not self._sources:
            return "there is no file of it on this host"
        if self.picture.error:
            return f"no log: {self.picture.error}"
        if self.level is not None:
            return f"nothing says that it is one of the {_NAMES[self.level]}; {keys_of(self)['log.level']} shows others"
        return "nothing has been printed yet"

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Ask for more lines near the edge of those that are held; the end is followed only where it is the log's."""
        super().watch_scroll_y(old_value, new_value)
        if self.following and not self.picture.at_end:
            self.following = False
        if self._asked or self.picture.progress is not None:
            return
        if new_value < old_value and new_value < _NEAR and not self.picture.at_begin:
            self._asked = True
            self._reader.back()
        elif new_value > old_value and not self.picture.at_end and new_value > self.max_scroll_y - _NEAR:
            self._asked = True
            self._reader.on()

    def follow(self) -> None:
        """Go to the end of the log, and follow it."""
        self.following = True
        if self.picture.at_end:
            self.scroll_end(animate=False, x_axis=False, force=True)
        else:
            self._to_end = True
            self._reader.follow()

    # Keys

    def action_begin(self) -> None:
        """Go to the first line."""
        self.following = self._to_end = False
        if not self.picture.at_begin:
            self._reader.begin()
        self.scroll_to(y=0, animate=False, force=True)

    def action_wrap(self) -> None:
        """Wrap lines, or cut them, with the same one on top."""
        anchor = None if self.following else self._anchor()
        self.wraps = not self.wraps
        self.scroll_to(x=0, animate=False, force=True)
        self._lay_out()
        if anchor is not None:
            self._go_to((anchor[0], 0))

    def action_level(self) -> None:
        """Show lines of the next level only."""
        self.level = _LEVELS[(_LEVELS.index(self.level) + 1) % len(_LEVELS)]
        self.following = True
        self._reader.want(self.level)
        self.renew()

    def action_search_on(self, backwards: bool) -> None:
        """Go to the next line with the text."""
        self._reader.search(self.filter, self.picture.found or self._place(0), backwards=backwards)

    def settle(self) -> None:
        """Search upwards from the last line in sight."""
        self._reader.search(self.filter, self._place(self.size.height - 1), backwards=True, here=True)

    def action_clear(self) -> None:
        """Cancel the search that goes on; otherwise end it."""
        if self.picture.progress is not None:
            self._reader.cancel()
            return
        super().action_clear()
        self._reader.search("", None, backwards=True)

    def begin_to_show(self) -> None:
        """Keep the lines that are in sight there while a text is typed."""

    def renew(self) -> None:
        """Pass the typed text on."""
        super().renew()
        self.post_message(self.Followed())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to go on only with a search."""
        if action == "search_on":
            return bool(self.filter) and not self.typing
        if action == "clear" and self.picture.progress is not None:
            return True
        return super().check_action(action, parameters)

    def _place(self, below: int) -> Place | None:
        """Return the beginning of what stands so many lines below the top, or before that."""
        at = min(int(self.scroll_y) + below, len(self._items) - 1)
        while at >= 0 and not self._items[at].first:
            at -= 1
        return self._items[at].place if at >= 0 else None

    # A line

    @property
    def _lead(self) -> int:
        """Cells before the text: time, sign of the level and ranks."""
        return len("12:34:56 ") * self._timed + len("! ") + (self._label + 1 if self._label else 0)

    def row_of(self, line: ShownLine, ink: Ink) -> Row:
        style = ink[hue_of(line.level)]
        if line.first:
            known = "label" if line.at is not None else "faint"
            row = [Segment(f"{units.clock(line.at):>8} ", ink[known])] if self._timed else []
            row.append(Segment(_MARKS.get(line.level, "  ") if line.level else "  ", style))
            if self._label:
                row.append(Segment(f"{units.fit(_who(line), self._label)} ", ink["brand"]))
        else:
            row = [Segment(" " * self._lead)]
        row += _marked(line.text, places(line.text, self.picture.wanted.folded), style)
        if not line.found:
            return row
        ground = ink.ground("row-chosen")
        row.append(Segment(" " * max(0, self.size.width - width_of(row))))
        return [Segment(text, ground if style is None else style + ground) for text, style, _ in row]


def _wrapped(line: ShownLine, width: int) -> list[ShownLine]:
    """Return a line in pieces of so many cells at most."""
    if len(line.text) <= width and line.text.isascii():
        return [line]
    first, *more = units.chopped(line.text, width)
    return [replace(line, text=first), *(replace(line, text=piece, at=None, first=False) for piece in more)]


def _who(line: ShownLine) -> str:
    return f"{line.label} {line.host}".strip()


def _marked(text: str, found: Sequence[tuple[int, int]], style: Style) -> Row:
    """Return a text with these places of it marked."""
    row, at = [], 0
    for begin, end in found:
        row += [Segment(text[at:begin], style), Segment(text[begin:end], style + _MATCH)]
        at = end
    return [*row, Segment(text[at:], style)]
