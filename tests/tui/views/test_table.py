"""The table under keys and mouse, with a fake run behind it: order, filter, columns, selection."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from support.screens.dashboards import lines, numbers, table_of
from support.screens.frames import EVIL, NOW, StillSource, frame, rank_frame
from textual.events import Key
from textual.pilot import Pilot

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import clean
from ddptop.agent.wire import Verdict
from ddptop.agent.wire.frames import STATES
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.screens.dialogs.pickers import ColumnsDialog
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.views.table.columns import columns_of, fitting, placed
from ddptop.tui.views.table.table import RankTable


def group(world: int = 12) -> Frame:
    """Return ranks on three machines, of which rank 7 is stalled."""
    ranks = tuple(
        rank_frame(rank, "stalled" if rank == 7 else "running", host=f"node-{rank // 4}", loss=1.0 + rank % 5)
        for rank in range(world)
    )
    return frame(world=world, ranks=ranks)


async def opened(pilot: Pilot[None], *keys: str) -> DdptopApp:
    """Show the table and press keys."""
    await pilot.press("2", *keys)
    await pilot.pause()
    assert isinstance(pilot.app, DdptopApp)
    return pilot.app


def dashboard(shown_frame: Frame) -> DdptopApp:
    return DdptopApp(StillSource(shown_frame), clock=lambda: NOW)


async def test_the_chosen_rank_is_the_same_in_every_view() -> None:
    """What is chosen in the panels is chosen in the table, and the other way round."""
    async with dashboard(group()).run_test(size=(120, 40)) as pilot:
        await pilot.press("right")
        app = await opened(pilot)
        assert table_of(app).chosen == 1
        await pilot.press("down", "down", "1")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.view.id == "panels"
        assert app.screen.view.chosen == 3
        await pilot.press("enter")
        assert isinstance(app.screen, RankScreen)
        assert app.screen.rank == 3


async def test_keys_choose_lines() -> None:
    """Arrows, pages, home and end go through the lines and stop at the edges."""
    async with dashboard(group(300)).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot)
        for key, expected in (("up", 0), ("down", 1), ("tab", 2), ("shift+tab", 1), ("end", 299), ("down", 299)):
            await pilot.press(key)
            assert table_of(app).chosen == expected, key
        page = table_of(app).size.height - 2
        for key, expected in (("pageup", 299 - page), ("pagedown", 299), ("home", 0), ("pagedown", page)):
            await pilot.press(key)
            assert table_of(app).chosen == expected, key
        assert page in numbers(app), "the chosen line is in sight"


async def test_sorting_moves_lines_and_not_the_selection() -> None:
    """O reverses the order, o takes the next column; the chosen rank stays that rank, wherever it goes."""
    async with dashboard(group()).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot, "down", "I")
        assert numbers(app) == list(reversed(range(12)))
        assert table_of(app).chosen == 1
        await pilot.press("greater_than_sign")
        assert "state▲" in lines(app)[0].replace(" ", "").replace("rank", "")
        assert numbers(app)[-1] == 7, "by state: running before stalled"


async def test_a_title_sorts_when_it_is_clicked() -> None:
    """The first click on a title sorts, the largest first; the second turns it round; a click on a line chooses."""
    async with dashboard(group()).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot)
        at = lines(app)[0].index("loss") + 1
        await pilot.click(RankTable, offset=(at, 1))
        assert numbers(app)[:2] == [4, 9], "the largest loss first, equals in their own order"
        await pilot.click(RankTable, offset=(at, 1))
        assert numbers(app)[:3] == [0, 5, 10]
        await pilot.click(RankTable, offset=(10, 3))
        assert table_of(app).chosen == 5
        await pilot.click(RankTable, offset=(10, 4), times=2)
        assert isinstance(app.screen, RankScreen)
        assert app.screen.rank == 10


async def test_typing_filters_and_escape_brings_all_back() -> None:
    """The filter looks at number, host, state and activity; while it is typed no other key does what it does."""
    source = StillSource(group())
    async with DdptopApp(source, clock=lambda: NOW).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot, "slash", *"node-1 k g q")
        assert numbers(app) == []
        assert "No rank matches" in lines(app)[1]
        assert "esc shows all ranks" in lines(app)[3]
        await pilot.press(*["backspace"] * 6)
        assert numbers(app) == [4, 5, 6, 7]
        assert "4 of 12 ranks" in str(table_of(app).border_title)
        await pilot.press("enter")
        assert table_of(app).chosen == 4, "the hidden choice gives way to the first match"
        await pilot.press("escape")
        assert numbers(app) == list(range(12))
        await pilot.press("slash", *"stall")
        assert numbers(app) == [7]
        await pilot.press("escape", "slash", "1")
        assert numbers(app) == [1, 4, 5, 6, 7, 10, 11], "numbers that begin so, and hosts"
    assert source.asked == [], "typed letters are no commands"


async def test_keys_typed_in_one_go_are_the_filter() -> None:
    """Letters that come right behind the slash, as from a fast typist, are not taken for commands."""
    source = StillSource(group())
    async with DdptopApp(source, clock=lambda: NOW).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot)
        for key in ("slash", *"king"):
            app.post_message(Key(key, key if len(key) == 1 else "/"))
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert "/king" in str(table_of(app).border_title)


async def test_columns_are_chosen() -> None:
    """C ticks columns, what the script logs among them; the table shows what is ticked."""
    async with dashboard(group()).run_test(size=(200, 50)) as pilot:
        app = await opened(pilot)
        assert "accuracy" in lines(app)[0]
        assert "pid" not in lines(app)[0]
        await pilot.press("C")
        assert isinstance(app.screen, ColumnsDialog)
        await pilot.press("end", "up", "space")  # accuracy
        await pilot.press(*["up"] * 3, "space")  # pid
        await pilot.press("escape")
        await pilot.pause()
        assert "accuracy" not in lines(app)[0]
        assert "pid" in lines(app)[0]
        assert "4711" in lines(app)[1]
        await pilot.press("C", "u", "escape")
        await pilot.pause()
        assert "accuracy" in lines(app)[0]
        assert "pid" not in lines(app)[0]


def test_what_matters_most_goes_last() -> None:
    """A narrower terminal shows a part of what a wider one does, down to rank, state and step."""
    columns = columns_of(frame(logged=frozenset({"accuracy"})))
    before: set[str] = set()
    for width in range(20, 260):
        now = {column.key for column in fitting(columns, None, width)}
        assert before <= now, width
        assert sum(column.width + 2 for column in columns if column.key in now) <= width + 2
        before = now
    assert {"rank", "state"} <= {column.key for column in fitting(columns, None, 24)}


def test_copies_have_a_column_in_runs_on_a_device() -> None:
    """Batches are copied to a GPU: after the loader's column stands theirs; a run on the CPU has no empty column."""
    assert "copy" not in {column.key for column in columns_of(frame())}
    phases = {"data": 1.0, "copy": 2.0, "forward": 20.0}
    keys = [column.key for column in columns_of(frame(phases_ms=phases))]
    assert keys[keys.index("data") + 1] == "copy"


