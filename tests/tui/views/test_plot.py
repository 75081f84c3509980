"""The plot, the held view and the looks of the states: under their keys, and as snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from support.screens.dashboards import INK, KEYS, SIZES, dashboard, rests, seen, settled, still_app, text_of, until
from support.screens.frames import EVIL, NOW, StillSource, frame, history_of, rank_frame, recorded, verdict_frame
from support.values.histories import RecordedHistory
from textual.app import App
from textual.content import Content
from textual.pilot import Pilot
from textual.widgets import OptionList

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire import Step
from ddptop.agent.wire.frames import ENDED, STATES, EventLine
from ddptop.agent.wire.incoming import clean_name
from ddptop.agent.wire.steps.numbers import CUSTOM
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.drawing.lines import Drawn
from ddptop.tui.screens.dialogs.pickers import MetricPicker
from ddptop.tui.screens.lists import LogScreen
from ddptop.tui.screens.plot import PlotScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.views.plot import contents
from ddptop.tui.views.plot import plot as plot_module
from ddptop.tui.views.plot.contents import Contents
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.plot.plot import Plot
from ddptop.tui.views.ranks import RankView
from ddptop.tui.views.screen.header import header_rows

pytestmark = pytest.mark.usefixtures("utc")


def test_the_plot_shows_the_phase_in_which_a_rank_is_slow() -> None:
    """While a rank is slow in a phase, that phase; else the loss; and always what the user has chosen."""
    look = contents.Look()
    look.follow(verdict_frame())
    assert look.metric == "data"
    look.follow(frame())
    assert look.metric == "loss"
    look.metric, look.chosen = "memory", True
    look.follow(verdict_frame())
    assert look.metric == "memory"


async def plotted(pilot: Pilot[None]) -> PlotPlaceholder:
    """Wait until the plot of the screen is drawn."""
    app = pilot.app
    placeholder = app.screen.query_one(PlotPlaceholder)
    await until(pilot, lambda: placeholder.plot is not None and placeholder.plot.contents is not None, "a curve")
    await until(pilot, lambda: not plot_of(placeholder).has_class("-empty") and dots(app), "the curve")
    await pilot.pause()
    return placeholder


def plot_of(placeholder: PlotPlaceholder) -> Plot:
    """Return the plot, which is there."""
    assert placeholder.plot is not None
    return placeholder.plot


def contents_of(placeholder: PlotPlaceholder) -> Contents:
    """Return what is drawn."""
    drawn = plot_of(placeholder).contents
    assert drawn is not None
    return drawn


def dots(app: App[None]) -> int:
    """Count the cells in which there is a line."""
    return sum("⠀" < char <= "⣿" for char in seen(app))


def title(placeholder: PlotPlaceholder) -> str:
    """Return what stands above the plot."""
    return Content.from_markup(str(plot_of(placeholder).border_title)).plain


def is_titled(placeholder: PlotPlaceholder, said: str) -> bool:
    return said in title(placeholder)


def differs(app: App[None], before: str) -> bool:
    return seen(app) != before


async def test_keys_zoom_scroll_scale_and_smooth() -> None:
    """Each key changes the part of the run or the way it is drawn, the title says how, and all can be undone."""
    async with dashboard(StillSource(frame())).run_test(size=(120, 40)) as pilot:
        placeholder = await plotted(pilot)
        usual = "loss over the last 500 steps · ranks [0] 1  2  3  · a: whole run"
        assert title(placeholder) == usual
        for key, said in (
            ("a", "over the whole run · "), ("plus", "last 600 steps · "),
            ("plus", "last 300 steps"), ("left_square_bracket", "steps 750–1,049 · "),
            ("right_square_bracket", "last 300 steps"), ("minus", "last 600 steps"), ("y", "· log"),
            ("w", "· lightly smoothed"), ("w", "· strongly smoothed"),
            ("minus", "· a: last 500 steps"),
        ):  # fmt: skip
            before = seen(pilot.app)
            await pilot.press(key)
            await until(pilot, partial(is_titled, placeholder, said), said)
            await until(pilot, partial(differs, pilot.app, before), f"{key} is drawn")
        await pilot.press("w", "y", "a")
        await until(pilot, lambda: title(placeholder) == usual, "as before")


async def test_the_crosshair_reads_what_is_there() -> None:
    """It shows metric, step, time and each rank's value; arrows move it and choose no rank; escape closes it."""
    async with dashboard(StillSource(frame())).run_test(size=(120, 40)) as pilot:
        placeholder = await plotted(pilot)
        view = pilot.app.screen.query_one(RankView)
        await pilot.press("i")
        await until(pilot, lambda: "step 1,199 ranks 0: " in title(placeholder), "the last column")
        drawn = contents_of(placeholder)
        for line in drawn.lines:
            assert f" {line.name}: {line.values[-1]:.4g}" in title(placeholder)
        assert "esc Close" in seen(pilot.app).splitlines()[-1]
        assert "←→ Move crosshair" in seen(pilot.app).splitlines()[-1]
        await pilot.press("left", "left", "shift+left")
        column = len(drawn.steps) - 13
        await until(pilot, lambda: f"step {int(drawn.steps[column]):,}" in title(placeholder), "twelve columns back")
        await pilot.press("home")
        await until(pilot, lambda: f"step {int(drawn.steps[0]):,} " in title(placeholder), "the first column")
        await pilot.press("plus")
        await until(pilot, lambda: plot_of(placeholder).look.extent.span == 250, "zoomed")
        assert plot_of(placeholder).look.extent.steps(1, 1199)[0] <= drawn.steps[0]
        assert view.chosen == 0
        await pilot.press("escape")
        await until(pilot, lambda: "[0]" in title(placeholder), "put away")
        await pilot.press("right")
        assert view.chosen == 1


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_keys_of_the_crosshair_are_named_on_its_screen(size: tuple[int, int]) -> None:
    """The plot's own screen names the crosshair's keys while there is one, and those of the plot before and after."""
    async with dashboard(StillSource(frame())).run_test(size=size) as pilot:
        await pilot.press("f")
        await plotted(pilot)
        await until(pilot, lambda: "m Metric  a Whole run" in seen(pilot.app), "the plot's")
        await pilot.press("i")
        await until(pilot, lambda: "home end First, last" in seen(pilot.app), "the crosshair's")
        assert "m Metric" not in seen(pilot.app)
        assert "loss  step 1,199 07:59:59 ranks 0: 0." in seen(pilot.app)
        await pilot.press("w", "y")
        await until(pilot, lambda: "loss, smoothed  step 1,199" in seen(pilot.app), "what is read")
        assert " · log" in seen(pilot.app)
        assert seen(pilot.app).count("esc") == 1, "the key is named once, in the key bar"
        assert "ranks 0: " in seen(pilot.app)
        await until(pilot, lambda: "esc Close" in seen(pilot.app).splitlines()[-1], "the footer")
        await pilot.press("escape")
        await until(pilot, lambda: "m Metric  a Whole run" in seen(pilot.app), "the plot's again")


