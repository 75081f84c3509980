"""The views that look back: the heatmap, the timeline of a step, and a rank's own screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import textual.constants
from msgspec.structs import replace
from rich.console import RenderableType
from support.screens.dashboards import SIZES, rests, seen, settled, still_app
from support.screens.frames import NOW, StillSource, frame, history_of, rank_frame, recorded, verdict_frame
from support.values.histories import RecordedHistory
from textual.app import App
from textual.geometry import Region, Size
from textual.screen import Screen

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire import Collective, Step
from ddptop.agent.wire.steps.numbers import WIDTHS_S
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.drawing.lines import width_of
from ddptop.tui.drawing.theme import DARK, SHADE_SIGNS, SHADES, ink
from ddptop.tui.model.metrics import METRICS
from ddptop.tui.screens.rank import RankScreen, fact_rows, history_rows, latency_rows
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.views.heatmap.cells import HeatCells
from ddptop.tui.views.heatmap.heatmap import Heatmap
from ddptop.tui.views.ranks import RankView
from ddptop.tui.views.timeline.timeline import TimelineView

INK = ink(DARK.name)


@pytest.fixture(autouse=True)
def _colors(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the terminal that the tests run in decides what the heatmap is made of.
    monkeypatch.setattr(textual.constants, "COLOR_SYSTEM", "truecolor")


@pytest.fixture(scope="module")
def few() -> Frame:
    """Four ranks, of which the third is slow."""
    return replace(verdict_frame(), history=history_of(4))


@pytest.fixture(scope="module")
def many() -> Frame:
    """More ranks than any screen has half lines."""
    return frame(world=200, history=history_of(200, seconds=40, slow=137))


def run_screen(app: App[None]) -> RunScreen:
    assert isinstance(app.screen, RunScreen)
    return app.screen


def view_of(app: App[None]) -> RankView:
    return run_screen(app).view


def heatmap_of(app: DdptopApp) -> Heatmap:
    view = view_of(app)
    assert isinstance(view, Heatmap)
    return view


def timeline_of(app: App[None]) -> TimelineView:
    view = view_of(app)
    assert isinstance(view, TimelineView)
    return view


@pytest.mark.parametrize("width", [1, 5, 30])
async def test_a_map_that_has_just_become_narrow_is_painted(
    few: Frame, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the new width is there, although nobody has told the view of another size."""
    app = still_app(few)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await settled(pilot)
        view = heatmap_of(app)
        # As between a resize and its message.
        monkeypatch.setattr(Heatmap, "size", Size(width, view.size.height))
        lines = view.render_lines(Region(0, 0, width, view.size.height))
        monkeypatch.undo()
    assert {line.cell_length for line in lines} == {width}


@pytest.mark.parametrize(
    ("name", "size", "keys"),
    [
        ("heatmap", "80x24", ("3",)),
        ("heatmap", "120x40", ("3", "down", "left", "left")),
        ("heatmap", "200x50", ("3", "minus")),
        ("timeline", "80x24", ("4", "down")),
        ("timeline", "120x40", ("4",)),
        ("timeline", "200x50", ("4", "left")),
        ("rank", "80x24", ("right", "right", "enter", *["pagedown"] * 3)),
        ("rank", "120x40", ("right", "right", "enter")),
        ("rank", "200x50", ("right", "right", "enter")),
    ],
)
def test_few_ranks(snap_compare: Callable[..., bool], few: Frame, name: str, size: str, keys: tuple[str, ...]) -> None:
    """What each view shows of four ranks."""

    async def before(pilot) -> None:
        await settled(pilot)
        await settled(pilot, *keys)

    assert snap_compare(still_app(few), terminal_size=SIZES[size], run_before=before)


@pytest.mark.parametrize(("name", "key"), [("heatmap", "3"), ("timeline", "4")])
def test_many_ranks(snap_compare: Callable[..., bool], many: Frame, name: str, key: str) -> None:
    """Two hundred ranks at 80x24: rows of several in the heatmap, some of the ranks in the timeline."""

    async def before(pilot) -> None:
        await settled(pilot)
        await settled(pilot, key, "n")
        await rests(pilot)

    assert snap_compare(still_app(many), terminal_size=SIZES["80x24"], run_before=before)


