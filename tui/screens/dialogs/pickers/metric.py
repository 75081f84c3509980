"""The dialog that chooses the metric of a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from ddptop.tui.model.metrics import CUSTOM, Metric
from ddptop.tui.screens.dialogs.pickers.picker import ListPicker


class MetricPicker(ListPicker[str]):
    """A list of metrics, filtered by what is typed. Returns the name of the chosen one, or None."""

    DECIDES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="metrics.up", tooltip="The metric above", show=False),
        Binding("down", "move(1)", "Down", id="metrics.down", tooltip="The metric below", show=False),
        Binding("enter", "choose", "Take", id="metrics.take", tooltip="Plot this metric", priority=True),
        Binding("escape", "close", "Close", id="metrics.close", tooltip="Leave the plot as it is"),
    ]
    LOOK = "-framed"
    HINT = "{take} takes · {close} closes"
    FILTER = "type to filter"

    def __init__(self, metrics: Sequence[Metric], now: str) -> None:
        """Offer `metrics`; the one of name `now` is marked at first."""
        super().__init__("plot")
        self._metrics = metrics
        self._now = now

    def on_mount(self) -> None:
        """Mark the metric that the plot shows."""
        self.fill(self._now)

    def rows(self, typed: str) -> dict[str, Text]:
        """Return the metrics whose titles hold all words that are typed."""
        words = typed.casefold().split()
        fitting = (metric for metric in self._metrics if all(word in metric.title.casefold() for word in words))
        return {metric.name: _row(metric) for metric in fitting}

    def choose(self, key: str) -> None:
        self.dismiss(key)


def _row(metric: Metric) -> Text:
    row = Text(metric.title, no_wrap=True, overflow="ellipsis")
    if metric.unit:
        row.append(f", {metric.unit}", "dim")
    if metric.name.startswith(CUSTOM):
        row.append("  by the script", "dim")
    return row