async def test_a_metric_is_found_by_typing() -> None:
    """The picker offers everything recorded and everything the script gives; typing filters, enter takes."""
    history = history_of(4)
    for number in range(1200, 1300):
        for rank in range(4):
            step = recorded(number, int(NOW * 1e9) + number, 60, 80, 1.0)
            history.take(rank, replace_metrics(step, {"val/accuracy [bold]": number / 1300, clean_name(EVIL): 1.0}))
    history.catch_up()
    source = StillSource(frame(history=history))
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        placeholder = await plotted(pilot)
        await pilot.press("m")
        await until(pilot, lambda: isinstance(pilot.app.screen, MetricPicker), "the picker")
        for offered in ("loss", "step time", "wait in collectives", "memory", "learning rate", "samples per second"):
            assert offered in seen(pilot.app)
        assert "\x1b" not in seen(pilot.app)
        await pilot.press(*"accur")
        await until(pilot, lambda: pilot.app.screen.query_one(OptionList).option_count == 1, "the one")
        await pilot.press("enter")
        await until(pilot, lambda: "val/accuracy [bold] over " in seen(pilot.app), "its plot")
        assert plot_of(placeholder).look.metric == CUSTOM + "val/accuracy [bold]"
        await pilot.press("m", "up", "escape")
        assert plot_of(placeholder).look.metric == CUSTOM + "val/accuracy [bold]"
        await pilot.press("m", "home", *"step time", "down", "enter")
        await until(pilot, lambda: "step time, ms over the last 500 steps · ranks" in seen(pilot.app), "another")


