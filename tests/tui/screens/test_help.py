"""The help: the keys of the screen one is on first, in columns, filtered; signs and words on a page of their own."""

from __future__ import annotations

from collections import Counter

import pytest
from support.screens.dashboards import dashboard, seen, until
from support.screens.frames import StillSource, frame
from textual.binding import Binding

from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
from ddptop.tui.drawing.lines import Page
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.lists import EventScreen
from ddptop.tui.screens.plot import PlotScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.views.panels import PanelGrid
from ddptop.tui.views.runs import RunList
from ddptop.tui.views.screen.events import EventSearch
from ddptop.tui.views.table.table import RankTable

HELPED: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "panels": ((), ("panels", "all ranks", "plots", "everywhere"), "Choose the rank to the left"),
    "heatmap": (("3",), ("heatmap", "all ranks", "plots", "everywhere"), "Show the next number: step time, wait, …"),
    "rank": (("enter",), ("one rank", "plots", "everywhere"), "Return to all ranks"),
    "plot": (("f",), ("the plot alone", "plots", "everywhere"), "Plot: earlier steps"),
}


@pytest.mark.parametrize("name", HELPED)
async def test_the_help_begins_with_the_screen_one_is_on(name: str) -> None:
    """Its sections come first, each key once and for what it does there; the keys of other screens follow."""
    keys, sections, meaning = HELPED[name]
    async with dashboard(StillSource(frame())).run_test(size=(90, 320)) as pilot:
        await pilot.press(*keys, "question_mark")
        await until(pilot, lambda: "other screens and dialogs" in seen(pilot.app), "the help")
        here, _, others = pilot.app.screen.query_one(Page).text.partition("── other screens and dialogs")
        titles = [line for line in here.splitlines() if line and not line.startswith(" ")]
        assert titles == list(sections)
        assert meaning in here
        assert meaning not in others
        named = [key for line in here.splitlines() if line.startswith("  ") and line[2] != " "
                 for key in line[2:17].split()]  # fmt: skip
        assert len(named) > 20
        assert [key for key, count in Counter(named).items() if count > 1] == []


@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_the_help_is_filled_before_it_is_painted(width: int) -> None:
    """Its rows are there as soon as the screen is, and as wide as they stay."""
    app = dashboard(StillSource(frame()))
    async with app.run_test(size=(width, 40)) as pilot:
        here = [("all ranks", key, f"meaning of {key}, and more of it that takes some room") for key in "abcdefgh"]
        help_screen = HelpScreen(here)
        await app.push_screen(help_screen)
        first = help_screen.query_one(Page).text
        assert "meaning of h" in first
        await until(pilot, lambda: "meaning of h" in seen(app), "the help")
        await pilot.pause()
        assert help_screen.query_one(Page).text == first


@pytest.mark.parametrize(
    ("chain", "counts", "back"),
    [
        ((PanelGrid, RunScreen), True, None),
        ((EventSearch, EventScreen), False, "Show all events again · Return to where you came from"),
        ((RunList, RunScreen), False, "Return to the ranks"),
        ((RankTable, RunScreen), True, "Show all ranks again"),
        ((PlotScreen,), True, None),
    ],
)
def test_a_key_has_one_line_for_all_that_it_does_here(chain: tuple[type, ...], counts: bool, back: str | None) -> None:
    """Where a filter may be set the way back is listed, too; digits are steps only where a number can be typed."""
    here, rest = keymap.help_tables(DdptopApp, {}, [*chain, DdptopApp], counts=counts, ascii_only=True)
    named = Counter(key for _, keys, _ in here for key in keys.split())
    assert [key for key, count in named.items() if count > 1] == []
    assert ("0-9" in named) == counts
    assert ("⌫" in named) == counts
    if back is not None:
        assert [meaning for _, keys, meaning in here if "esc" in keys.split()] == [back]
        assert back not in {meaning for _, _, meaning in rest}


@pytest.mark.parametrize(("width", "columns"), [(80, 1), (120, 2), (200, 2)])
async def test_the_help_has_two_columns_where_they_fit(width: int, columns: int) -> None:
    """The screen's own keys are beside each other in a wide terminal; no meaning is cut in any."""
    async with dashboard(StillSource(frame())).run_test(size=(width, 300)) as pilot:
        await pilot.press("question_mark")
        await until(pilot, lambda: "other screens and dialogs" in seen(pilot.app), "the help")
        text = pilot.app.screen.query_one(Page).text
        first = text.splitlines()[0]
        assert len(first.split("  ")) > 1 if columns == 2 else first == "panels"
        words = Counter(text.split())
        for binding in PanelGrid.BINDINGS:
            assert isinstance(binding, Binding)
            assert not Counter(binding.tooltip.split()) - words


async def test_the_help_is_filtered() -> None:
    """`/` takes a word of a key's meaning, or a key; esc clears the filter first, and then closes the help."""
    async with dashboard(StillSource(frame())).run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark", "slash", *"sort")
        page = pilot.app.screen.query_one(Page)
        await until(pilot, lambda: "Sort by the next column" in page.text, "filtered")
        assert "Choose the rank to the left" not in page.text
        await pilot.press("enter", "slash", "backspace", "backspace", "backspace", "backspace", "k")
        await until(pilot, lambda: "Kill the run or the chosen rank: asks first" in page.text, "a key")
        assert "Sort by" not in page.text
        await pilot.press("q", "z")
        await until(pilot, lambda: "nothing here has 'kqz'" in page.text, "nothing is found")
        await pilot.press("escape")
        await until(pilot, lambda: "Choose the rank to the left" in page.text, "all keys again")
        assert isinstance(pilot.app.screen, HelpScreen)
        await pilot.press("tab", "slash", *"sigstop")
        await until(pilot, lambda: "SIGSTOP to all ranks" in page.text, "signs and words are filtered, too")
        assert "○ starting" not in page.text
        await pilot.press("escape", "q")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "closed")
