"""What a rank printed, all of the screen for it: follows the end, can be scrolled back."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from ddptop.agent.text import clean
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row, spread
from ddptop.tui.drawing.theme import MARKS
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.views.screen.keybar import KeyBar
from ddptop.tui.views.screen.log import LogView


class LogScreen(LiveScreen):
    """The log of one rank, with the rank's state above it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="log.back", tooltip="Return to where you came from"),
        Binding("end", "follow", "Follow", id="log.follow", tooltip="Go to the end and follow it", priority=True),
        Binding("tab", "neighbour(1)", "Next rank", id="log.next", tooltip="Show the next rank's log", priority=True),
        Binding(
            "shift+tab",
            "neighbour(-1)",
            "Previous rank",
            id="log.previous",
            tooltip="Show the previous rank's log",
            priority=True,
            show=False,
        ),
    ]

    _following = True

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        yield Page(id="caption")
        yield LogView(wide=True)
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the log; the keys scroll it."""
        super().on_mount()
        self.query_one(LogView).focus()

    def show(self, frame: Frame) -> None:
        """Take in what was printed since, and say where it stands."""
        rank = frame.rank(self.rank)
        if rank is None:
            return
        view = self.query_one(LogView)
        view.show(rank, still=frame.view_held_s is not None)
        page = self.query_one("#caption", Page)
        ink = page.ink
        width = max(10, self.app.size.width - 2)
        keys = keys_of(self)
        where = " following" if view.following else f" scrolled back: {keys['log.follow']} follows again"
        if frame.view_held_s is not None:
            where = f" VIEW HELD {units.duration(frame.view_held_s)}: {keys['view.freeze']} goes on"
        left: Row = [
            Segment(f" rank {rank.rank} ", ink["bold value"]),
            Segment(f"{MARKS[rank.state]} {rank.state} ", ink[f"bold state-{rank.state}"]),
        ]
        right: Row = [
            Segment(
                where,
                ink["held" if frame.view_held_s is not None else "label" if view.following else "bold state-paused"],
            )
        ]
        rows = [spread(left, right, width)]
        if view.file is not None:
            lines = view.file.dropped + len(view.file.lines)
            text = f" {units.count(lines)} lines of {clean(view.file.path)}"
            rows.append([Segment(units.shorten(text, width), ink["label"])])
        else:
            rows.append([Segment(units.shorten(" not kept in a file", width), ink["label"])])
        page.show_rows(rows)
        if view.following != self._following:
            self._following = view.following
            self.refresh_bindings()

    @on(LogView.Followed)
    def _tell(self) -> None:
        self.show(self.frame)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to follow only where that is not done already."""
        if action == "follow":
            return self.is_mounted and not self._following
        return super().check_action(action, parameters)

    def action_back(self) -> None:
        """Return."""
        self.dismiss(self.rank)

    def action_follow(self) -> None:
        """Go to the end."""
        view = self.query_one(LogView)
        view.following = True
        view.scroll_end(animate=False, x_axis=False)
        self.show(self.frame)

    def action_neighbour(self, by: int) -> None:
        """Show another rank's log."""
        ranks = list(self.frame.values("rank"))
        if self.rank in ranks:
            self.choose(ranks[(ranks.index(self.rank) + by) % len(ranks)])