def replace_metrics(step: Step, metrics: dict[str, float]) -> Step:
    """Return a record with values of the script's own."""
    import msgspec

    return msgspec.structs.replace(step, metrics=metrics)


async def test_the_full_plot_shares_its_look() -> None:
    """What is set on one screen is set on the other; tab chooses a rank there, and it is chosen on return."""
    async with dashboard(StillSource(frame())).run_test(size=(80, 24)) as pilot:
        await pilot.press("y")
        assert isinstance(pilot.app.screen, RunScreen)
        await pilot.press("f")
        assert isinstance(pilot.app.screen, PlotScreen)
        placeholder = await plotted(pilot)
        assert "smooth" in seen(pilot.app).lower()
        await pilot.press("w", "a", "plus", "tab", "tab")
        await until(pilot, lambda: "[2] 3" in title(placeholder), "rank 2 is chosen")
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, RunScreen)
        assert pilot.app.screen.query_one(RankView).chosen == 2
        await pilot.resize_terminal(120, 40)
        placeholder = await plotted(pilot)
        assert "loss over the last 600 steps · " in title(placeholder)
        assert plot_of(placeholder).look.extent.smoothing == "light"
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, RankScreen)
        await pilot.resize_terminal(200, 50)
        placeholder = await plotted(pilot)
        await pilot.press("i", "left")
        await until(pilot, lambda: plot_of(placeholder).crosshair is not None, "the crosshair")
        assert pilot.app.screen.rank == 2
        await pilot.press("i", "right")
        assert pilot.app.screen.rank == 3


async def test_a_frozen_view_stands_still_while_the_run_goes_on(tmp_path: Path) -> None:
    """Numbers, plot and log stay as they were; it says so and for how long; keys work on it; v resumes it."""
    log = tmp_path / "rank-0.log"
    log.write_text("before\n")
    history = history_of(4)
    ranks = tuple(replace(rank, log=str(log), step=1199) for rank in frame().ranks)
    source = StillSource(frame(history=history, ranks=ranks))
    now = NOW
    app = DdptopApp(source, clock=lambda: now)
    async with app.run_test(size=(140, 40)) as pilot:
        placeholder = await plotted(pilot)
        await pilot.press("v")
        await until(pilot, lambda: "VIEW HELD 00:00" in seen(app), "it says so")
        assert "v resumes" in seen(app)
        for number in range(1200, 1400):
            history.take(0, recorded(number, int(NOW * 1e9) + number, 60, 80, 9.0))
        history.catch_up()
        with log.open("a") as file:
            file.write("appended\n")
        source.current = replace(
            source.current, step=1400, loss=9.0, ranks=tuple(replace(rank, step=1400) for rank in ranks),
            events=(EventLine(NOW, "something new", None, "info"),),
        )  # fmt: skip
        now += 75
        await until(pilot, lambda: "VIEW HELD 01:15" in seen(app), "for how long")
        await pilot.press("plus", "i", "escape")
        await until(pilot, lambda: "last 250 steps" in title(placeholder), "the plot is looked at")
        assert contents_of(placeholder).steps[-1] == 1199
        for gone in ("1,400", "appended", "something new"):
            assert gone not in seen(app)
        await pilot.press("g")
        assert isinstance(app.screen, LogScreen)
        await until(pilot, lambda: "VIEW HELD" in seen(app), "also on another screen")
        await pilot.press("escape", "v")
        await until(
            pilot, lambda: "1,400" in seen(app) and "appended" in seen(app) and "something new" in seen(app), "on"
        )
        assert "VIEW HELD" not in seen(app)
    assert source.asked == []