def test_the_phase_that_the_verdict_names_is_shown() -> None:
    """In 80 cells there is room for few phases: the one that the header speaks of is among them."""
    columns = columns_of(frame())
    for phase in ("data", "backward", "optimizer", "other"):
        assert phase in {column.key for column in fitting(columns, None, 78, phase)}
    assert "optimizer" not in {column.key for column in fitting(columns, None, 78)}


@pytest.mark.parametrize(("size", "told"), [((80, 24), True), ((300, 24), False)])
async def test_columns_without_room_are_counted(size: tuple[int, int], told: bool) -> None:
    """The title says how many of the usual columns the terminal has no room for."""
    async with DdptopApp(StillSource(frame()), clock=lambda: NOW).run_test(size=size) as pilot:
        view = table_of(await opened(pilot))
        left_out = sum(column.usual for column in view.columns) - len(view.shown)
        assert (left_out > 0) == told
        title = str(view.border_title)
        assert title.endswith(f" · C: +{left_out} columns") if told else "column" not in title


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "other"])
def test_a_phase_in_which_ranks_differ_has_its_column(phase: str) -> None:
    """Nobody is named yet, and 80 columns have room for half of all: the phase that one rank is slow in is there."""
    ranks = [rank_frame(0), rank_frame(1)]
    assert ranks[1].phases_ms is not None
    ranks[1] = replace(ranks[1], phases_ms={**ranks[1].phases_ms, phase: ranks[1].phases_ms[phase] + 30})
    columns = columns_of(frame())
    before = [column.key for column in fitting(placed(columns, [rank_frame(0)] * 2, ()), None, 78)]
    shown = [column.key for column in fitting(placed(columns, ranks, before), None, 78)]
    assert phase in shown
    unknown = [replace(rank, phases_ms={**(rank.phases_ms or {}), "data": None}) for rank in ranks]
    assert "data" not in {column.key for column in fitting(placed(columns, unknown, shown), None, 78)}


