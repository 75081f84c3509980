"""What a rank printed, all of the screen for it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from ddptop.agent.text import clean, plural
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.with_roll import RollScreen
from ddptop.tui.views.screen.log import LogView


class LogScreen(RollScreen):
    """The log of one rank, with the rank's state above it."""

    BINDINGS: ClassVar[list[BindingType]] = [
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

    @property
    def roll(self) -> LogView:
        """The lines of the log."""
        return self.query_one(LogView)

    def make_roll(self) -> LogView:
        """Return the list, as wide as its widest line."""
        return LogView(wide=True)

    def show(self, frame: Frame) -> None:
        """Take in what was printed since."""
        rank = frame.rank(self.rank)
        if rank is not None:
            self.roll.show(rank, still=frame.view_held_s is not None)
            self.show_caption(frame)

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return the rank, and how much it has printed."""
        rank, file = frame.rank(self.rank), self.roll.file
        assert rank is not None
        if file is None:
            return f"rank {rank.rank}", rank.state, "not kept in a file"
        lines = file.dropped + len(file.lines)
        return f"rank {rank.rank}", rank.state, f"{plural(lines, 'line')} of {clean(file.path)}"

    def action_neighbour(self, by: int) -> None:
        """Show another rank's log."""
        ranks = list(self.frame.values("rank"))
        if self.rank in ranks:
            self.choose(ranks[(ranks.index(self.rank) + by) % len(ranks)])
