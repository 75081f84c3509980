"""The canvas of plots draws what the library's own draws."""

from __future__ import annotations

import itertools
import random

import pytest
from textual.geometry import Size
from textual_hires_canvas import Canvas, HiResMode

from ddptop.tui.views.plot.canvas import PlotCanvas

WIDTH, HEIGHT = 40, 12


@pytest.mark.parametrize("mode", [HiResMode.BRAILLE, HiResMode.QUADRANT])
@pytest.mark.parametrize("seed", range(3))
def test_lines_are_the_same_cells(seed: int, mode: HiResMode) -> None:
    """Lines of any slope, some over the edges, one over the other: signs and styles are those of the library."""
    rng = random.Random(seed)
    canvases = [kind(WIDTH, HEIGHT) for kind in (Canvas, PlotCanvas)]
    for canvas in canvases:
        canvas.reset(Size(WIDTH, HEIGHT), refresh=False)
    for style in ("red", "green"):
        corners = [(rng.uniform(-9, WIDTH + 9), rng.uniform(-9, HEIGHT + 9)) for _ in range(20)]
        lines = [(*begin, *end) for begin, end in itertools.pairwise(corners)]
        lines += [(3.0, 2.5, 3.0, 9.0), (1.0, 4.0, 30.0, 4.0), (5.0, 5.0, 5.0, 5.0)]
        for canvas in canvases:
            canvas.draw_hires_lines(lines, hires_mode=mode, style=style)
    known, own = canvases
    assert own._buffer == known._buffer
    assert own._styles == known._styles
    assert any("".join(line).strip() for line in own._buffer)
