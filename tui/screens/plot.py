"""The base of screens with a plot, and the one that is all plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from ddptop.agent.client.frame import Frame
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row, packed
from ddptop.tui.model.metrics import offered
from ddptop.tui.screens.dialogs.transient import Transient
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.screen.header import Header
from ddptop.tui.views.screen.keybar import KeyBar

if TYPE_CHECKING:
    from ddptop.tui.views.plot.contents import Look
    from ddptop.tui.views.plot.plot import Plot


_HINTS: Final = (
    (("plot.metric",), "Metric"),
    (("plot.whole",), "Whole run"),
    (("plot.zoom_in", "plot.zoom_out"), "Zoom"),
    (("plot.back", "plot.forward"), "Scroll"),
    (("plot.log",), "Log"),
    (("plot.band",), "Band"),
    (("plot.smooth",), "Smooth"),
    (("plot.cross",), "Read values"),
)
"""Ids of actions that share a label, the most important first."""
_CROSSHAIR: Final = (
    (("crosshair.far_left", "crosshair.far_right"), "Move far"),
    (("crosshair.first", "crosshair.last"), "First, last"),
    *_HINTS[1:4],
)
"""The same while there is a crosshair; the keys that move and close it are in the key bar."""


_ON_THE_PLOT = frozenset(("alter", "cross", "metric"))


class Plotted(Transient[int]):
    """A screen with a plot in `#plots`, and its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "metric", "Metric", id="plot.metric", tooltip="Choose what the plot shows", show=False),
        Binding(
            "plus", "alter('zoom', 0.5)", "Zoom in", id="plot.zoom_in", key_display="+", show=False,
            tooltip="Plot: half as many steps",
        ),
        Binding(
            "minus", "alter('zoom', 2)", "Zoom out", id="plot.zoom_out", key_display="-", show=False,
            tooltip="Plot: twice as many steps, up to the whole run",
        ),
        Binding(
            "a", "alter('show_other')", "Whole run", id="plot.whole", show=False,
            tooltip="Plot: the whole run, or recent steps",
        ),
        Binding(
            "left_square_bracket", "alter('scroll_steps', -0.5)", "Back", id="plot.back", key_display="[", show=False,
            tooltip="Plot: earlier steps",
        ),
        Binding(
            "right_square_bracket", "alter('scroll_steps', 0.5)", "Forward", id="plot.forward", key_display="]",
            show=False, tooltip="Plot: later steps; at the end it follows the run",
        ),
        Binding(
            "y", "alter('change_scale')", "Log", id="plot.log", show=False,
            tooltip="Plot: logarithmic or linear scale",
        ),
        Binding(
            "b", "alter('gather')", "Band", id="plot.band", show=False,
            tooltip="Plot: mean, least and greatest of the ranks, or each rank",
        ),
        Binding(
            "w", "alter('smooth')", "Smooth", id="plot.smooth", show=False,
            tooltip="Plot: smooth lightly, strongly, not",
        ),
        Binding("i", "cross", "Read", id="plot.cross", tooltip="Plot: crosshair; arrows move it", show=False),
    ]  # fmt: skip

    frame: Frame
    look: Look | None = None
    """The look of the plot; None until there is one."""
    _place: PlotPlaceholder | None = None
    """Where the plot is, once it is there."""
    _before: Widget | None = None
    """The widget that had the keys before the crosshair."""

    def show(self, frame: Frame) -> None:
        """Draw a frame, which each of these screens does in its own way."""

    def on_mount(self) -> None:
        """Load what is heavy once the first frame is there."""
        self.call_after_refresh(self._add_plot)

    def _add_plot(self) -> None:
        self._place = next(iter(self.query(PlotPlaceholder)), None)
        if self._place is None or not self._place.is_mounted:
            # Under load the first refresh can come before all of the screen is there.
            self.call_after_refresh(self._add_plot)
            return
        self.look = self._placeholder.make(self.look).look
        self.show(self.frame)
        self.refresh_bindings()

    @property
    def _placeholder(self) -> PlotPlaceholder:
        return self.query_one(PlotPlaceholder)

    @property
    def _plot(self) -> Plot | None:
        return self._placeholder.plot

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the plot's keys where there is a plot."""
        if action in _ON_THE_PLOT:
            # Asked for each of these keys whenever the key bar is drawn: the whole screen is not searched for it.
            place = self._place
            return place is not None and place.plot is not None and place.display
        return super().check_action(action, parameters)

    @property
    def crossing(self) -> bool:
        """True while the arrows move the crosshair."""
        return self._plot is not None and self._plot.crosshair is not None

    def action_alter(self, change: str, *arguments: float) -> None:
        """Change the look of the plot, by one of its methods."""
        if self._plot is not None:
            getattr(self._plot, change)(*arguments)

    def action_cross(self) -> None:
        """Read values off."""
        self._before = self.focused
        self._placeholder.cross()

    def action_metric(self) -> None:
        """Choose what is plotted."""
        from ddptop.tui.screens.dialogs.pickers import MetricPicker

        if self._plot is not None and self.look is not None:
            names = [] if self.frame.history is None else self.frame.history.by_step.names
            self.open_over(MetricPicker(offered(names), self.look.metric), self._plot.choose)

    @on(PlotPlaceholder.Left)
    def _uncross(self) -> None:
        """Give the keys back to who had them."""
        self.set_focus(self._before)


