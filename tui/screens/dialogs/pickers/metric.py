"""The dialog that chooses what a plot shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.model.metrics import CUSTOM, Metric
from ddptop.tui.screens.dialogs.dialog import Dialog


class MetricPicker(Dialog[str | None]):
    """A list of metrics, filtered by what is typed. Returns the name of one, None where none was taken."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="metrics.up", tooltip="The metric above", show=False, priority=True),
        Binding("down", "move(1)", "Down", id="metrics.down", tooltip="The metric below", show=False, priority=True),
        Binding("enter", "take", "Take", id="metrics.take", tooltip="Plot this metric", priority=True),
        Binding("escape", "dismiss", "Close", id="metrics.close", tooltip="Leave the plot as it is"),
    ]

    def __init__(self, metrics: Sequence[Metric], now: str) -> None:
        """Offer `metrics`; the cursor begins at the one of name `now`."""
        super().__init__()
        self._metrics = metrics
        self._now = now

    def compose(self) -> ComposeResult:
        """What is typed, and what fits it."""
        with Vertical(id="dialog", classes="-metrics"):
            yield Input(placeholder="type to filter", compact=True)
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        """Offer all."""
        dialog = self.query_one(Vertical)
        dialog.border_title = "plot"
        keys = keys_of(self)
        dialog.border_subtitle = Content(f"{keys['metrics.take']} takes · {keys['metrics.close']} closes")
        self._offer("")
        names = [metric.name for metric in self._metrics]
        self.query_one(OptionList).highlighted = names.index(self._now) if self._now in names else 0
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._offer(event.value)

    def _offer(self, typed: str) -> None:
        words = typed.casefold().split()
        fitting = [metric for metric in self._metrics if all(word in metric.title.casefold() for word in words)]
        found = self.query_one(OptionList)
        found.clear_options()
        found.add_options([Option(_line(metric), id=str(self._metrics.index(metric))) for metric in fitting])
        found.highlighted = 0 if fitting else None

    def action_move(self, by: int) -> None:
        """Go to another metric while the typing goes on."""
        found = self.query_one(OptionList)
        if found.option_count:
            found.highlighted = ((found.highlighted or 0) + by) % found.option_count

    def action_take(self) -> None:
        """Return the metric at the cursor."""
        found = self.query_one(OptionList)
        if found.highlighted is not None:
            self.dismiss(self._metrics[int(found.get_option_at_index(found.highlighted).id or 0)].name)

    @on(OptionList.OptionSelected)
    def _clicked(self) -> None:
        self.action_take()


def _line(metric: Metric) -> Text:
    line = Text(metric.title, no_wrap=True, overflow="ellipsis")
    if metric.unit:
        line.append(f", {metric.unit}", "dim")
    if metric.name.startswith(CUSTOM):
        line.append("  by the script", "dim")
    return line
