"""Ticks of a plot, as many as there is room for, in as few cells as keep them different."""

from __future__ import annotations

from collections.abc import Sequence

from textual_plot.axis_formatter import AxisFormatter

from ddptop.tui.drawing import units
from ddptop.tui.drawing.ticks import decades, even_ticks, tick_labels


class Values(AxisFormatter):
    """Ticks at 1, 2 and 5 times a power of ten."""

    def __init__(self) -> None:
        self.room = 5
        """Ticks there is room for."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        return even_ticks(min_, max_, self.room)

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        """Return labels as short as may be."""
        return tick_labels(ticks)


class Steps(Values):
    """Ticks at whole steps."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        return [tick for tick in super().get_ticks(min_, max_, max_ticks) if tick == round(tick)]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        """Return them written as everywhere else while they are short enough."""
        return (
            [f"{tick:,.0f}" for tick in ticks] if max(ticks, default=0) < 1e6 else super().get_labels_for_ticks(ticks)
        )


class Powers(Values):
    """Ticks on an axis that shows powers of ten."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        """Return where the ticks are: the ends of the axis, where no power lies between them."""
        return decades(min_, max_, self.room) or [min_, max_]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        """Return the numbers that the powers stand for."""
        return [units.significant(10**tick) if -5 < tick < 5 else f"{10**tick:.1e}" for tick in ticks]