@pytest.mark.parametrize("way", ["NO_COLOR", "16 colors"])
async def test_without_colors_the_heatmap_is_made_of_signs(
    monkeypatch: pytest.MonkeyPatch, few: Frame, way: str
) -> None:
    """The slow rank has the strongest sign, the others weak ones, and no half block is left."""
    if way == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.setattr(textual.constants, "COLOR_SYSTEM", "standard")
    app = still_app(few)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot, "3", "down", "down")
        lines = seen(app).splitlines()
        slow = next(line for line in lines if line.startswith("▸2"))
        others = next(line for line in lines if line.startswith(" 1"))
        assert set(slow[4:-2].strip()) == {SHADE_SIGNS[-1]}
        assert set(others[4:-2].strip()) <= set(SHADE_SIGNS[:5])


async def test_the_cursor_reads_values(few: Frame) -> None:
    """Rank, time, step and value below the cursor are those of the record there."""
    app = still_app(few)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot, "3", "down", "down", *["left"] * 10)
        heatmap = heatmap_of(app)
        history = few.history
        assert history is not None
        assert heatmap.chosen == 2
        at = heatmap._at
        inside = [each.step for each in history.steps.of(2) if each.step.end_at_ns // 10**9 == at]
        own = sum(each.wall_ns - (each.wait_ns or 0) for each in inside) / len(inside) / 1e6
        reading = next(line for line in seen(app).splitlines() if "▸ rank 2" in line)
        assert f"{own:.1f} ms" in reading
        assert f"{heatmap._newest - at} s ago" in reading
        assert any(f"step {each.step:,}" in reading for each in inside)


async def test_the_mark_of_the_cursor_covers_no_time(few: Frame) -> None:
    """Wherever the cursor is, each time on the axis can be read whole, but for the one at the very edge."""
    app = still_app(few)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot, "3")
        for _ in range(26):
            axis = next(line for line in seen(app).splitlines() if "▲" in line)
            times = axis.replace("▲", " ").replace("│", " ").split()
            assert [each for each in times if each != "now"] == ["-60s", "-40s", "-20s"]
            await pilot.press("left")