@pytest.mark.parametrize("key", ["space", "k"])
async def test_who_acts_on_the_run_sees_what_comes_of_it(key: str) -> None:
    """A pause or a kill lets a view that is held go on."""
    async with dashboard(StillSource(frame())).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("v")
        await until(pilot, lambda: "VIEW HELD" in seen(pilot.app), "held")
        await pilot.press(key)
        if key == "k":
            await pilot.press("escape")
        await until(pilot, lambda: "VIEW HELD" not in seen(pilot.app), "it goes on")


async def test_a_plot_may_be_left_before_it_is_there() -> None:
    """Who goes on to another screen, or leaves, at the moment when the plot is made, finds no error."""
    app = dashboard(StillSource(frame()))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.frame is not None and app.screen.query(PlotPlaceholder), "the screen")
        await app.screen.query_one(PlotPlaceholder).make(None).remove()
        screen = RankScreen(app.shown.newest(), 0)
        await app.push_screen(screen)
        leaving = app.pop_screen()
        screen._add_plot()
        await leaving
        await pilot.pause()
    assert app.failure is None


async def test_an_idle_run_is_not_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused run of which nothing comes costs no paint but for the clock in the header, once a second."""
    now = NOW
    source = StillSource(frame("paused"))
    still = source.frame
    source.frame = lambda: replace(still(), at=now)  # type: ignore[method-assign]
    app = DdptopApp(source, clock=lambda: now)
    painted: list[str] = []
    render = Drawn.grounded

    def counted(self: Drawn, *arguments: object) -> object:
        painted.append(type(self).__name__)
        return render(self, *arguments)  # type: ignore[arg-type]

    async with app.run_test(size=(120, 40)) as pilot:
        placeholder = await plotted(pilot)
        drawn = contents_of(placeholder)
        await rests(pilot)
        monkeypatch.setattr(Drawn, "grounded", counted)
        frames = 0

        def count(_: object) -> None:
            nonlocal frames
            frames += 1

        app.watch(app, "frame", count, init=False)
        for _ in range(8):
            now += 0.25
            app.repaint()
            await pilot.pause()
        assert frames >= 8
        assert set(painted) <= {"Header"}
        assert len(painted) <= 2 * 2 * 3
        assert contents_of(placeholder) is drawn
        painted.clear()
        source.frame = still  # type: ignore[method-assign]
        app.repaint()
        await pilot.pause()
        painted.clear()
        for _ in range(8):
            app.repaint()
            await pilot.pause()
        assert painted == []


async def test_a_drawing_that_waited_for_a_core_does_not_put_off_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawing that took ten seconds of a busy machine, and next to nothing of a core, is followed by one soon."""
    now = 0.0
    make = contents.contents_of

    def slowly(*arguments: Any) -> Contents | None:
        nonlocal now
        now += 10
        return make(*arguments)

    history = history_of(4)
    source = StillSource(frame(history=history))
    app = DdptopApp(source, clock=lambda: NOW)
    app.set_interval = lambda *_, **__: None  # type: ignore[assignment,method-assign]
    async with app.run_test(size=(140, 40)) as pilot:
        placeholder = await plotted(pilot)
        await rests(pilot)
        monkeypatch.setattr(plot_module, "contents_of", slowly)
        monkeypatch.setattr(plot_module, "time", SimpleNamespace(monotonic=lambda: now, thread_time=lambda: 0.0))
        now = time.monotonic() + 1000
        for step in (1200, 1201):
            drawn = contents_of(placeholder)
            for rank in range(4):
                history.take(rank, recorded(step, int(NOW * 1e9), 60, 80, 0.9))
            history.catch_up()
            source.current = replace(source.current, step=step)
            app.repaint()
            await pilot.pause()
            assert contents_of(placeholder) is not drawn, step
            now += 2


