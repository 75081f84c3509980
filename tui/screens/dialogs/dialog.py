"""The base of all dialogs: the screen below stays in sight, darkened, and goes on to change.

Textual renders the whole screen below anew, line by line and color by color, whenever a cell of
it changes; four times a second that took twice what the screen itself takes.  Here only the
lines that have changed are rendered.

Keys that were meant for another place, such as a command typed before the dialog was seen, must not confirm
anything: see `Dialog.ignores_enter`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import Compositor
from textual.binding import Binding
from textual.color import Color
from textual.content import Content
from textual.geometry import Region
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.strip import Strip
from textual.visual import VisualType
from textual.widgets import Static

from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.painting import LineCompositor
from ddptop.tui.screens.dialogs.transient import Transient

SETTLE_S: Final = 0.3
"""Seconds after its opening in which a dialog takes no Enter: nobody has read it yet."""
_MOST_STYLES = 4096
"""Styles whose darkened form is held; a screen has some hundred."""


class Dialog(ModalScreen[ScreenResultType], Transient[ScreenResultType]):
    """A screen over another one, which is seen around its box."""

    DECIDES: ClassVar[bool] = True
    """True where Enter may end, change or start something."""

    def __init__(self) -> None:
        super().__init__()
        self._compositor = LineCompositor()
        self._opened: float | None = None
        """When it came to the top, by the monotonic clock; None before that."""
        self._astray = False
        """A key that means nothing here was the last that was pressed."""
        self._replaced: list[tuple[Static, VisualType, Content]] = []
        """Each hint in whose place stands that an Enter was ignored, what it said, and what it says now."""
        self._beneath: list[Strip] = []
        """The lines of the screen below, as they are seen under the dialog; empty where none was made yet."""
        self._beneath_width = 0
        """Cells of each of these."""
        self._veil: Color | None = None
        """The color that `_darkened` was made with."""
        self._darkened: dict[Style | None, Style | None] = {}
        """By a style of the screen below, the one it has under the dialog."""

    def on_screen_resume(self) -> None:
        """Begin to wait for the user to have seen it, also where another dialog over it has closed."""
        if self.DECIDES and self._opened is None:
            # They would cover what it says. Those that come later are news, and stay.
            self.app.clear_notifications()
        self._opened = time.monotonic()

    def ignores_enter(self) -> bool:
        """Say whether an Enter of now is to be ignored.

        It is right after the opening, and once after a key that means nothing here: what was typed then, and its
        Enter, were meant for another place.
        """
        fresh = self._opened is None or time.monotonic() - self._opened < SETTLE_S
        ignored = self.DECIDES and (fresh or self._astray)
        reason = "with other keys" if self._astray else "too soon"
        self._astray = False
        self._restore_hints()
        if ignored:
            said = Content(f"Enter ignored, it came {reason}: press it again")
            for hint in self.query("#hint").results(Static):
                self._replaced.append((hint, hint.content, said))
                hint.update(said)
        return ignored

    def _restore_hints(self) -> None:
        """Take back that an Enter was ignored, but for a hint that says something else by now."""
        for hint, before, said in self._replaced:
            if hint.content is said:
                hint.update(before)
        self._replaced.clear()

    def on_key(self, event: events.Key) -> None:
        """Keep an Enter from the button that is marked, where it is to be ignored."""
        if event.key == "enter":
            if self.ignores_enter():
                event.stop()
                event.prevent_default()
        else:
            self._restore_hints()
            self._astray = event.is_printable and event.key not in self.active_bindings

    def hint(self, text: str) -> Content:
        """Return a line on the keys: `{close}` in `text` becomes the user's key of this dialog's action `….close`.

        `{enter}` is what a list of the widget library calls its own.
        """
        keys = keys_of(self)
        ids = [binding.id for binding in self.BINDINGS if isinstance(binding, Binding) and binding.id is not None]
        named = {each.partition(".")[2]: keys[each] for each in ids}
        return Content(text.format_map({"enter": self.app.get_key_display(Binding("enter", "")), **named}))

    @property
    def _below(self) -> Screen[object] | None:
        stack = self.app.screen_stack
        place = stack.index(self) if self in stack else 0
        return stack[place - 1] if place else None

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines of the screen below, darkened; only those that have changed are made anew."""
        # Textual's own way renders all of the screen below, and filters all lines at each painting.
        below, veil = self._below, self.styles.background
        # After a resize the screen below may not be laid out yet.
        if below is None or veil.a == 1 or not below.size == below._compositor.size == self.size:
            self._beneath = []
            return super().render_lines(crop)
        if len(self._beneath) != self.size.height or self._beneath_width != self.size.width or veil != self._veil:
            dirty = set(range(self.size.height))
            self._beneath, self._beneath_width = [Strip.blank(0)] * self.size.height, self.size.width
        else:
            dirty = {y for each in self._dirty_regions for y in each.intersection(self.size.region).line_range}
        self._dirty_regions.clear()
        if veil != self._veil or len(self._darkened) > _MOST_STYLES:
            self._veil, self._darkened = veil, {}
        if dirty:
            filters, ground = self.get_line_filters(), self.background_colors[1]
            for y, strip in _lines_of(below._compositor, dirty):
                darkened = Strip(self._darken(strip, veil), self.size.width)
                for each in filters:
                    darkened = darkened.apply_filter(each, ground)
                self._beneath[y] = darkened
        lines = self._beneath[crop.y : crop.bottom]
        is_whole = crop.column_span == (0, self._beneath_width)
        return lines if is_whole else [line.crop(*crop.column_span) for line in lines]

    def notify_style_update(self) -> None:
        """Make all lines anew, in the colors of another theme."""
        self._beneath = []
        super().notify_style_update()

    def _darken(self, strip: Strip, veil: Color) -> list[Segment]:
        known = self._darkened
        try:
            return [Segment(text, known[style], control) for text, style, control in strip]
        except KeyError:
            for _, style, _ in strip:
                (segment,) = BackgroundScreen.process_segments([Segment("", style)], veil)
                known[style] = segment.style
            return self._darken(strip, veil)


def _lines_of(compositor: Compositor, numbers: Collection[int]) -> Iterator[tuple[int, Strip]]:
    """Yield lines of a screen, each with its number."""
    if isinstance(compositor, LineCompositor):
        yield from compositor.whole_lines(numbers).items()
        return
    crop = Region(0, min(numbers), compositor.size.width, max(numbers) + 1 - min(numbers))
    chops = compositor._render_chops(crop, numbers.__contains__)
    for y in numbers:
        yield y, Strip.join(chops[y].values())
