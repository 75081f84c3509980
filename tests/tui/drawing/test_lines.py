"""Widgets that draw lines: no more of them than have changed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.geometry import Region
from textual.strip import Strip

from ddptop.tui.drawing.lines import Drawn
from ddptop.tui.drawing.theme import THEMES

STYLES = (None, Style(color="#112233"), Style(color="#445566", bold=True), Style(bgcolor="#778899"))
CELLS = st.tuples(st.text("ab ─é█", max_size=6), st.sampled_from(STYLES))


class Ruled(Drawn):
    """Numbered lines; it notes which of them it draws."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.drawn: list[int] = []
        self.word = "line"

    def render_line(self, y: int) -> Strip:
        self.drawn.append(y)
        return self.grounded(Strip([Segment(f"{self.word} {y}")]), 0, self.size.width)


class Sheet(App[None]):
    """A sheet of lines within a border, and another widget that has nothing to do with it."""

    CSS = "Ruled { height: 8; border-top: solid #ffffff; color: #123456 } #other { height: 2; border: none }"

    def compose(self) -> ComposeResult:
        for theme in THEMES:
            self.register_theme(theme)
        yield Ruled(id="sheet")
        yield Ruled(id="other")

    @property
    def sheet(self) -> Ruled:
        return self.query_one("#sheet", Ruled)

    def text(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.screen._compositor.render_strips()]


async def test_only_lines_that_were_refreshed_are_drawn_again() -> None:
    """Neither another widget's change nor a painting of the whole screen draws a line that is as it was."""
    async with Sheet().run_test(size=(30, 12)) as pilot:
        app = pilot.app
        assert isinstance(app, Sheet)
        await pilot.pause()
        app.sheet.drawn.clear()
        app.query_one("#other", Ruled).refresh()
        await pilot.pause()
        before = app.text()
        assert app.sheet.drawn == []
        app.sheet.word = "row"
        for y in (1, 4, 5):
            app.sheet.refresh(Region(0, y, 30, 1))
        await pilot.pause()
        assert app.sheet.drawn == [1, 4, 5]
        now = app.text()
        changed = {y: line for y, line in enumerate(now) if line != before[y]}
        # The border is the first line of the widget.
        assert changed == {2: "row 1", 5: "row 4", 6: "row 5"}


async def test_all_lines_are_drawn_again_where_the_look_of_all_changes() -> None:
    """A refresh without a place, another size and another style leave no line as it was."""
    async with Sheet().run_test(size=(30, 12)) as pilot:
        app = pilot.app
        assert isinstance(app, Sheet)
        await pilot.pause()
        app.sheet.word = "row"
        app.sheet.refresh()
        await pilot.pause()
        assert app.text()[1:8] == [f"row {y}" for y in range(7)]
        app.sheet.drawn.clear()
        app.sheet.styles.color = "#ff0000"
        await pilot.pause()
        assert set(app.sheet.drawn) == set(range(7))
        (line,) = app.sheet.render_lines(Region(0, 3, 30, 1))
        assert {segment.style.color.name for segment in line if segment.style and segment.style.color} == {"#ff0000"}
        await pilot.resize_terminal(40, 12)
        await pilot.pause()
        assert all(strip.cell_length == 40 for strip in app.sheet.render_lines(Region(0, 0, 40, 8)))


class Desk(App[None]):
    """A sheet that is wider than the box it is in."""

    CSS = "#box { width: 10; height: 4; overflow: hidden } Ruled { width: 30; height: 4; border: none }"

    def compose(self) -> ComposeResult:
        for theme in THEMES:
            self.register_theme(theme)
        with Container(id="box"):
            yield Ruled(id="sheet")


async def test_a_line_that_is_cut_off_on_the_right_is_as_long_as_it_says() -> None:
    """What a container leaves of a widget is as wide as what Textual asked for, also where one line is drawn again."""
    async with Desk().run_test(size=(30, 6)) as pilot:
        await pilot.pause()
        sheet = pilot.app.query_one("#sheet", Ruled)
        crop = Region(0, 0, 10, 4)
        sheet.render_lines(crop)
        sheet.word = "longer word"
        sheet.refresh(Region(0, 1, 30, 1))
        strips = sheet.render_lines(crop)
        assert [strip.text for strip in strips] == ["line 0    ", "longer wor", "line 2    ", "line 3    "]
        assert all(strip.cell_length == sum(segment.cell_length for segment in strip) == 10 for strip in strips)


@settings(deadline=None, max_examples=100)
@given(row=st.lists(CELLS, max_size=12), width=st.integers(1, 40))
def test_a_row_is_put_on_its_ground_as_a_strip_is(row: list[tuple[str, Style | None]], width: int) -> None:
    """The quick way for long rows gives the same cells in the same styles."""

    class Sized(Drawn):
        size = Region(0, 0, width, 1).size
        base = Style(color="#abcdef", bgcolor="#010203")
        _grounds: dict[Style | None, Style] = {}  # noqa: RUF012

    segments = [Segment(text, style) for text, style in row]
    taken = sum(len(text) for text, _ in row)
    widget = Sized()
    quick = widget.grounded_row(segments, taken)
    slow = widget.grounded(Strip(segments), 0, width)
    assert cells_of(quick) == cells_of(slow)
    assert quick.cell_length == width


def cells_of(strip: Strip) -> list[tuple[str, Style | None]]:
    return [(character, segment.style) for segment in strip for character in segment.text]