@pytest.mark.parametrize("state", STATES)
async def test_a_line_keeps_its_columns_in_every_state(state: str) -> None:
    """Whatever a rank is at, its numbers end where the others' do."""
    ranks = (rank_frame(0), rank_frame(1, state), replace(rank_frame(2), loss=None, step_ms=None, phases_ms=None))
    async with dashboard(frame(world=3, ranks=ranks)).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot)
        titles, *rows = lines(app)[:4]
        end = titles.index("step") + 4
        for row in rows:
            assert re.match(r"^ +\d+ .*[\d–]$", row[:end]), row
            assert row[end : end + 1] in ("", " "), row


async def test_the_slow_rank_is_marked_and_so_is_its_phase() -> None:
    """The mark is a sign and not a color alone."""
    shown_frame = replace(group(), verdicts=(Verdict(1, "slow_rank", "rank 3 is slow", 0, rank=3, phase="data"),))
    async with dashboard(shown_frame).run_test(size=(120, 40)) as pilot:
        app = await opened(pilot)
        assert [line for line in lines(app) if "◀" in line] == [lines(app)[4]]


async def test_text_from_outside_is_text() -> None:
    """Markup in host, activity, note and metric names is not obeyed; escapes were taken out on the way in."""
    evil = clean(EVIL)
    ranks = tuple(
        rank_frame(rank, host=evil, activity=evil, health=evil, metrics={evil: 1.0, "[bold]x": 2.0})
        for rank in range(3)
    )
    shown_frame = frame(world=3, ranks=ranks, logged=frozenset({evil, "[bold]x"}))
    async with dashboard(shown_frame).run_test(size=(200, 50)) as pilot:
        app = await opened(pilot)
        assert all(part in "\n".join(lines(app)) for part in ("[bold]x", "x[/foo] [bold"))
        await pilot.press("C", "end")
        painted = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
        assert "[bold]x" in painted
        await pilot.press("escape", "slash", *"[/bold")
        assert "/[/bold" in str(table_of(app).border_title)
        assert not any(ord(char) < 32 for char in painted)


async def test_tokens_and_mfu_have_columns_where_they_are_known() -> None:
    """Tokens in the place of samples, which can be asked for; ranks are sorted by MFU; elsewhere neither is there."""
    mfu = (0.2, 0.4, 0.1, 0.3)
    ranks = tuple(rank_frame(rank, tokens_per_s=1000.0 * rank, mfu=mfu[rank]) for rank in range(4))
    found = frame(world=4, ranks=ranks, tokens_per_s=6000.0, mfu=0.15)
    usual = [column.key for column in columns_of(found) if column.usual]
    assert {"tokens", "mfu"} <= set(usual)
    assert "samples" not in usual
    assert "samples" in {column.key for column in columns_of(found)}
    assert not {"tokens", "mfu"} & {column.key for column in columns_of(frame())}
    app = DdptopApp(StillSource(found), clock=lambda: NOW)
    async with app.run_test(size=(200, 40)) as pilot:
        app = await opened(pilot)
        at = lines(app)[0].index("MFU") + 1
        await pilot.click(RankTable, offset=(at, 1))
        assert numbers(app) == [1, 3, 0, 2]
        assert "40.0%" in lines(app)[1]