class PlottedScreen(Plotted, LiveScreen):
    """A frame of the run with a plot."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "app.plot", "Plot", id="plot.full", tooltip="Show the plot on the whole screen"),
    ]

    def __init__(self, frame: Frame, rank: int = 0, look: Look | None = None, *, alone: bool = False) -> None:
        super().__init__(frame, rank)
        self.look = look
        self.alone = alone
        """True where the plot has only this rank's line."""

    def show(self, frame: Frame) -> None:
        """Pass the frame to the header, and to the plot; a key that has come meanwhile is done before."""
        LiveScreen.show(self, frame)
        self.call_later(self._placeholder.show, frame, [self.rank] if self.alone else frame.values("rank"), self.rank)


class PlotScreen(PlottedScreen):
    """One metric of the ranks over the run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,f", "back", "Back", id="plot.leave", tooltip="Return to where you came from"),
        Binding("tab", "neighbour(1)", "Next rank", id="plot.next", tooltip="Choose the next rank"),
        Binding(
            "shift+tab", "neighbour(-1)", "Previous rank", id="plot.previous", tooltip="Choose the previous rank",
            show=False,
        ),
    ]  # fmt: skip

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        yield Header(self.frame)
        yield PlotPlaceholder()
        yield Page(id="hints")
        yield KeyBar()

    def on_mount(self) -> None:
        """Name the keys of the plot, or of the crosshair while there is one."""
        self.bindings_updated_signal.subscribe(self, lambda _: self.call_after_refresh(self._name_keys))

    def on_resize(self) -> None:
        """Name as many as there is room for."""
        self.call_after_refresh(self._name_keys)

    def _name_keys(self) -> None:
        """Name the keys that matter here, which the footer has no room for elsewhere."""
        page = self.query_one("#hints", Page)
        offered = {active.binding.id for active in self.active_bindings.values() if active.enabled}
        keys = keys_of(self)
        pieces: list[Row] = []
        for names, label in _CROSSHAIR if self.crossing else _HINTS:
            if offered.issuperset(names):
                shown = [keys[name] for name in names]
                joined = ("" if all(len(key) == 1 for key in shown) else " ").join(shown)
                pieces.append([Segment(f"{joined} ", page.ink["bold value"]), Segment(label, page.ink["label"])])
        page.show_rows([[Segment(" "), *packed(pieces, page.size.width - 2)]])
