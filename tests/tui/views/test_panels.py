"""What the panels draw, and draw again: counted, not timed."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from support.screens.dashboards import INK, text_of
from support.screens.frames import frame, rank_frame

from ddptop.tui.drawing.theme import letters_of
from ddptop.tui.drawing.units import short_milliseconds
from ddptop.tui.views.panels import Shape, draw_panel


@pytest.mark.parametrize("height", [7, 10])
@pytest.mark.parametrize("chosen", [False, True])
def test_lines_that_show_the_same_are_drawn_once(height: int, chosen: bool) -> None:
    """A step that changes loss, number and age draws the lines that have them; the others are the same rows."""
    shape = Shape(50, height, chosen)
    before = rank_frame(1)
    after = replace(before, step=1285, step_age_s=0.3, loss=0.5)
    old, new = (draw_panel(rank, frame(), shape, INK) for rank in (before, after))
    drawn = [index for index, (one, other) in enumerate(zip(old, new, strict=True)) if one is not other]
    words = [text_of(new[index]) for index in drawn]
    assert "1,285" in words[0]
    assert "loss" in words[1]
    # A high panel draws its losses in two lines.
    assert drawn == ([0, 1, 2] if height == 10 else [0, 1])


@pytest.mark.parametrize("width", [38, 40, 48, 58])
@pytest.mark.parametrize(
    "times",
    [
        (1.4, 66.0, 1420.0, 31.0, 1430.0, 4.2),
        (1240.0, 1240.0, 1240.0, 1240.0, 9.0, 1240.0),
        (9998.0, 1.0, 9998.0, 1.0, 9998.0, 9998.0),
    ],
)
def test_no_phase_touches_its_neighbor(times: tuple[float, ...], width: int) -> None:
    """Also with times of four digits each letter stands apart from the number before it, and nothing is cut."""
    letters = letters_of({})
    rank = replace(rank_frame(1), phases_ms=dict(zip(letters, times, strict=True)))
    rows = [text_of(row)[2:-2] for row in draw_panel(rank, frame(), Shape(width, 7, False), INK)]
    (legend,) = [row for row in rows if row.startswith("d")]
    told = re.findall(r"(\S) ?([\d.]+)(?: +|$)", legend)
    assert told == [
        (letter, short_milliseconds(time).strip()) for letter, time in zip(letters.values(), times, strict=True)
    ]


@pytest.mark.parametrize("width", [49, 50, 52, 60])
def test_a_long_time_does_not_touch_the_name_of_its_phase(width: int) -> None:
    """Where a tall panel writes names of phases there is a space on both sides of each number."""
    rank = replace(rank_frame(1), phases_ms=dict.fromkeys(letters_of({}), 1257.0))
    text = "\n".join(text_of(row) for row in draw_panel(rank, frame(), Shape(width, 10, False), INK))
    assert len(re.findall(r"(?<= )1257(?= )", text)) == len(letters_of({}))
