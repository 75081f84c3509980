"""The loss of the ranks over steps. Imports NumPy and the plot library, so it is loaded after the first paint."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from textual.binding import BindingType
from textual.content import Content
from textual_plot import HiResMode, PlotWidget

from ddptop.tui.frame import RankFrame
from ddptop.tui.theme import RANK_HUES, ink

_PERIOD_S: Final = 1.0
"""A plot costs as much as fifty panels; once a second is enough for a curve."""
_LAYOUT_S: Final = 0.1
"""By then a canvas that was hidden has its size."""

Curve = tuple[list[int], list[float]]


class LossPlot(PlotWidget, can_focus=False, inherit_bindings=False):
    """Loss of each rank over the whole run; the chosen rank lies on top."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_pan_and_zoom=False, **options)
        self._shown: object = None
        self._next = 0.0
        self._ready = False
        self._late = False
        self._given: tuple[Sequence[RankFrame], int | None] = ((), None)
        self.border_title = "loss over steps: none yet"
        self.add_class("-empty")
        self.set_reactive(PlotWidget.margin_top, 0)
        self.set_reactive(PlotWidget.margin_bottom, 1)
        self.set_reactive(PlotWidget.margin_left, 8)

    def on_mount(self) -> None:
        """Draw only after the library has emptied the canvas, as it does when it is mounted."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._ready = True
        self._fit()

    def on_resize(self) -> None:
        """Draw for another size, once the library has laid out its canvas."""
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        # The library takes over the size of its canvas only when a layout is asked for.
        self.refresh(layout=True)
        self.show(*self._given)

    def show(self, ranks: Sequence[RankFrame], chosen: int | None) -> None:
        """Draw the ranks' losses if they changed, at most once a second, and at once for another choice."""
        self._given = (ranks, chosen)
        if not self._ready or not self.size:
            return
        key = (chosen, self.size, self.app.theme)
        picture = (key, {rank.rank: rank.curve for rank in ranks})
        now = time.monotonic()
        if picture == self._shown:
            return
        if isinstance(self._shown, tuple) and self._shown[0] == key and now < self._next:
            if not self._late:
                # Nothing may follow this picture, as when the run has ended: it must not be the one left out.
                self._late = True
                self.set_timer(self._next - now, self._catch_up)
            return
        self._shown, self._next = picture, now + _PERIOD_S
        self._draw_curves(ranks, chosen)

    def _catch_up(self) -> None:
        self._late = False
        self.show(*self._given)

    def _draw_curves(self, ranks: Sequence[RankFrame], chosen: int | None) -> None:
        hues = ink(self.app.theme).hues
        was_empty = self.has_class("-empty")
        self.set_class(not any(len(self._curve(rank)[0]) > 1 for rank in ranks), "-empty")
        if self.has_class("-empty"):
            return
        if was_empty:
            # A hidden canvas has no size; once it has been laid out, the library has to look again.
            self.set_timer(_LAYOUT_S, self._fit)
        self.clear()
        title = [Content("loss over steps, by rank ")]
        for rank in sorted(ranks, key=lambda rank: rank.rank == chosen):
            hue = hues[f"line-{rank.rank % RANK_HUES}"]
            steps, losses = self._curve(rank)
            if len(steps) > 1:
                self.plot(steps, losses, line_style=hue, hires_mode=HiResMode.BRAILLE)
        for rank in ranks[:16]:
            mark = f"[{rank.rank}]" if rank.rank == chosen and len(ranks) > 1 else f" {rank.rank} "
            title.append(Content.styled(mark, hues[f"line-{rank.rank % RANK_HUES}"]))
        if len(ranks) > 16:
            title.append(Content(" …"))
        self.border_title = Content("").join(title)

    def _curve(self, rank: RankFrame) -> Curve:
        points = [(step, loss) for step, loss in rank.curve if math.isfinite(loss)]
        # Losses of single steps are noise that hides one rank behind another: a point for two cells
        # shows their course.
        width = max(2, (self.size.width - self.margin_left) // 2)
        per_bin = max(1, math.ceil(len(points) / width))
        steps, losses = [], []
        for first in range(0, len(points), per_bin):
            together = points[first : first + per_bin]
            steps.append(together[-1][0])
            losses.append(math.fsum(loss for _, loss in together) / len(together))
        return steps, losses
