"""The base of the views of all ranks: one rank is chosen, and the user opens it.

The screen shows one view at a time and hands it frames; a view that is not shown gets none
and does no work.  The screen opens ranks and ends runs, not the view.
"""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import RankFrame
from ddptop.tui.drawing.lines import Drawn


class RankView(Drawn, can_focus=True):
    """All ranks of a run, one of them chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Rank", id="ranks.open", tooltip="Open the chosen rank's own screen"),
    ]

    chosen: reactive[int] = reactive(0, repaint=False)
    """Number of the chosen rank; it stays with that rank wherever the rank is drawn."""

    class Chosen(Message):
        """Another rank was chosen."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    class Opened(Message):
        """The user wants to see all about a rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def __init__(self, frame: Frame, **options: Any) -> None:
        super().__init__(**options)
        self.frame = frame
        """The frame last shown."""
        self._fitted: Size | None = None
        """The size that it was drawn for."""

    def show(self, frame: Frame) -> None:
        """Take in a new frame; a view that knows what differs in it repaints no more than that.

        Called at frame rate while the view can be seen.
        """
        self.frame = frame
        self.refresh()

    def fit(self) -> None:
        """Draw all for another size."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw for another size before it is painted: Textual paints a view once before it tells it of its size."""
        if self._fitted != self.size:
            self._fitted = self.size
            self.fit()
        return super().render_lines(crop)

    def awaits_history(self, width: int) -> bool:
        """Ask for the numbers that it would show in so many cells, and return whether they are yet to come."""
        return False

    def watch_chosen(self, before: int, chosen: int) -> None:
        """Mark the rank and bring it into sight."""
        if not self.is_mounted:
            return
        self.mark(before)
        self.bring_into_view()
        self.post_message(self.Chosen(chosen))

    def mark(self, before: int) -> None:
        """Draw the rank as chosen, and the one chosen `before` no longer."""
        self.refresh()

    def bring_into_view(self) -> None:
        """Scroll to the chosen rank, where there is anything to scroll."""

    @property
    def chosen_frame(self) -> RankFrame | None:
        """The chosen rank in the last frame."""
        return self.frame.rank(self.chosen)

    @property
    def in_sight(self) -> frozenset[int]:
        """Ranks of which single steps are drawn; means are there of all."""
        return frozenset()

    def action_open(self) -> None:
        """Ask for the chosen rank's own screen."""
        if self.chosen_frame is not None:
            self.post_message(self.Opened(self.chosen))
