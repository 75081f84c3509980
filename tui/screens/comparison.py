"""Two runs beside each other: their curves in one plot, and what noise allows to say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace
from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import Complaint
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page
from ddptop.tui.model.diagnosis.report import ReportLine
from ddptop.tui.screens.plot import Plotted
from ddptop.tui.screens.report import ReportLines
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.screen.keybar import KeyBar

if TYPE_CHECKING:
    from ddptop.agent.client.comparison.measured import Measured

Compared = tuple[Sequence["Measured"], Sequence[str]]
"""Both runs, and the lines on them for a width."""


class ComparisonScreen(Plotted):
    """Two runs, as they were when the screen was opened: no key acts on either."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="comparison.back", tooltip="Return to where you came from"),
        Binding("t", "turn", "Axis", id="comparison.axis", tooltip="Plot over steps, over samples, or over seconds"),
    ]

    class Made(Message):
        """Both are read, or one of them cannot be."""

        def __init__(self, compared: Compared | None, problem: str = "") -> None:
            super().__init__()
            self.compared = compared
            self.problem = problem

    def __init__(self, names: tuple[str, str], make: Callable[[], Compared]) -> None:
        """Prepare the screen; `make` reads both runs, in a thread."""
        super().__init__()
        self.frame = Frame(run=" | ".join(names), at=0.0, state="finished", program="", world=2, launched=False)
        self._names, self._make = names, make
        self._runs: Sequence[Measured] = ()
        self._over = "steps"

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        yield Page(id="caption")
        yield PlotPlaceholder()
        yield ReportLines()
        yield KeyBar()

    def on_mount(self) -> None:
        """Have both read."""
        self.query_one(ReportLines).focus()
        self.run_worker(self._work, thread=True)
        self._plot_over("steps")

    def _work(self) -> None:
        try:
            self.post_message(self.Made(self._make()))
        except Complaint as problem:
            self.post_message(self.Made(None, str(problem)))

    def on_comparison_screen_made(self, message: Made) -> None:
        """Show the lines and the curves."""
        listing = self.query_one(ReportLines)
        listing.problem = message.problem
        if message.compared is None:
            self.frame = replace(self.frame, history=None)
            self.show(self.frame)
        else:
            self._runs, lines = message.compared
            # A row of the table is cut, a sentence goes on in the next row.
            listing.lines = [ReportLine("", line, goes_on_at=0 if "  " in line else 1) for line in lines]
            self._plot_over("steps")
        listing.fold(anew=True)

    def show(self, frame: Frame) -> None:
        """Draw the curves."""
        self.query_one(ReportLines).fold()
        # No line stands out.
        self._placeholder.show(self.frame, (0, 1), -1)
        self._caption()

    def _plot_over(self, over: str) -> None:
        from ddptop.agent.client.comparison.measured import Beside
        from ddptop.tui.views.plot.contents import Look
        from ddptop.tui.views.plot.extent import Extent

        if self.look is None or not self.look.names:
            self.look = Look(extent=Extent(whole=True), chosen=True, names=self._names)
        self._over = self.look.over = over
        history: Any = SimpleNamespace(by_step=Beside(self._runs, over))
        self.frame = replace(self.frame, history=history)
        if self._plot is not None:
            self._plot.look = self.look
        self.show(self.frame)

    def action_back(self) -> None:
        """Return."""
        self.dismiss()

    def action_turn(self) -> None:
        """Plot over the next of the axes that both have."""
        from ddptop.agent.client.comparison.measured import AXES

        axes = [each for each in AXES if each != "samples" or all(run.batch > 0 for run in self._runs)]
        if self._runs:
            self._plot_over(axes[(axes.index(self._over) + 1) % len(axes)])

    def _caption(self) -> None:
        page = self.query_one("#caption", Page)
        width = max(10, self.app.size.width - 2)
        first, second = self._names
        keys = keys_of(self)
        below = f" as text: ddptop compare {first} {second} · {keys['comparison.axis']}: steps, samples, seconds"
        below += f" · {keys['plot.metric']}: another number"
        page.show_rows(
            [
                [Segment(units.shorten(f" {first} → {second}", width), page.ink["bold value"])],
                [Segment(units.shorten(below, width), page.ink["label"])],
            ]
        )