def test_an_evaluation_does_not_set_the_scale() -> None:
    """13 of each 33 s are one long step: a rank that is 250 ms behind on 600 is seen beside it, whatever is shown."""
    history = RecordedHistory(2)
    end = NOW - 130
    for number in range(1, 101):
        evaluates = 12_000 if not number % 24 else 0
        end += (850 + evaluates) / 1e3
        for rank, behind in enumerate((0, 250)):
            own = 600 + behind + evaluates + number % 7
            history.take(rank, recorded(number, round(end * 1e9), own, 850 + evaluates))
    history.catch_up()
    for metric in ("own", "data"):
        heat = HeatCells(
            history.by_time, metric, 0, history.by_time.bucket(0, end), 110, 4, halves=True, shades=SHADES
        )  # fmt: skip
        (faster, *_), (slower, *_) = (heat.key(line) for line in (0, 2))
        usual = [(a, b) for a, b in zip(faster, slower, strict=True) if a != b]
        assert len(usual) > 55, metric
        assert all(behind - ahead > SHADES // 2 for ahead, behind in usual), metric
        assert heat.longest is not None
        assert 2400 < heat.longest < 2700
    few_seconds = HeatCells(
        history.by_time, "own", 0, history.by_time.bucket(0, end), 3, 4, halves=True, shades=SHADES
    )  # fmt: skip
    assert few_seconds.longest is None


def test_a_young_run_fills_the_map(few: Frame) -> None:
    """74 s in 115 cells take all of them, each second at least one, and each cell is of the second it is drawn for."""
    history = history_of(2, 74)
    last = history.by_time.bucket(0, NOW) - 1
    heat = HeatCells(history.by_time, "own", 0, last, 115, 4, halves=True, shades=SHADES, fills=True)
    assert 70 <= heat.columns <= 74
    assert sum(length for length, *_ in heat.runs(0)) == heat.width == 115
    assert 0 not in heat.key(0)[0]
    buckets = [heat.bucket_at(cell) for cell in range(115)]
    assert buckets == sorted(buckets)
    assert sorted(set(buckets)) == list(range(last - heat.columns + 1, last + 1))
    assert all(heat.bucket_at(heat.cell_of(bucket)) == bucket for bucket in buckets)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_view_is_painted_whole_from_the_first_time_on(
    size: tuple[int, int], few: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its key nothing is painted of a view but what it shows at last: no table without lines, no empty map."""
    app = still_app(few)
    painted: list[list[str]] = []
    async with app.run_test(size=size) as pilot:
        await rests(pilot)
        shows = app._display

        def display(screen: Screen[Any], renderable: RenderableType | None) -> None:
            shows(screen, renderable)
            if renderable is not None and not app._batch_count:
                painted.append(shown_by(app))

        monkeypatch.setattr(app, "_display", display)
        for key in "2341":
            before = shown_by(app)
            painted.clear()
            await pilot.press(key)
            await rests(pilot)
            assert shown_by(app) != before, key
            assert all(lines in (before, shown_by(app)) for lines in painted), key


def shown_by(app: DdptopApp) -> list[str]:
    """Return the lines of the view that are on the screen."""
    screen = app.screen
    assert isinstance(screen, RunScreen)
    region = screen.view.region
    return seen(app).splitlines()[region.y : region.bottom]


async def test_keys_of_the_heatmap(few: Frame) -> None:
    """Each goes through metrics, time and ranks, and back; none leads out of what is kept."""
    app = still_app(few)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot, "3")
        heatmap = heatmap_of(app)
        seen_metrics = []
        for metric in [*list(METRICS)[1:], next(iter(METRICS))]:
            await pilot.press("m")
            assert heatmap.metric == metric
            seen_metrics.append(METRICS[metric].title in seen(app))
        assert all(seen_metrics)
        await pilot.press("B")
        assert heatmap.metric == "memory"
        edge = heatmap._edge
        await pilot.press("left_square_bracket")
        assert heatmap._edge == edge - heatmap._width // 2
        assert "now" not in next(line for line in seen(app).splitlines() if "▲" in line)
        for _ in range(20):
            await pilot.press("left_square_bracket")
        assert few.history is not None
        assert edge - heatmap._edge <= few.history.by_time.columns
        await pilot.press("right_square_bracket", "end")
        assert heatmap._edge == edge
        await pilot.press(*["left"] * 30)
        moment = heatmap._at * WIDTHS_S[heatmap.level]
        await pilot.press("minus", "minus")
        assert heatmap.level == 2
        assert abs(heatmap._at * WIDTHS_S[2] - moment) <= WIDTHS_S[2]
        await pilot.press("plus", "equals_sign", "plus", "plus")
        assert heatmap.level == 0
        await pilot.press("m", "pagedown")
        assert heatmap.chosen == 3
        await pilot.press("home")
        assert heatmap.chosen == 0
        await pilot.press("n")
        assert heatmap.chosen == 2
        await pilot.press("up", "up", "up")
        assert heatmap.chosen == 0


async def test_a_row_of_many_ranks_leads_to_the_one_that_it_shows(many: Frame) -> None:
    """Moving by rows chooses the highest of each; `n` finds the slow one of two hundred."""
    app = still_app(many)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot, "3", "n")
        heatmap = heatmap_of(app)
        assert heatmap._cells is not None
        group = heatmap._cells.bands.group
        assert group > 1
        assert heatmap.chosen == 137
        await pilot.press("down")
        worst = heatmap._cells.worst(137 // group + 1, heatmap._at)
        assert worst is not None
        assert heatmap.chosen == worst[0]


async def test_the_selection_is_the_same_in_all_views(few: Frame) -> None:
    """Panels, heatmap, timeline, the rank's screen and the mouse choose one rank for all."""
    app = still_app(few)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot, "right", "3")
        assert view_of(app).chosen == 1
        await settled(pilot, "down", "4")
        assert view_of(app).chosen == 2
        await settled(pilot, "down", "1")
        assert view_of(app).chosen == 3
        await settled(pilot, "3")
        await pilot.click(Heatmap, offset=(60, 2))
        assert view_of(app).chosen == 0
        await settled(pilot, "4")
        await pilot.click(TimelineView, offset=(60, 4))
        assert view_of(app).chosen == 1
        await pilot.click(TimelineView, offset=(60, 6), times=2)
        assert isinstance(app.screen, RankScreen)
        assert app.screen.rank == 2


async def test_keys_of_the_timeline(few: Frame) -> None:
    """Back and on through the steps that are kept, and to the rank that came last; the end is followed again."""
    app = still_app(few)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot, "4")
        view = timeline_of(app)
        assert few.history is not None
        numbers = few.history.steps.numbers({0, 1, 2, 3})
        assert view.number == numbers[-1]
        for key, expected in (
            ("left", -2), ("left", -3), ("right", -2), ("left_square_bracket", -12), ("right_square_bracket", -2),
            ("home", 0), ("left", 0),
        ):  # fmt: skip
            await pilot.press(key)
            assert view.number == numbers[expected], key
            assert f"step {numbers[expected]:,}" in seen(app)
            assert not view.follows
        await pilot.press("end")
        assert view.follows
        # Some steps may be complete since the last that was shown.
        view.number = numbers[-3]
        await pilot.press("right")
        assert view.follows, "there is nothing newer to go on to"
        await pilot.press("n")
        assert view.chosen == 2
        await pilot.press("pageup")
        assert view.chosen == 0


