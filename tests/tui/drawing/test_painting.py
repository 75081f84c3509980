"""Painting what has changed: the same cells as Textual's painting of the whole screen, and no more work."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Static

from ddptop.tui.drawing.lines import Drawn
from ddptop.tui.drawing.painting import LineCompositor, Painting
from ddptop.tui.drawing.theme import THEMES

WIDTH, HEIGHT = 40, 16


class Lines(Drawn):
    """More lines than there is room for, each with a word of its own; it counts how often it is asked for any."""

    def __init__(self, count: int, **options: Any) -> None:
        super().__init__(**options)
        self.words = [f"{self.id} {index}" for index in range(count)]
        self.asked = 0

    def on_mount(self) -> None:
        self.virtual_size = Size(0, len(self.words))

    def render_lines(self, crop: Region) -> list[Strip]:
        self.asked += 1
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        return self.grounded(Strip([Segment(self.words[y + self.scroll_offset.y])]), 0, self.size.width)


class Desk(Screen[None]):
    """Widgets beside each other, with a frame, with a scrollbar, and one that lies over two others."""

    CSS = """
    Desk { layout: horizontal; layers: low high; }
    #plain { width: 14; height: 100%; overflow: hidden hidden; }
    #framed { width: 10; height: 10; border: solid #445566; padding: 0 1; overflow: hidden hidden; }
    #scrolled { width: 1fr; height: 12; border-top: solid #445566; overflow: hidden auto; }
    #over { layer: high; offset: 9 3; width: 10; height: 4; background: #222222; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._compositor = LineCompositor()

    def compose(self) -> ComposeResult:
        yield Lines(HEIGHT, id="plain")
        yield Lines(8, id="framed")
        yield Lines(30, id="scrolled")
        yield Static("over all", id="over")


class Office(App[None]):
    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        self.push_screen(Desk())


Cell = tuple[str, Any]


def cells(strip: Strip) -> list[Cell]:
    return [(character, segment.style) for segment in strip for character in segment.text]


def whole(app: App[None]) -> list[list[Cell]]:
    """Return the screen as Textual draws all of it."""
    return [cells(strip) for strip in app.screen._compositor.render_strips()]


async def opened(pilot: Any) -> tuple[App[None], list[Painting]]:
    """Return the app and a list that gets its further paintings."""
    app, paintings = pilot.app, []
    await pilot.pause()
    painted = app.screen._compositor.render_partial_update

    def paint() -> Painting | None:
        painting: Painting | None = painted()
        if painting is not None:
            paintings.append(painting)
        return painting

    app.screen._compositor.render_partial_update = paint
    return app, paintings


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_painted_is_what_the_whole_screen_would_show(seed: int) -> None:
    """After any changes the terminal shows what a painting of everything would, behind other widgets too."""
    rng = random.Random(seed)
    async with Office().run_test(size=(WIDTH, HEIGHT)) as pilot:
        app, paintings = await opened(pilot)
        terminal = whole(app)
        sheets = list(app.screen.query(Lines))
        for turn in range(12):
            if turn % 4 == 3:
                app.screen.query_one("#over", Static).update(f"over {turn}")
            for sheet in rng.sample(sheets, rng.randint(1, len(sheets))):
                changed = rng.sample(range(len(sheet.words)), 5)
                for line in changed:
                    sheet.words[line] = f"{sheet.id} {line}: {turn}"
                sheet.refresh_numbered(changed)
            await pilot.pause()
            for painting in paintings:
                for y, x, strip in painting.strips:
                    drawn = cells(strip)
                    terminal[y][x : x + len(drawn)] = drawn
            paintings.clear()
            for sheet in sheets:
                # As if nothing of it were known.
                sheet._set_dirty()
            assert terminal == whole(app), turn
            app.screen._compositor._dirty_regions.clear()
            for sheet in sheets:
                sheet._exchange_repaint_regions()


async def test_only_widgets_that_are_seen_in_a_changed_line_are_asked() -> None:
    """A change of one widget asks no other one for its lines."""
    async with Office().run_test(size=(WIDTH, HEIGHT)) as pilot:
        app, paintings = await opened(pilot)
        plain, framed, scrolled = app.screen.query(Lines)
        plain.asked = framed.asked = scrolled.asked = 0
        framed.words[2] = "abcdef"
        framed.refresh_numbered([2])
        await pilot.pause()
        assert (plain.asked, scrolled.asked) == (0, 0)
        assert framed.asked
        parts = [part for painting in paintings for part in painting.strips]
        # The widget over it hides its first half in this line.
        assert [(y, x, strip.text) for y, x, strip in parts if x >= 19] == [(3, 19, "def")]
        assert {y for y, _, _ in parts} == {3}


async def test_a_terminal_gets_each_part_where_it_is() -> None:
    """Lines and columns of a terminal count from one."""
    painting = Painting([(0, 0, Strip([Segment("a")])), (4, 11, Strip([Segment("b")]))])
    assert painting.render_segments(App().console) == "\x1b[1;1Ha\x1b[5;12Hb"


async def test_no_more_of_a_line_is_painted_than_has_changed() -> None:
    """What stands in front of the rest of the line is not painted over."""
    async with Office().run_test(size=(WIDTH, HEIGHT)) as pilot:
        app, paintings = await opened(pilot)
        app.screen.query_one("#plain").refresh(Region(0, 4, 5, 1))
        await pilot.pause()
        parts = [(y, x, strip.text) for painting in paintings for y, x, strip in painting.strips]
        assert parts == [(4, 0, "plain")]


async def test_lines_for_a_screen_over_this_one_are_those_of_the_screen() -> None:
    """Whole lines, by their numbers, have the cells that the screen shows there."""
    async with Office().run_test(size=(WIDTH, HEIGHT)) as pilot:
        app, _ = await opened(pilot)
        compositor = app.screen._compositor
        assert isinstance(compositor, LineCompositor)
        lines = compositor.whole_lines({0, 4, 5, 15})
        seen = whole(app)
        assert {y: cells(strip) for y, strip in lines.items()} == {y: seen[y] for y in (0, 4, 5, 15)}
