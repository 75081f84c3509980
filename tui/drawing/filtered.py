"""The base of lists that are filtered by what is typed after `/`, in the list itself: as in less, k9s and lazygit."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events

from ddptop.agent.text import clean
from ddptop.tui.drawing.lines import Drawn


class Filtered(Drawn):
    """A list that shows only what matches a filter, which the user types."""

    begins: ClassVar[str]
    """The id of the action that begins to take what is typed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.filter = ""
        self.typing = False
        """True while every character belongs to the filter."""

    @property
    def words(self) -> list[str]:
        """The words that each shown line has in it, in lower case."""
        return self.filter.lower().split()

    @property
    def typed(self) -> str:
        """The filter as it is shown, with a cursor while it is typed; empty where there is none."""
        if not (self.filter or self.typing):
            return ""
        return f"/{clean(self.filter, 60)}{'▏' if self.typing else ''}"

    def renew(self) -> None:
        """Show what matches the filter now: a list lays itself out anew before that."""
        self.refresh()
        self.refresh_bindings()

    def settle(self) -> None:
        """The filter is typed to its end: choose something that matches."""

    def action_filter(self) -> None:
        """Take what is typed from now on."""
        self.typing = True
        self.renew()

    def action_clear(self) -> None:
        """Show everything again."""
        self.filter, self.typing = "", False
        self.renew()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to clear only what there is."""
        return bool(self.filter or self.typing) if action == "clear" else True

    def on_key(self, event: events.Key) -> None:
        """Take what is typed into the filter; every other key keeps its meaning."""
        if not self.typing:
            # A binding acts only after the keys typed behind it have come here: they would be commands.
            active = self.screen.active_bindings.get(event.key)
            if active is not None and active.binding.id == self.begins:
                event.stop()
                event.prevent_default()
                self.action_filter()
            return
        if event.key == "enter":
            self.typing = False
            self.settle()
        elif event.key == "backspace":
            self.filter = self.filter[:-1]
        elif event.is_printable and event.character is not None:
            self.filter += event.character
        else:
            return
        event.stop()
        event.prevent_default()
        self.begin_to_show()
        self.renew()

    def begin_to_show(self) -> None:
        """Show the first match, because the matches have changed."""
        self.scroll_to(y=0, animate=False)

    def on_blur(self) -> None:
        """Stop typing when another part of the screen takes the keys."""
        if self.typing:
            self.typing = False
            self.renew()
