"""The screen of stacks: asked when it opens, again by a key, and what is recorded of a hang first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support.screens.dashboards import SIZES, dashboard, footer_keys, seen, settled, until
from support.screens.frames import EVIL, NOW, StillSource, frame, hung_frame
from support.values.inspections import MODEL, SLEEPS, absent, hung, inspection, stopped, thread
from textual.pilot import Pilot

from ddptop.agent import wire
from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.client.frame import Frame
from ddptop.tui.link.source import ReadOnly
from ddptop.tui.screens.lists import EventScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.screens.stacks import StacksScreen
from ddptop.tui.views.stacks.places import StackList

pytestmark = pytest.mark.usefixtures("utc")


def source_of(shown: Frame, *inspections: wire.Inspection, missing: dict[int, str] | None = None) -> StillSource:
    """Return a run whose ranks stand there."""
    source = StillSource(shown)
    source.inspector.stacks = Stacks(NOW, inspections, missing)
    return source


def many() -> StillSource:
    """Return a hang with all that can be known and not be known of a rank."""
    odd = inspection(7, threads=(thread(MODEL),), open=(), cpu_percent=99.0)
    return source_of(hung_frame(), *hung(6, 1), stopped(6), odd, missing={8: "no answer", 9: "ended, exit code 1"})


def heads(app_text: str) -> list[str]:
    """Return the ranks of the places on the screen, from the top."""
    lines = (line.strip() for line in app_text.splitlines())
    return [line[2:].split("  ")[0] for line in lines if line[:2] in ("● ", "✗ ")]


async def test_the_ranks_are_asked_and_told_by_their_place() -> None:
    """The one that never came first, with its line and its text; `escape` leads back to the ranks."""
    source = source_of(hung_frame(), *hung())
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: "time.sleep(3600)" in seen(pilot.app), "the line of the odd one")
        assert heads(seen(pilot.app)) == ["rank 1", "ranks 0, 2-3 (3)"]
        assert "rank 1 hangs" in seen(pilot.app)
        assert "gloo's timeout in 1,742 s" in seen(pilot.app)
        assert "4 ranks at 2 places" in seen(pilot.app)
        assert source.inspector.asked == [False]
        assert "Stacks" not in footer_keys(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "back")


async def test_the_rank_whose_screen_it_was_comes_first() -> None:
    """However many stand elsewhere; a rank chosen by its number comes first, too."""
    source = source_of(frame(world=6), *hung(6, culprit=4))
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, RankScreen), "rank 0")
        await pilot.press("s")
        await until(pilot, lambda: heads(seen(pilot.app)) == ["ranks 0-3, 5 (5)", "rank 4"], "rank 0 first")
        screen = pilot.app.screen
        assert isinstance(screen, StacksScreen)
        screen.choose(4)
        await until(pilot, lambda: heads(seen(pilot.app)) == ["rank 4", "ranks 0-3, 5 (5)"], "rank 4 first")


async def test_it_says_what_it_waits_for_and_takes_keys_meanwhile() -> None:
    """Nobody is asked twice at once; the answer comes by itself, and `r` and `n` ask again."""
    source = source_of(frame(world=256), *(inspection(rank) for rank in range(256)))
    source.inspector.holds.clear()
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: "asking 256 ranks …" in seen(pilot.app), "the question")
        await pilot.press("r", "t")
        await until(pilot, lambda: pilot.app.theme == "ddptop-light", "a key is obeyed")
        assert source.inspector.asked == [False]
        source.inspector.holds.set()
        await until(pilot, lambda: "256 ranks at 1 place" in seen(pilot.app), "the answer")
        await pilot.press("r")
        await until(pilot, lambda: source.inspector.asked == [False, False], "again")
        await until(pilot, lambda: "asking" not in seen(pilot.app), "answered again")
        await pilot.press("n")
        await until(pilot, lambda: source.inspector.asked == [False, False, True], "with native frames")


async def test_a_question_ends_with_its_screen() -> None:
    """So that a dashboard that is left waits for no rank."""
    source = source_of(frame(), *hung())
    source.inspector.holds.clear()
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: source.inspector.asked, "asked")
        await pilot.press("escape")
        await until(pilot, lambda: source.inspector.cancelled, "cancelled")


async def test_what_is_recorded_of_a_hang_comes_first() -> None:
    """With its time; the ranks are asked by the key, and then what they tell stands there."""
    source = source_of(hung_frame(), *hung(4, 2))
    source.inspector.at_hang = Stacks(NOW - 11, hung(), recorded=True)
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: "recorded at 07:59:49, in the hang" in seen(pilot.app), "it")
        assert heads(seen(pilot.app))[0] == "rank 1"
        assert source.inspector.asked == []
        await pilot.press("r")
        await until(pilot, lambda: "ranks at 2 places" in seen(pilot.app), "now")
        assert "rank 2" in heads(seen(pilot.app))


async def test_what_is_recorded_of_an_earlier_hang_is_not_shown() -> None:
    """Neither while the run hangs again nor while it runs."""
    for shown in (hung_frame(), frame()):
        source = source_of(shown, *hung(4, 2))
        source.inspector.at_hang = Stacks(NOW - 60, hung(), recorded=True)
        async with dashboard(source).run_test(size=(120, 40)) as pilot:
            await pilot.press("s")
            await until(pilot, lambda: "4 ranks at 2 places" in seen(pilot.app), "what is so now")
            assert "rank 2" in heads(seen(pilot.app))


@pytest.mark.parametrize("recorded", [False, True])
async def test_an_ended_run_shows_what_was_recorded(recorded: bool) -> None:
    """Or the reason why there is nothing."""
    source = source_of(frame("failed"))
    source.inspector.refusal = "run resnet-7f3a is over (failed)"
    if recorded:
        source.inspector.at_hang = Stacks(NOW - 12, hung(), recorded=True)
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: ("time.sleep(3600)" if recorded else "is over") in seen(pilot.app), "what there is")
        await pilot.press("r")
        await until(pilot, lambda: len(source.inspector.asked) == 2 - recorded, "asked")
        await until(pilot, lambda: "is over (failed)" in seen(pilot.app), "the reason")
        assert ("time.sleep(3600)" in seen(pilot.app)) == recorded


async def test_places_are_searched_by_words() -> None:
    """In stacks, sources and heads; what is typed is shown, and `escape` shows all again before it leaves."""
    async with dashboard(many()).run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: "time.sleep" in seen(pilot.app), "the stacks")
        await pilot.press("slash", *"TIME.SLEEP main")
        await until(pilot, lambda: "/TIME.SLEEP main▏  1 of 6 places" in seen(pilot.app), "the words")
        assert heads(seen(pilot.app))[0] == "rank 1"
        await pilot.press(*"q")
        await until(pilot, lambda: "in no stack are these words; esc shows all again" in seen(pilot.app), "none")
        await pilot.press("enter", "escape")
        await until(pilot, lambda: "time.sleep" in seen(pilot.app), "all again")
        assert isinstance(pilot.app.screen, StacksScreen)


async def test_a_long_list_scrolls_and_stays_where_it_is() -> None:
    """New frames of the run and the end of the list move nothing; a new answer begins at the top."""
    source = source_of(frame(world=64), *(absent(rank, problem=f"line {rank}") for rank in range(64)))
    async with dashboard(source).run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: "line 0" in seen(pilot.app), "the top")
        await pilot.press("end")
        await until(pilot, lambda: "line 63" in seen(pilot.app), "the end")
        await pilot.press("pageup")
        place = pilot.app.screen.query_one(StackList).scroll_target_y
        source.current = replace(source.current, step=1300)
        await pilot.resize_terminal(100, 24)
        await until(pilot, lambda: pilot.app.screen.query_one(StackList).scroll_y == place, "the same place")
        await pilot.press("r")
        await until(pilot, lambda: pilot.app.screen.query_one(StackList).scroll_y == 0, "from the top")


async def test_events_take_the_place_of_stacks() -> None:
    """One way back leads to the ranks."""
    async with dashboard(many()).run_test(size=(80, 24)) as pilot:
        await pilot.press("s", "e")
        await until(pilot, lambda: isinstance(pilot.app.screen, EventScreen), "events")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(pilot.app.screen, StacksScreen), "stacks")
        assert len(pilot.app.screen_stack) == 2


async def test_who_may_only_look_on_sees_stacks() -> None:
    """They change nothing."""
    source = source_of(hung_frame(), *hung())
    assert ReadOnly(source).inspector is source.inspector


@pytest.mark.parametrize("size", [(20, 5), (80, 24)])
async def test_stacks_may_be_hostile(size: tuple[int, int]) -> None:
    """No text leaves its cells or ends the dashboard, however long the lines are."""
    frames = (wire.Frame(EVIL, EVIL * 5, 1, EVIL * 5), wire.Frame("", "", 0), *SLEEPS)
    source = source_of(frame(), inspection(0, threads=(thread(frames, EVIL),), problem=EVIL), inspection(1, threads=()))
    async with dashboard(source).run_test(size=size) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: source.inspector.asked, "asked")
        await pilot.press("right", "down", "slash", *"[/", "enter", "escape", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "back")


@pytest.mark.parametrize("size", SIZES)
def test_pictures(snap_compare: Callable[..., bool], size: str) -> None:
    """The screen at each size: a hang, a rank under SIGSTOP, one that works, and two of which nothing is known."""

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await settled(pilot, "s")
        await until(pilot, lambda: "10" not in heads(seen(pilot.app)) and heads(seen(pilot.app)), "the stacks")
        await pilot.pause()

    assert snap_compare(dashboard(many()), terminal_size=SIZES[size], run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_pictures_of_the_run(snap_compare: Callable[..., bool], size: str) -> None:
    """The main screen of a run that hangs: who, where, the time that is left, and what can be done."""
    assert snap_compare(dashboard(StillSource(hung_frame())), terminal_size=SIZES[size], run_before=settled)
