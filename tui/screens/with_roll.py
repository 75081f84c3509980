"""A live screen that is one long list, which follows its end and can be scrolled back, with what it is above it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Roll, Row, spread, width_of
from ddptop.tui.drawing.theme import MARKS
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.views.screen.keybar import KeyBar


class RollScreen(LiveScreen):
    """A list with a caption of two lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="log.back", tooltip="Return to where you came from"),
        Binding("end", "follow", "Follow", id="log.follow", tooltip="Go to the end and follow it", priority=True),
    ]

    _following = True
    follows: ClassVar[bool] = True
    """False where the list is whole from the start, and does not grow at its end."""

    @property
    @abstractmethod
    def roll(self) -> Roll[Any]:
        """The list."""

    @abstractmethod
    def make_roll(self) -> Roll[Any]:
        """Return the list, to be laid out."""

    @abstractmethod
    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return whose list it is, the state of that, and the second line; called once the list has the frame."""

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        yield Page(id="caption")
        yield self.make_roll()
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the list; the keys scroll it."""
        super().on_mount()
        self.roll.focus()

    def show_caption(self, frame: Frame) -> None:
        """Say what the list is, and where it stands."""
        roll = self.roll
        page = self.query_one("#caption", Page)
        ink = page.ink
        width = max(10, self.app.size.width - 2)
        keys = keys_of(self)
        where, hue = " following" if self.follows else "", "label"
        if frame.waiting:
            where, hue = f" {frame.waiting} · {keys['run.cancel']} cancels", "bold state-pausing"
        elif frame.view_held_s is not None:
            where, hue = f" VIEW HELD {units.duration(frame.view_held_s)}: {keys['view.freeze']} resumes", "held"
        elif self.follows and not roll.following:
            where, hue = f" scrolled back: {keys['log.follow']} follows again", "bold state-paused"
        name, state, below = self.caption(frame)
        left: Row = [
            Segment(f" {name} ", ink["bold value"]),
            Segment(f"{MARKS[state]} {state} ", ink[f"bold state-{state}"]),
        ]
        where = units.shorten(where, max(0, width - width_of(left) - 1))
        rows = [spread(left, [Segment(where, ink[hue])], width)]
        rows.append([Segment(units.shorten(f" {below}", width), ink["label"])])
        page.show_rows(rows)
        if roll.following != self._following:
            self._following = roll.following
            self.refresh_bindings()

    @on(Roll.Followed)
    def _tell(self) -> None:
        self.show_caption(self.frame)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to follow only where that is not done already."""
        if action == "follow":
            return self.is_mounted and self.follows and not self._following
        return super().check_action(action, parameters)

    def action_back(self) -> None:
        """Return."""
        self.dismiss(self.rank)

    def action_follow(self) -> None:
        """Go to the end."""
        self.roll.following = True
        self.roll.scroll_end(animate=False, x_axis=False)
        self.show_caption(self.frame)
