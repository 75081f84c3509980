"""The base of all dialogs: the screen below stays in sight, darkened, and goes on to change, once a second.

Keys that were meant for another place, such as a command typed before the dialog was seen, must not confirm
anything: see `Dialog.ignores_enter`.
"""

from __future__ import annotations

import time
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.screen import ModalScreen, ScreenResultType
from textual.visual import VisualType
from textual.widgets import Static

from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.screens.dialogs.transient import Transient

SETTLE_S: Final = 0.3
"""Seconds after its opening in which a dialog takes no Enter: nobody has read it yet."""


class Dialog(ModalScreen[ScreenResultType], Transient[ScreenResultType]):
    """A screen over another one, which is seen around its box."""

    DECIDES: ClassVar[bool] = True
    """True where Enter may end, change or start something."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: float | None = None
        """When it came to the top, by the monotonic clock; None before that."""
        self._astray = False
        """A key that means nothing here was the last that was pressed."""
        self._replaced: list[tuple[Static, VisualType, Content]] = []
        """Each hint in whose place stands that an Enter was ignored, what it said, and what it says now."""

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
