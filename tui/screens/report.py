"""The report on the end of a run, all of the screen for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.segment import Segment
from textual.message import Message

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import Complaint
from ddptop.tui.drawing.lines import Row, ScrolledLines
from ddptop.tui.drawing.theme import Ink
from ddptop.tui.drawing.units import chopped, wrapped
from ddptop.tui.model.diagnosis.report import ReportLine
from ddptop.tui.model.sentences import can_be_reported
from ddptop.tui.screens.lists import ListScreen

_LABEL: Final = 10
"""Cells of the column of labels."""


class ReportLines(ScrolledLines[ReportLine]):
    """The lines of the report, folded to the width of the screen; it begins at its first line."""

    def __init__(self) -> None:
        super().__init__()
        self.following = False
        self.lines: Sequence[ReportLine] | None = None
        """None until the report is made."""
        self.problem = ""
        """Why there is none."""
        self._folded_to = 0

    def row_of(self, item: ReportLine, ink: Ink) -> Row:
        text = Segment(item.text, ink[item.hue])
        return [Segment(item.label.ljust(_LABEL), ink["label"]), text] if item.label else [text]

    def fold(self, *, anew: bool = False) -> None:
        """Show the lines in the width that there is now."""
        # With room for the scroll bar: it is there or not by the number of lines that this makes.
        width = max(_LABEL + 10, self.size.width - self.styles.scrollbar_size_vertical)
        if width == self._folded_to and not anew:
            return
        self._folded_to = width
        folded = [part for line in self.lines or () for part in _folded(line, width)]
        self.show_items(folded, empty=self.problem or "reading …")

    def on_resize(self) -> None:
        """Fold the lines anew."""
        super().on_resize()
        self.fold()


class ReportScreen(ListScreen[ReportLines]):
    """The end of the run, as far as it is known; made anew when its state or its cause becomes another.

    The report on an end stays when the run is started again.
    """

    LISTING = ReportLines
    opened_by = "report"

    class Made(Message):
        """The report is there, or the reason why it is not."""

        def __init__(self, lines: Sequence[ReportLine], problem: str = "") -> None:
            super().__init__()
            self.lines = lines
            self.problem = problem

    def __init__(self, frame: Frame, rank: int, make: Callable[[], Sequence[ReportLine]]) -> None:
        """Prepare the screen; `make` returns the lines, in a thread: logs and the recording are read for it."""
        super().__init__(frame, rank)
        self._make = make
        self._making = False
        self._made_at: tuple[str, str | None] | None = None
        """The state of the run and its cause when the report was made last."""

    def on_mount(self) -> None:
        """Have the report made."""
        super().on_mount()
        self._make_anew(self.frame)

    def _make_anew(self, frame: Frame) -> None:
        # One at a time: of two, the older might come last.
        if not self._making:
            self._making, self._made_at = True, (frame.state, frame.cause)
            self.run_worker(self._work, thread=True)

    def _work(self) -> None:
        try:
            self.post_message(self.Made(self._make()))
        except Complaint as problem:
            self.post_message(self.Made((), str(problem)))

    def on_report_screen_made(self, message: Made) -> None:
        """Show it; one that could not be made leaves the one before."""
        self._making = False
        self.listing.problem = message.problem
        self.listing.lines = message.lines or self.listing.lines
        self.listing.fold(anew=True)
        self.show_caption(self.frame)

    def show(self, frame: Frame) -> None:
        """Show the state of the run, and what else has become known of its end."""
        if can_be_reported(frame) and (frame.state, frame.cause) != self._made_at:
            self._make_anew(frame)
        self.listing.fold()
        self.show_caption(frame)

    def aside(self) -> tuple[str, str]:
        """Say nothing: the caption is all there is to say."""
        return "", "label"

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return the run, and how the report is had as text."""
        return frame.run, frame.state, f"for an issue tracker: ddptop report {frame.run} --markdown"


def _folded(line: ReportLine, width: int) -> list[ReportLine]:
    if not line.label and not line.goes_on_at:
        # Verbatim, and `wrapped` joins spaces: only what is too long is cut, at the edge of the screen.
        return [line._replace(text=part) for part in chopped(line.text, width)]
    head, text = line.text[: line.goes_on_at], line.text[line.goes_on_at :]
    indent = line.goes_on_at or _LABEL
    first, *rest = wrapped(text, width - indent)
    return [line._replace(text=head + first), *(ReportLine("", " " * indent + text, line.hue) for text in rest)]