def lossless(steps: int) -> RecordedHistory:
    """Return the history of a run that has no loss."""
    history = RecordedHistory(4)
    for number in range(1, steps):
        history.take(0, recorded(number, number * 10**8, 60, 80))
    history.catch_up()
    return history


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"history": RecordedHistory(4)}, "curves begin with the second step"),
        ({"history": RecordedHistory(4), "state": "failed"}, "no step was completed: g shows what was printed"),
        ({"history": lossless(10)}, "curves begin with the second step"),
        ({}, "no loss seen: it is read where backward() is called"),
    ],
)
async def test_an_empty_plot_says_what_to_do(change: dict[str, object], said: str) -> None:
    """Where there is no curve it says why, and which key helps."""
    shown = frame(**{"state": "running", "history": lossless(60), **change})  # type: ignore[arg-type]
    async with dashboard(StillSource(shown)).run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: said in seen(pilot.app), said)
        if "m shows" in seen(pilot.app):
            await pilot.press("m", *"forward", "enter")
            await until(pilot, lambda: dots(pilot.app), "another metric is there")


def test_every_state_says_what_to_do_next() -> None:
    """Each state that asks for something names the key; none looks like another, with or without color."""
    heads = {}
    for state in STATES:
        shown = frame(state)
        if state == "silent":
            shown = replace(shown, ranks=tuple(replace(rank, heard_age_s=9.0) for rank in shown.ranks))
        text = " ".join(text_of(row) for row in header_rows(shown, 118, INK, KEYS, roomy=True))
        heads[state] = text
        wanted = {
            "starting": "g shows what they print",
            "paused": "space resumes",
            "stalled": f"{KEYS['run.stacks']} shows where each rank stands",
            "silent": "g shows the log, k ends them",
            **dict.fromkeys(ENDED, "q leaves"),
        }
        assert wanted.get(state, state.upper()) in text, text
    assert len(set(heads.values())) == len(STATES)
    waiting = replace(frame("starting"), ranks=(rank_frame(0, "starting", heard_age_s=1.0), rank_frame(1, "starting")))
    said = " ".join(text_of(row) for row in header_rows(waiting, 118, INK, KEYS, roomy=True))
    assert "1 of 2 ranks have reported, rank 1 has not" in said
    waiting = replace(waiting, ranks=(*waiting.ranks, rank_frame(2, "starting"), rank_frame(3, "starting")))
    said = " ".join(text_of(row) for row in header_rows(waiting, 118, INK, KEYS, roomy=True))
    assert "1 of 4 ranks have reported, ranks 1-3 have not" in said


def with_ranks_in_all_states() -> Frame:
    """Return a run in which each rank is in another state."""
    whole = frame(world=len(STATES), note=None)
    ranks = tuple(rank_frame(number, state) for number, state in enumerate(STATES))
    return replace(whole, ranks=ranks)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["plot", "band", "crosshair", "held", "states"])
def test_pictures(snap_compare: Callable[..., bool], name: str, size: str) -> None:
    """The full plot, that of many ranks, values read off, the view held, and a rank in each state."""
    keys, then, shown = {
        "plot": (("tab", "f"), ("w",), frame()),
        "band": (("f",), ("y",), frame(world=16)),
        "crosshair": (("f", "plus"), ("i", "left", "left"), frame()),
        "held": (("v",), (), frame()),
        "states": ((), (), with_ranks_in_all_states()),
    }[name]

    async def before(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: pilot.app.screen.query(PlotPlaceholder), "the screen")
        await pilot.press(*keys)
        if name in ("plot", "band", "crosshair"):
            await until(pilot, lambda: isinstance(pilot.app.screen, PlotScreen), "the plot's own screen")
        # The keys that come then begin with what is drawn.
        for more in (then, ()):
            if pilot.app.screen.query_one(PlotPlaceholder).display:
                await plotted(pilot)
                await rests(pilot)
            await pilot.press(*more)
        if name == "held":
            await until(pilot, lambda: "VIEW HELD" in seen(pilot.app), "held")
        await pilot.pause()

    assert snap_compare(still_app(shown), terminal_size=SIZES[size], run_before=before)


async def test_a_few_ranks_are_a_band_on_a_key() -> None:
    """Their mean in the band of least and greatest, with the chosen one, and each as a line again."""
    app = still_app(frame())
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        for named in ("max  mean  min [0]", "[0] 1  2  3"):
            await pilot.press("b")
            await until(pilot, lambda named=named: named in seen(app), named)  # type: ignore[misc]
