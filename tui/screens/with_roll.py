"""Live screens that are one long list with what it is above it: one of any order, and one that follows its end."""

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
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.views.screen.keybar import KeyBar


class ListScreen(LiveScreen):
    """A list with a caption: two lines, and a third one while the run hangs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="log.back", tooltip="Return to where you came from"),
    ]

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

    @abstractmethod
    def aside(self) -> tuple[str, str]:
        """Return what stands at the right of the caption, and the name of its hue."""

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
        page = self.query_one("#caption", Page)
        ink = page.ink
        width = max(10, self.app.size.width - 2)
        keys = keys_of(self)
        where, hue = self.aside()
        if frame.waiting:
            where, hue = f"{frame.waiting} · {keys['run.cancel']} cancels", "bold state-pausing"
        elif frame.view_held_s is not None:
            where, hue = f"VIEW HELD {units.duration(frame.view_held_s)} · {keys['view.freeze']} resumes", "held"
        name, state, below = self.caption(frame)
        left: Row = [
            Segment(f" {name} ", ink["bold value"]),
            Segment(f"{MARKS[state]} {state} ", ink[f"bold state-{state}"]),
        ]
        where = units.shorten(f" {where}", max(0, width - width_of(left) - 1))
        rows = [spread(left, [Segment(where, ink[hue])], width)]
        verdict = hang.told(frame)
        if verdict is not None and hang.is_urgent(verdict):
            rows.append([Segment(units.shorten(f" {verdict.text}", width), ink["bold level-error"])])
        rows.append([Segment(units.shorten(f" {below}", width), ink["label"])])
        page.show_rows(rows)

    @on(Roll.Followed)
    def _tell(self) -> None:
        self.show_caption(self.frame)

    def action_back(self) -> None:
        """Return."""
        self.dismiss(self.rank)


class RollScreen(ListScreen):
    """A list that follows its end, and can be scrolled back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("end", "follow", "Follow", id="log.follow", tooltip="Go to the end and follow it", priority=True),
    ]

    _following = True

    def aside(self) -> tuple[str, str]:
        """Say whether the list follows its end."""
        if self.roll.following:
            return "following", "label"
        return f"scrolled back: {keys_of(self)['log.follow']} follows again", "bold state-paused"

    def show_caption(self, frame: Frame) -> None:
        """Say what the list is, and offer to follow its end where it does not."""
        super().show_caption(frame)
        if self.roll.following != self._following:
            self._following = self.roll.following
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to follow only where that is not done already."""
        if action == "follow":
            return self.is_mounted and not self._following
        return super().check_action(action, parameters)

    def action_follow(self) -> None:
        """Go to the end."""
        self.roll.following = True
        self.roll.scroll_end(animate=False, x_axis=False)
        self.show_caption(self.frame)