async def test_the_newest_step_is_followed_and_an_older_one_stays() -> None:
    """New steps come into sight by themselves, unless one has gone back."""
    history = history_of(2, seconds=10)
    source = StillSource(frame(world=2, history=history))
    async with DdptopApp(source, clock=lambda: NOW).run_test(size=(80, 24)) as pilot:
        await settled(pilot, "4")
        view = timeline_of(pilot.app)
        before = view.number
        assert before is not None

        def goes_on(number: int) -> None:
            for rank in range(2):
                history.take(rank, recorded(number, int(NOW * 1e9), 60, 80))
            history.catch_up()
            view._due = 0.0
            view.show(source.current)

        goes_on(before + 1)
        assert view.number == before + 1
        await pilot.press("left")
        goes_on(before + 2)
        assert view.number == before


async def test_only_what_is_drawn_needs_its_steps(many: Frame) -> None:
    """The timeline asks for the ranks in sight, the heatmap for none but the chosen one."""
    app = still_app(many)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot, "3")
        assert run_screen(app).in_sight == {0}
        await settled(pilot, "4", "pagedown", "pagedown")
        drawn = {line[1:5].strip() for line in seen(app).splitlines() if line[:6].strip(" ▸").isdigit()}
        assert {str(rank) for rank in run_screen(app).in_sight} == drawn


async def test_no_past_is_an_empty_view_that_says_so() -> None:
    """Before the first step, and where no history is held, nothing breaks."""
    for history in (None, history_of(2, seconds=0)):
        app = still_app(frame("starting", world=2, history=history))
        async with app.run_test(size=(80, 24)) as pilot:
            for key in ("3", "m", "left", "n", "minus", "4", "left", "n", "end", "down"):
                await settled(pilot, key)
            assert "no step is complete yet" in seen(app)
            await settled(pilot, "3")
            assert "no step" in seen(app) or "no value in sight" in seen(app)


async def test_standing_still_costs_no_repaint(few: Frame) -> None:
    """The same frame again sends no line of the map and none of the timeline anew."""
    app = still_app(few)
    async with app.run_test(size=(120, 40)) as pilot:
        for key in ("3", "4"):
            await settled(pilot, key)
            view = view_of(app)
            view._exchange_repaint_regions()
            view.show(few)
            assert sum(region.height for region in view._exchange_repaint_regions()) <= 4, key


