"""The placeholder of a plot: makes it once it is wanted, and has the keys while values are read off.

Light to import, unlike the plot, so that a screen paints before any array is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message

from ddptop.agent.client.frame import Frame

if TYPE_CHECKING:
    from ddptop.tui.views.plot.contents import Look
    from ddptop.tui.views.plot.plot import Plot

_FAR: Final = 10
"""Columns that the crosshair jumps."""
_GROUP: Final = Binding.Group("Move crosshair", compact=True)


class PlotPlaceholder(Container):
    """The place of a plot, made or not. It has the keys as long as there is a crosshair."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "left", "move(-1)", "Earlier", id="crosshair.left", group=_GROUP, tooltip="Read the column to the left"
        ),
        Binding(
            "right", "move(1)", "Later", id="crosshair.right", group=_GROUP, tooltip="Read the column to the right"
        ),
        Binding(
            "shift+left,down", f"move(-{_FAR})", "Far left", id="crosshair.far_left", show=False,
            tooltip=f"Read {_FAR} columns further left",
        ),
        Binding(
            "shift+right,up", f"move({_FAR})", "Far right", id="crosshair.far_right", show=False,
            tooltip=f"Read {_FAR} columns further right",
        ),
        Binding("home", "edge(0)", "First", id="crosshair.first", tooltip="Read the first column", show=False),
        Binding("end", "edge(-1)", "Last", id="crosshair.last", tooltip="Read the last column", show=False),
        Binding("escape,enter,i", "close", "Close", id="crosshair.close", tooltip="Close crosshair"),
    ]  # fmt: skip

    class Left(Message):
        """The crosshair was closed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(id="plots", **options)
        self.plot: Plot | None = None
        self._given: tuple[Frame, Sequence[int], int] | None = None

    def make(self, look: Look | None) -> Plot:
        """Make the plot, with a look of its own where none is given."""
        from ddptop.tui.views.plot.contents import Look
        from ddptop.tui.views.plot.plot import Plot

        self.plot = Plot(look or Look())
        self.mount(self.plot)
        return self.plot

    def show(self, frame: Frame, ranks: Sequence[int], chosen: int) -> None:
        """Pass the frame on, where there is a plot and room for it."""
        self._given = frame, ranks, chosen
        if self.plot is not None and self.display:
            self.plot.show(frame, ranks, chosen)

    def on_resize(self) -> None:
        """Draw where there was no room before."""
        if self._given is not None:
            self.show(*self._given)

    def cross(self) -> None:
        """Begin to read values off, at the last column."""
        if self.plot is not None and self.plot.read_at(-1):
            self.can_focus = True
            self.focus()

    def action_move(self, by: int) -> None:
        """Read a column further on."""
        if self.plot is not None:
            self.plot.read_on(by)

    def action_edge(self, index: int) -> None:
        if self.plot is not None:
            self.plot.read_at(index)

    def action_close(self) -> None:
        """Give the keys back."""
        self.post_message(self.Left())

    def on_blur(self) -> None:
        """Close the crosshair when another part of the screen has the keys."""
        self.can_focus = False
        if self.plot is not None:
            self.plot.read_nothing()
