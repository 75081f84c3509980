"""The screen of all events: the whole of a long one, one after the other, and what is searched for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support.screens.dashboards import SIZES, dashboard, footer_keys, seen, settled, still_app, until
from support.screens.frames import EVIL, NOW, StillSource, frame
from textual.pilot import Pilot

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import EventLine
from ddptop.tui.screens.lists import EventScreen, LogScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.views.screen.events import EventSearch

REFUSED = (
    "checkpoint refused: the script registers no checkpoint function: ddptop.agent.on_checkpoint(function), or "
    "--checkpoint-dir DIR for a program that comes with ddptop · ada (dashboard, pts/0)"
)

pytestmark = pytest.mark.usefixtures("utc")


def eventful(*more: str, before: int = 40) -> Frame:
    """Return a run in which much has happened, at last these."""
    lines = [
        EventLine(NOW - 100 + number, f"rank {number % 4} waits at {number}", None, "info") for number in range(before)
    ]
    lines.append(EventLine(NOW - 9, REFUSED, None, "warning"))
    lines += [EventLine(NOW - 8 + number, text, None, "info") for number, text in enumerate(more)]
    return frame(events=tuple(lines))


def squeezed(text: str) -> str:
    """Return a text without the spaces and ends of lines that wrapping has put in."""
    return "".join(text.split())


async def test_the_newest_event_is_whole_beside_the_views() -> None:
    """As far as there is room: its outcome at 80x24, with a sign where it is cut, and its actor, too, at 120x40."""
    async with dashboard(StillSource(eventful())).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "checkpoint refused: the script registers no" in seen(pilot.app), "the outcome")
        assert re.search(r"--checkpoint-dir DIR.*…", seen(pilot.app))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "(dashboard, pts/0)" in seen(pilot.app), "the actor")


async def test_each_event_can_be_chosen_and_is_then_whole() -> None:
    """From the newest up to the oldest and back with `end`, which is said; `escape` returns."""
    source = StillSource(eventful("resumed at step 12 · ada (shell)"))
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        assert isinstance(pilot.app.screen, EventScreen)
        await until(pilot, lambda: "resumed at step 12" in seen(pilot.app), "the newest")
        assert squeezed(REFUSED) not in squeezed(seen(pilot.app))
        assert "Follow" not in footer_keys(pilot.app)
        await pilot.press("up")
        await until(pilot, lambda: "pts/0" in seen(pilot.app), "the one above")
        wrapped = [line[12:] for line in seen(pilot.app).splitlines()]
        assert squeezed(REFUSED) in squeezed("".join(wrapped))
        assert "scrolled back: end follows again" in seen(pilot.app)
        await pilot.press("home")
        await until(pilot, lambda: "waits at 0 " in seen(pilot.app), "the oldest")
        await pilot.press("end")
        await until(pilot, lambda: "resumed at step 12" in seen(pilot.app), "the newest again")
        assert "following" in seen(pilot.app)
        assert "Events" not in footer_keys(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "back")


async def test_logs_and_events_take_the_place_of_each_other() -> None:
    """However often one changes between them, one way back leads to the ranks."""
    async with dashboard(StillSource(eventful())).run_test(size=(80, 24)) as pilot:
        for key, kind in (("g", LogScreen), ("e", EventScreen), ("g", LogScreen), ("e", EventScreen)):
            await pilot.press(key)
            await until(pilot, lambda kind=kind: isinstance(pilot.app.screen, kind), key)  # type: ignore[misc]
            assert len(pilot.app.screen_stack) == 2
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "back")


@pytest.mark.parametrize(
    ("key", "width", "said"), [("e", 80, "pausing: waiting for rank 1"), ("g", 50, "pausing: .*…")]
)
async def test_what_waits_for_ranks_is_said_above_logs_and_events(key: str, width: int, said: str) -> None:
    """As far as there is room beside the key that cancels it."""
    source = StillSource(replace(eventful(), waiting="pausing: waiting for rank 1"))
    async with dashboard(source).run_test(size=(width, 24)) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: re.search(f"{said} · space cancels", seen(pilot.app)), "the wait")


async def test_a_chosen_event_stays_chosen_while_others_come() -> None:
    """The list does not move under the reader; the newest is followed only where it is the chosen one."""
    source = StillSource(eventful("last"))
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "up")
        listing = pilot.app.screen.query_one(EventSearch)
        await until(pilot, lambda: listing.chosen is not None, "chosen")
        place = listing.scroll_y
        source.current = eventful("last", "later", "latest")
        await until(pilot, lambda: listing.count == (44, 44), "taken in")
        assert listing.chosen is not None
        assert (listing.chosen.text, listing.scroll_y) == (REFUSED, place)
        await pilot.press("end")
        source.current = eventful("last", "later", "latest", "the very last")
        await until(pilot, lambda: "the very last" in seen(pilot.app), "followed")


async def test_events_are_searched_by_their_words() -> None:
    """All words in any case; what is typed is shown, `q` is a letter, and `escape` shows all again before it leaves."""
    async with dashboard(StillSource(eventful("last"))).run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "slash", *"REFUSED function")
        await until(pilot, lambda: "/REFUSED function▏  1 of 42 events" in seen(pilot.app), "one is left")
        assert "waits at" not in seen(pilot.app)
        await pilot.press(*"q")
        await until(pilot, lambda: "no event has these words; esc shows all again" in seen(pilot.app), "none is left")
        await pilot.press("backspace", "enter")
        await until(pilot, lambda: "/REFUSED function  1 of 42" in seen(pilot.app), "the end of the words")
        await pilot.press("escape")
        await until(pilot, lambda: " 42 events" in seen(pilot.app), "all of them")
        assert isinstance(pilot.app.screen, EventScreen)


async def test_the_marked_event_is_in_sight_while_words_are_typed() -> None:
    """A chosen one that matches stays so; where it does not, the newest that does is marked, and followed."""
    async with dashboard(StillSource(eventful("last", before=80))).run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "home", *["down"] * 60)
        listing = pilot.app.screen.query_one(EventSearch)
        await until(pilot, lambda: listing.chosen is not None and listing.chosen.text.endswith("at 60"), "chosen")
        await pilot.press("slash", *"waits")
        await until(pilot, lambda: listing.count[0] == 80, "filtered")
        await until(pilot, lambda: "waits at 60" in seen(pilot.app), "in sight")
        assert listing.chosen is not None
        await pilot.press(*" 5", "enter")
        await until(pilot, lambda: listing.count[0] == 17, "narrower")
        assert listing.following
        assert listing._matching[listing._index].text == "rank 3 waits at 75"


async def test_what_is_in_sight_stays_when_the_oldest_events_go() -> None:
    """By as many lines as they took; a chosen one took several."""
    first = eventful("last", before=40)
    events = (first.events[-2], *first.events)
    source = StillSource(replace(first, events=events))
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "home")
        listing = pilot.app.screen.query_one(EventSearch)
        await until(pilot, lambda: listing.chosen is not None, "chosen")
        listing.scroll_to(y=9, animate=False)
        await until(pilot, lambda: listing.scroll_y == 9, "scrolled")
        top = listing._items[9].event
        source.current = replace(first, events=events[2:])
        await until(pilot, lambda: len(listing._events or ()) == len(events) - 2, "taken in")
        await until(pilot, lambda: listing._items[int(listing.scroll_y)].event == top, "the same on top")


async def test_a_click_chooses_an_event() -> None:
    """Also one below a wrapped one."""
    async with dashboard(StillSource(eventful("after it", before=3))).run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "up")
        listing = pilot.app.screen.query_one(EventSearch)
        await until(pilot, lambda: listing.chosen is not None, "chosen")
        height = len(listing._items)
        assert height > 5
        await pilot.click(EventSearch, offset=(20, height))
        await until(pilot, lambda: listing.chosen is None, "the last one is the newest")
        await pilot.click(EventSearch, offset=(20, 1))
        await until(
            pilot, lambda: listing.chosen is not None and listing.chosen.text.endswith("waits at 0"), "the first"
        )
        # All of them are in sight, and what is said is that a newer one will not be chosen.
        await until(pilot, lambda: "scrolled back: end follows again" in seen(pilot.app), "it says so")


@pytest.mark.parametrize("size", [(80, 24), (20, 8), (200, 50)])
async def test_what_happens_may_be_hostile(size: tuple[int, int]) -> None:
    """No text leaves its cells or ends the dashboard, whatever the size."""
    source = StillSource(replace(eventful(EVIL * 20, "", "x" * 400), state="failed"))
    async with dashboard(source).run_test(size=size) as pilot:
        await pilot.press("e", "up", "up", "pageup", "pagedown", "slash", *"[/", "enter", "escape", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "back")


@pytest.mark.parametrize(
    ("size", "keys"), [("80x24", ("up",)), ("120x40", ()), ("200x50", ("slash", *"waits at 3"))]
)  # fmt: skip
def test_pictures(snap_compare: Callable[..., bool], size: str, keys: tuple[str, ...]) -> None:
    """The screen at each size: a chosen event, the newest, and a search."""

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await settled(pilot, "e", *keys)

    assert snap_compare(still_app(eventful()), terminal_size=SIZES[size], run_before=before)