def text_of(row) -> str:
    return "".join(segment.text for segment in row)


def test_histories_show_what_is_kept() -> None:
    """Every number has its last value and its course; a run whose history is not held has no such part."""
    shown_frame = replace(frame(), history=history_of(4, seconds=100))
    for height in (1, 2):
        rows = [text_of(row) for row in history_rows(shown_frame, 2, 80, INK, height=height)]
        assert len(rows) == height * len(METRICS) + 1
        assert all(len(row) <= 80 for row in rows)
        data = next(row for row in rows if row.startswith("  data"))
        assert "ms" in data
    assert history_rows(frame(history=None), 2, 80, INK) == []
    unseen = replace(frame(), history=history_of(4, seconds=0))
    assert "–" in text_of(history_rows(unseen, 0, 80, INK)[0])


def test_all_reduces_are_counted_bucket_by_bucket() -> None:
    """A hundred steps of two buckets: their own sizes, medians and p99, on one scale."""
    steps = [
        replace_calls(number, (Collective("all_reduce", 0, (10 + number % 10) * 10**6, 25 << 20, 1),
                               Collective("broadcast", 0, 10**9, 8, 1),
                               Collective("all_reduce", 0, 100 * 10**6, 1 << 20, 2)))
        for number in range(1, 101)
    ]  # fmt: skip
    heading, first, second = (text_of(row) for row in latency_rows(steps, 80, INK))
    assert "10 ms" in heading
    assert "100 ms" in heading
    assert first.split()[:5] == ["0", "25", "MiB", "14.0", "19.0"]
    assert second.split()[:5] == ["1", "1", "MiB", "100.0", "100.0"]
    assert second.rstrip().endswith("█")
    assert second.count("█") == 1
    assert latency_rows([], 80, INK) == []


def replace_calls(number: int, calls: tuple[Collective, ...]) -> Step:
    from msgspec.structs import replace as changed

    return changed(recorded(number, number * 10**9, 60, 80), collectives=calls)


def test_the_facts_tell_of_device_agent_and_process() -> None:
    """Device times stand beside the host's, what the agent could not do and what it runs on are there."""
    rank = rank_frame(
        1, device_ms={"data": 0.5, "forward": 20.5, "backward": 40.5, "optimizer": 3.5, "other": 0.1}, timed_every=4,
        faults=3, fault="ValueError: in a hook", dropped=7, torch_version="2.15.0", python_version="3.11.2",
    )  # fmt: skip
    shown_frame = replace(frame(), history=history_of(4, seconds=10))
    for width in (40, 76, 120):
        rows = fact_rows(rank, shown_frame, width, INK)
        assert max(map(width_of, rows)) <= max(width, 66)
    text = "\n".join(text_of(row) for row in rows)
    for part in ("20.5 ms on gpu", "one step of 4 timed", "3 errors, the last: ValueError", "7 dropped", "torch 2.15.0",
                 "Python 3.11.2", "4712", "node-a", "bucket"):  # fmt: skip
        assert part in text, part


def test_the_work_of_a_rank_is_a_fact_where_it_is_known() -> None:
    """Its speed and MFU while it makes steps; tokens beside samples."""
    known = rank_frame(0, samples_per_s=412.0, tokens_per_s=103_000.0, flops=12.3e12, flops_per_s=151e12, mfu=0.412)
    for changed, said in (
        ({}, ["412 samples/s", "103k tokens/s", "12.3 TFLOP a step, 151 TFLOP/s, MFU 41.2%"]),
        ({"mfu": None}, ["12.3 TFLOP a step, 151 TFLOP/s, MFU –"]),
        ({"flops_per_s": None}, ["12.3 TFLOP a step"]),
    ):
        rows = [" ".join(text_of(row).split()) for row in fact_rows(replace(known, **changed), frame(), 80, INK)]
        assert [each for each in said if not any(row.endswith(each) for row in rows)] == [], rows
    unknown = "".join(text_of(row) for row in fact_rows(rank_frame(0), frame(), 80, INK))
    assert not any(each in unknown for each in ("tokens", "FLOP", "MFU"))
