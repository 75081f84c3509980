"""The list of runs and the launch dialog, with a fleet that stands still."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.screens.dashboards import INK, SIZES, footer_keys, rests, seen, settled, text_of, until
from support.screens.fleets import FRAMES, OPTIONS, FleetSource, StillFleet
from support.screens.frames import EVIL, NOW, frame, hung_frame
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import DirectoryTree, Input, Static

from ddptop.agent.client import runs
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.agent.wire import Verdict
from ddptop.trainers import CATALOGUE
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.cli import view
from ddptop.tui.cli.main import _parser
from ddptop.tui.cli.verbs import options, watching
from ddptop.tui.cli.verbs.launch import requested
from ddptop.tui.launch import form, programs, remembered, target
from ddptop.tui.launch.form import Draft
from ddptop.tui.launch.options import OPTIONS as LAUNCH_OPTIONS
from ddptop.tui.link.fleet import Fleet
from ddptop.tui.link.source import Cancelled, Refused
from ddptop.tui.screens.dialogs.field import Field
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.launch import LaunchDialog
from ddptop.tui.screens.dialogs.pickers import ScriptPicker
from ddptop.tui.screens.dialogs.question import Question
from ddptop.tui.screens.run import RunScreen, RunsScreen
from ddptop.tui.views.runs import RunList, _narrow

FIRST = FRAMES[0].run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what is remembered in a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ddptop" / "launch.json"


def dashboard(fleet: StillFleet, run: str = FIRST, *, listed: bool = False) -> DdptopApp:
    """Return a dashboard of one run of a fleet."""
    checked: Fleet = fleet
    return DdptopApp(FleetSource(fleet, run), clock=lambda: NOW, fleet=checked, listed=listed)


async def listing(pilot: Pilot[None], *keys: str) -> RunList:
    """Open the list, press the keys in it, and return it."""
    await pilot.press("r")
    await until(pilot, lambda: bool(pilot.app.screen.query(RunList)), "the list")
    listed = pilot.app.screen.query_one(RunList)
    await until(pilot, lambda: listed.listing is not None, "the runs")
    await pilot.press(*keys)
    return listed


def marked(listed: RunList) -> str:
    """Return the run on which a key acts."""
    assert listed.line is not None
    return listed.line.run


async def dialog(pilot: Pilot[None]) -> LaunchDialog:
    """Open the launch dialog and wait for the program's options."""
    await pilot.press("l")
    await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog), "the dialog")
    screen = pilot.app.screen
    assert isinstance(screen, LaunchDialog)
    await until(pilot, lambda: any(field.key == "--lr" for field in screen.query(Field)), "the options")
    # It says so last, when all fields are there and checked.
    await until(pilot, lambda: not said(screen, "command").endswith(" …"), "the command line")
    return screen


def shown(pilot: Pilot[None]) -> str:
    """Return the name of the run that the screen of a run is about."""
    screen = pilot.app.screen
    return screen.frame.run if isinstance(screen, RunScreen) else ""


def field(screen: LaunchDialog, key: str) -> Field:
    """Return a field of the form."""
    return next(each for each in screen.query(Field) if each.key == key)


def said(screen: LaunchDialog, name: str) -> str:
    """Return a line of the dialog."""
    return str(screen.query_one(f"#{name}", Static).content)


# The list


@pytest.mark.parametrize("turns", [0, 1, 5, 12])
async def test_leaving_while_another_run_comes_is_no_error(turns: int) -> None:
    """The screens are gone in the midst of the change, wherever it has come to by then."""
    app = dashboard(StillFleet())
    async with app.run_test(size=(120, 40)) as pilot:
        await listing(pilot)
        app.post_message(RunList.Chosen("simplenet-01"))
        for _ in range(turns):
            await asyncio.sleep(0)
        app.exit(return_code=0)
    assert app.return_code == 0


@pytest.mark.parametrize("width", [80, 120])
async def test_the_list_is_there_once_however_often_it_is_asked_for(width: int) -> None:
    """`r` before the list is drawn that a dashboard begins with: one list, and no error."""
    app = dashboard(StillFleet(), listed=True)
    keys = [Key("r", "r")]

    def poll() -> None:
        while keys:
            app.post_message(keys.pop())

    app.source.poll = poll  # type: ignore[method-assign]
    async with app.run_test(size=(width, 40)) as pilot:
        await until(pilot, lambda: not keys and app.frame is not None, "a frame")
        await pilot.pause()
        assert len(app.screen.query(RunList)) <= 1
        assert sum(isinstance(screen, RunsScreen) for screen in app.screen_stack) <= 1


async def test_the_list_stands_beside_the_run_where_there_is_room() -> None:
    """At 120 columns `r` shows the list, goes to it, hides it; below that it is a screen, and `r` closes that too."""
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        listed = await listing(pilot)
        assert isinstance(pilot.app.screen, RunScreen)
        assert listed.has_focus
        await pilot.press("escape")
        assert not listed.has_focus
        await pilot.press("r")
        assert listed.has_focus
        await pilot.press("r")
        assert not pilot.app.screen.query(RunList)
        await listing(pilot)
        await pilot.resize_terminal(100, 40)
        await until(pilot, lambda: not pilot.app.screen.query(RunList), "the list goes where its room goes")
        await listing(pilot)
        assert isinstance(pilot.app.screen, RunsScreen)
        await pilot.press("r")
        assert isinstance(pilot.app.screen, RunScreen)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("size", SIZES.values())
async def test_the_list_says_when_the_marked_run_began_and_why_it_ended(size: tuple[int, int]) -> None:
    """Below the runs, at every size."""
    async with dashboard(StillFleet()).run_test(size=size) as pilot:
        listed = await listing(pilot)
        while marked(listed) != "conv-9c02":
            await pilot.press("down")
        await until(pilot, lambda: "began 15 Jan 07:58" in seen(pilot.app), "when")
        assert "rank 2: ValueError: bad lr" in seen(pilot.app)


@pytest.mark.parametrize(
    ("size", "keys"),
    [((80, 24), ("down", "enter")), ((80, 24), ("2",)), ((120, 40), ("down", "enter")), ((120, 40), ("tab",))],
)
async def test_one_key_shows_another_run(size: tuple[int, int], keys: tuple[str, ...]) -> None:
    """Enter, its number or tab: header, ranks and what keys act on are the other run's; the list stays beside it."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=size, notifications=True) as pilot:
        await listing(pilot, *keys)
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the run")
        await until(pilot, lambda: shown(pilot) == "simplenet-01", "the other run")
        screen = pilot.app.screen
        assert isinstance(screen, RunScreen)
        assert len(screen.frame.ranks) == 2
        assert bool(screen.query(RunList)) == (size[0] >= 120)
        await until(pilot, lambda: "‖" in seen(pilot.app), "its state")
        await pilot.press("escape", "space")
        source = pilot.app.source  # type: ignore[attr-defined]
        await until(pilot, lambda: "resume" in source.asked, "it goes on")
        assert source.asked[0] == "open simplenet-01"


async def test_a_live_run_that_took_the_name_of_the_one_shown_is_acted_on() -> None:
    """The list shows it as what it is, and its keys reach it, not the ended run on the dashboard."""
    fleet = StillFleet((frame("running", run="twice", run_id="new"),))
    source = FleetSource(fleet, "twice")
    source.current = frame("finished", run="twice", run_id="old")
    async with DdptopApp(source, clock=lambda: NOW, fleet=fleet).run_test(size=(120, 40)) as pilot:
        listed = await listing(pilot)
        assert [(line.run_id, line.state) for line in listed.lines] == [("new", "running")]
        await pilot.press("k")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "kill None 5" in fleet.control("twice").asked, "the live run is ended")
    assert source.asked == []


async def test_keys_in_the_list_act_on_the_marked_run_alone() -> None:
    """Space, kill and restart reach the marked run; the one that is shown is not asked for anything."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(120, 40), notifications=True) as pilot:
        await listing(pilot, "down", "space")
        await until(pilot, lambda: fleet.control("simplenet-01").asked == ["resume"], "the marked run goes on")
        await pilot.press("k")
        assert isinstance(pilot.app.screen, KillDialog)
        await pilot.press("right", "enter")
        await until(pilot, lambda: "kill None 5" in fleet.control("simplenet-01").asked, "the marked run is ended")
        await pilot.press("escape", "end", "R")
        assert isinstance(pilot.app.screen, Question)
        await pilot.press("right", "enter")
        await until(pilot, lambda: fleet.control("toy-77aa").asked == ["restart True"], "it starts again")
        assert pilot.app.source.asked == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", [0, 1])
async def test_what_waits_is_cancelled_in_the_list_too(place: int) -> None:
    """The same key that paused the marked run cancels, whether it is the one shown; `F` asks about that run."""
    names = ("shown-0001", "other-0002")
    fleet = StillFleet(tuple(frame("stalled", run=name) for name in names))

    def show(line: str) -> None:
        fleet.frames[names[place]] = replace(fleet.frames[names[place]], waiting=line)
        app.source.current = fleet.frames[names[0]]  # type: ignore[attr-defined]

    def pause(waiting: Waiting | None = None) -> str:
        assert waiting is not None
        show("pausing: waiting for rank 1")
        give_up = time.monotonic() + 30
        while not waiting.is_cancelled() and time.monotonic() < give_up:
            time.sleep(0.01)
        show("")
        raise Cancelled("cancelled; the run goes on")

    app = dashboard(fleet, names[0])
    for control in (app.source, fleet.control(names[1])):
        control.pause = pause  # type: ignore[attr-defined]
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        listed = await listing(pilot, *["down"] * place, "space")
        await until(pilot, lambda: "Cancel" in footer_keys(app), "it waits")
        assert marked(listed) == names[place]
        await pilot.press("F")
        assert isinstance(app.screen, Question)
        await until(pilot, lambda: f"Freeze {names[place]}?" in seen(app), "the question")
        await pilot.press("escape", "space")
        await until(pilot, lambda: "Pause" in footer_keys(app), "it can be paused again")


@pytest.mark.parametrize("place", [0, 1])
async def test_what_another_dashboard_has_begun_is_cancelled_in_the_list(place: int) -> None:
    """What an observer says that its run waits for is enough to offer it; a resume cancels it there."""
    frames = [frame("stalled", run="shown-0001"), frame("stalled", run="other-0002")]
    frames[place] = replace(frames[place], waiting="checkpoint: waiting for rank 1", action="checkpoint by ada")
    fleet = StillFleet(tuple(frames))
    app = dashboard(fleet, frames[0].run)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        listed = await listing(pilot, *["down"] * place)
        assert marked(listed) == frames[place].run
        await until(pilot, lambda: "Cancel" in footer_keys(app), "it is offered")
        await pilot.press("space")
        control = app.source if place == 0 else fleet.control(frames[place].run)
        await until(pilot, lambda: control.asked == ["resume"], "it is asked for")  # type: ignore[attr-defined]


async def test_an_ended_run_is_removed_after_one_question() -> None:
    """A live one stays and one line says why; a run that has ended stays too, unless the answer is to remove it."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(80, 24), notifications=True) as pilot:
        listed = await listing(pilot, "down", "delete")
        await until(pilot, lambda: "has not ended" in seen(pilot.app), "why not")
        assert not isinstance(pilot.app.screen, Question)
        await pilot.press("end", "delete")
        assert isinstance(pilot.app.screen, Question)
        await pilot.press("escape", "delete", "right")
        assert set(fleet.frames) == {each.run for each in FRAMES}
        await pilot.press("enter")
        await until(pilot, lambda: "toy-77aa" not in fleet.frames, "it is removed")
        await until(pilot, lambda: "removed toy-77aa" in seen(pilot.app), "what was done")
        await until(pilot, lambda: "toy-77aa" not in listed.text, "its line is gone")


async def test_the_mark_stays_with_its_run() -> None:
    """When the list changes its order under the hand, a key still acts on the run that was marked."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(120, 40)) as pilot:
        listed = await listing(pilot, "down")
        fleet.frames = {"new-0001": frame("starting", run="new-0001"), **dict(reversed(fleet.frames.items()))}
        await until(pilot, lambda: len(listed.lines) == 6, "the new run")
        assert marked(listed) == "simplenet-01"
        del fleet.frames["simplenet-01"]
        await until(pilot, lambda: len(listed.lines) == 5, "it is gone")
        assert marked(listed) == FIRST


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_marked_run_is_told_without_color(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a sign before its name, and the one on the dashboard another."""
    monkeypatch.setenv("NO_COLOR", "1")

    def signs(listed: RunList) -> dict[str, str]:
        rows = listed.text.splitlines()
        return {run: row[0] for run in (FIRST, "simplenet-01") for row in rows if run in row}

    async with dashboard(StillFleet()).run_test(size=size) as pilot:
        listed = await listing(pilot)
        assert signs(listed) == {FIRST: "▸", "simplenet-01": " "}
        await pilot.press("down")
        assert signs(listed) == {FIRST: "*", "simplenet-01": "▸"}


async def test_a_run_that_is_gone_is_not_shown() -> None:
    """Removed between look and key: one line says so, and what was shown stays."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(120, 40), notifications=True) as pilot:
        await listing(pilot, "end")
        del fleet.frames["toy-77aa"]
        await pilot.press("enter")
        await until(pilot, lambda: "no such run" in seen(pilot.app), "the reason")
        assert shown(pilot) == FIRST


async def test_the_frame_of_the_shown_run_stays_when_it_is_removed() -> None:
    """Its own line, chosen in the list that covers the screen, leads back to what is left of it, without an error."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(80, 24), notifications=True) as pilot:
        await listing(pilot)
        assert isinstance(pilot.app.screen, RunsScreen)
        del fleet.frames[FIRST]
        await pilot.press("enter")
        await until(pilot, lambda: shown(pilot) == FIRST, "its frame")
        assert "no such run" not in seen(pilot.app)


async def test_without_a_fleet_nothing_of_this_is_offered() -> None:
    """A dashboard that is to show one run alone has neither list nor launch."""
    fleet = StillFleet()
    app = DdptopApp(FleetSource(fleet, FIRST), clock=lambda: NOW)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("r", "l")
        assert isinstance(app.screen, RunScreen)
        assert not app.screen.query(RunList)
        assert not {"app.runs", "app.launch"} & {each.binding.id for each in app.screen.active_bindings.values()}


async def test_no_question_is_left_for_another_run() -> None:
    """While a dialog is open, neither list nor another dialog comes over it."""
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        for key, screen in (("k", KillDialog), ("l", LaunchDialog)):
            await pilot.press(key, "l", "r")
            assert isinstance(pilot.app.screen, screen)
            assert len(pilot.app.screen_stack) == 2
            await pilot.press("escape")


@pytest.mark.parametrize("terminal", [True, False])
def test_attach_lists_several_live_runs(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """On a terminal the newest is shown beside the list of all; without one a name is asked for, in one line."""
    live = [RunDir(Path("/b")), RunDir(Path("/a"))]
    opened: list[tuple[str, bool]] = []
    monkeypatch.setattr(runs, "live", lambda: live)
    monkeypatch.setattr(options, "on_terminal", lambda _: terminal)
    monkeypatch.setattr(watching, "on_terminal", lambda _: terminal)

    def show(run: RunDir, _: object, *, listed: bool) -> int:
        opened.append((run.name, listed))
        return 0

    monkeypatch.setattr(view, "show_dashboard", show)
    asked = _parser().parse_args(["attach"])
    if terminal:
        assert asked.carry(asked) == 0
        assert opened == [("b", True)]
    else:
        with pytest.raises(RunDirError, match="2 runs are alive: name one of b, a"):
            asked.carry(asked)


async def test_names_from_outside_stay_text() -> None:
    """A run whose program is markup and escapes changes nothing but its own line."""
    hostile = frame(run="odd-0001", program=EVIL)
    for size in (*SIZES.values(), (100, 30)):
        async with dashboard(StillFleet((FRAMES[0], hostile)), listed=True).run_test(size=size) as pilot:
            await until(pilot, lambda: "odd-0001" in seen(pilot.app), "the run")
            assert "\x1b" not in seen(pilot.app)
            assert size != (100, 30) or "[/fo" in seen(pilot.app)


# The launch dialog


async def test_what_is_filled_in_is_the_command_line_and_the_request() -> None:
    """Each option has a field; the line shown parses to the request that is launched, program's options included."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(120, 40), notifications=True) as pilot:
        screen = await dialog(pilot)
        assert {option.key for option in LAUNCH_OPTIONS} <= {each.key for each in screen.query(Field)}
        for key, value in (
            ("world", "3"), ("name", "mine"), ("environment", "A=1 B='x y'"), ("--lr", "0.1"), ("max_restarts", "2"),
            ("on_term", "checkpoint"),
        ):  # fmt: skip
            field(screen, key).fill(value)
        field(screen, "--download").enter()
        await pilot.press("space", "down", "enter")
        field(screen, "--lr").enter()
        await until(pilot, lambda: "--download" in said(screen, "command"), "the line")
        words = shlex.split(said(screen, "command").removeprefix("$ "))
        await pilot.press("enter")
        await until(pilot, lambda: fleet.launched, "the launch")
        (request,) = fleet.launched
        at = words.index("--")
        parsed = _parser().parse_args(words[1:at])
        parsed.arguments = tuple(words[at + 1 :])
        assert requested(parsed, request.who) == request
        assert (request.world, request.name, request.environment) == (3, "mine", ("A=1", "B=x y"))
        assert (request.max_restarts, request.on_term, request.start) == (2, "checkpoint", "torchrun")
        assert request.arguments == ("--lr", "0.1", "--download")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the dialog closes")
        await until(pilot, lambda: shown(pilot) == "mine", "the new run is shown")


async def test_what_is_wrong_stands_beside_its_field() -> None:
    """Nothing is launched; the reason is beside the field and enter goes there; mended, it goes away."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        for key, value, reason in (
            ("world", "many", "whole number"), ("name", "a b", "use 1 to 40 letters"), ("grace", "-1", "from 0 to"),
            ("inject", "rank=0,phase=sleep,ms=1", "no phase"), ("environment", "1=2", "say KEY"),
            ("environment", "A='x", "quot"), ("--lr", "fast", "must be a number"),
            ("--batch-size", "0", "at least 1"), ("max_restarts", "-1", "0 to 1000"),
        ):  # fmt: skip
            field(screen, key).fill(value)
            note = field(screen, key).query_one(".note", Static)
            await until(pilot, lambda note=note, reason=reason: reason in str(note.content), reason)  # type: ignore[misc]
            assert note.has_class("-wrong")
            field(screen, "world" if key != "world" else "name").enter()
            await pilot.press("enter")
            entry = field(screen, key).query_one(Input)
            await until(pilot, lambda entry=entry: entry.has_focus, "the field")  # type: ignore[misc]
            # The message calls it as the form does.
            begins = f"{field(screen, key).title}: "
            await until(pilot, lambda begins=begins: said(screen, "account").startswith(begins), begins)  # type: ignore[misc]
            field(screen, key).fill("")
            await until(pilot, lambda note=note: not note.has_class("-wrong"), "mended")  # type: ignore[misc]
        field(screen, "start").fill("spawn")
        field(screen, "max_restarts").fill("1")
        field(screen, "on_term").fill("checkpoint")
        for key in ("max_restarts", "on_term"):
            note = field(screen, key).query_one(".note", Static)
            await until(pilot, lambda note=note: "needs --start torchrun" in str(note.content), key)  # type: ignore[misc]
        assert not fleet.launched


async def test_a_message_of_the_form_is_not_cut_on_a_small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not exist: all of the sentence stands in the dialog, on several lines if need be."""
    # The sentence names the folder, whose name may be as long as it likes elsewhere.
    monkeypatch.chdir("/usr/lib")
    fleet = StillFleet()
    with pytest.raises(RequestError) as refusal:
        target.target(Request("nope"))
    fleet.refusal = reason = str(refusal.value)
    async with dashboard(fleet).run_test(size=(80, 24)) as pilot:
        screen = await dialog(pilot)
        field(screen, "world").enter()
        await pilot.press("enter")

        def shown() -> str:
            return " ".join(" ".join(line.strip(" ┃│") for line in seen(pilot.app).splitlines()).split())

        await until(pilot, lambda: reason in shown(), "the reason")


async def test_a_refusal_leaves_the_form_as_it_is() -> None:
    """What the launch itself refuses is told in the dialog, with all that was filled in."""
    fleet = StillFleet()
    fleet.refusal = "run mine: already there"
    async with dashboard(fleet).run_test(size=(80, 24)) as pilot:
        screen = await dialog(pilot)
        field(screen, "name").fill("mine")
        field(screen, "name").enter()
        await pilot.press("enter")
        await until(pilot, lambda: "already there" in said(screen, "account"), "the reason")
        assert screen.draft.launch["name"] == "mine"


async def test_escape_loses_nothing(state: Path) -> None:
    """Closed and opened again, by another dashboard too, the form says the same; but for the name, which is taken."""
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        for key, value in (("world", "3"), ("name", "mine"), ("inject", "rank=1,crash"), ("--lr", "0.1")):
            field(screen, key).fill(value)
        await until(pilot, lambda: "0.1" in said(screen, "command"), "the line")
        await pilot.press("escape")
    assert json.loads(state.read_text())["launches"] == {Draft().program: {"world": "3"}}
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        await until(pilot, lambda: "--world 3" in said(screen, "command"), "the ranks")
        assert "--lr 0.1" in said(screen, "command")
        assert "mine" not in said(screen, "command")
        assert "--inject" not in said(screen, "command")


async def test_a_closed_form_is_as_it_was_until_it_is_launched(state: Path) -> None:
    """Name, faults and a secret come back on the same dashboard and stand in no file; a launch has used them up."""
    fleet = StillFleet()
    filled = {"name": "mine", "inject": "rank=1,crash", "environment": "A_TOKEN=hidden77", "world": "3"}
    async with dashboard(fleet).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        for key, value in filled.items():
            field(screen, key).fill(value)
        await until(pilot, lambda: screen.draft.launch == filled, "what is filled in")
        await pilot.press("escape")
        assert not {"crash", "mine", "hidden77"} & set(re.findall(r"\w+", state.read_text()))
        screen = await dialog(pilot)
        assert {key: field(screen, key).current for key in filled} == filled
        field(screen, "program").fill("toy")
        await until(pilot, lambda: screen.draft.program == "toy", "another program")
        assert field(screen, "inject").current == filled["inject"]
        field(screen, "inject").fill("")
        await until(pilot, lambda: "--inject" not in said(screen, "command"), "no fault")
        await pilot.press("escape")
        screen = await dialog(pilot)
        assert field(screen, "inject").current == ""
        field(screen, "world").enter()
        await pilot.press("enter")
        await until(pilot, lambda: shown(pilot) == "mine", "the run")
        assert fleet.launched[0].environment == (filled["environment"],)
        screen = await dialog(pilot)
        assert field(screen, "name").current == ""
        assert "hidden77" not in field(screen, "environment").current


def displayed(screen: LaunchDialog) -> list[str]:
    """Return the keys of the fields that are there for the user, in their order."""
    return [each.key for each in screen.query(Field) if each.is_on_screen and each.region.height]


async def test_the_basic_fields_fit_and_one_key_shows_the_rest() -> None:
    """Without scrolling at 80x24; folded again, what is filled in stays, and what is wrong is never hidden."""
    async with dashboard(StillFleet()).run_test(size=(80, 24)) as pilot:
        screen = await dialog(pilot)
        basic = ["program", "world", "name", "--epochs", "--batch-size", "--lr", "--model"]
        await until(pilot, lambda: displayed(screen) == basic, "the basic fields")
        assert all(screen.query_one("#fields").region.contains_region(field(screen, key).region) for key in basic)
        await pilot.press("f2")
        every = {*(option.key for option in LAUNCH_OPTIONS), *(option.flag for option in form.offered(OPTIONS))}
        await until(pilot, lambda: {each.key for each in screen.query(Field) if each.region.height} >= every, "all")
        field(screen, "grace").fill("9")
        field(screen, "program").enter()
        await until(pilot, lambda: "--grace 9" in said(screen, "command"), "it is filled in")
        await pilot.press("f2")
        await until(pilot, lambda: displayed(screen) == [*basic[:3], "grace", *basic[3:]], "folded, with what is there")
        field(screen, "rdzv_id").fill("7")
        await until(pilot, lambda: field(screen, "rdzv_id").region.height > 0, "what is wrong")


@pytest.mark.parametrize("problem", ["", "toy does not tell its options: no module named torch"])
async def test_an_enter_before_the_options_are_there_launches_once_they_are(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and takes what is typed meanwhile; of a program that tells no options nothing is launched."""
    fleet = StillFleet()
    told = threading.Event()

    def options(program: str) -> tuple[programs.Option, ...]:
        told.wait()
        if problem:
            raise Refused(problem)
        return OPTIONS

    monkeypatch.setattr(fleet, "options", options)
    async with dashboard(fleet).run_test(size=(120, 40)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog), "the dialog")
        screen = pilot.app.screen
        assert isinstance(screen, LaunchDialog)
        await until(pilot, lambda: bool(screen.query(Field)), "the form")
        field(screen, "world").enter()
        await pilot.press("3")
        await until(pilot, lambda: field(screen, "world").current == "3", "what is typed")
        progress = {said(screen, "options-of")}
        await until(pilot, lambda: len(progress.add(said(screen, "options-of")) or progress) > 2, "that it goes on")  # type: ignore[func-returns-value]
        assert all(f"Reading {Draft().program}'s options" in line for line in progress)
        await pilot.press("enter")
        await until(pilot, lambda: "launched as soon as they are there" in said(screen, "account"), "that it waits")
        assert not fleet.launched
        told.set()
        if problem:
            await until(pilot, lambda: said(screen, "account") == problem, "why not")
            assert not fleet.launched
        else:
            await until(pilot, lambda: shown(pilot) == "started-0001", "the new run")
            assert [request.world for request in fleet.launched] == [3]
            # The run is on the screen, with its first event: no message says it again.
            assert not list(pilot.app._notifications)


async def test_what_is_remembered_belongs_to_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has neither its options nor its arguments, but what was typed for it; then they come back."""
    monkeypatch.chdir(tmp_path)
    for name in ("one.py", "two.py"):
        (tmp_path / name).touch()
    remembered.note_launch(Request("one.py", arguments=("--lr", "1")))
    remembered.remember(Draft("", "one.py", "--lr 1", {"world": "3", "max_restarts": "2"}))
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog), "the dialog")
        screen = pilot.app.screen
        assert isinstance(screen, LaunchDialog)
        first = "ddptop launch --world 3 --max-restarts 2 one.py -- --lr 1"
        await until(pilot, lambda: said(screen, "command") == f"$ {first}", "what was filled in")
        field(screen, "grace").fill("9")
        field(screen, "program").fill("two.py")
        await until(pilot, lambda: said(screen, "command") == "$ ddptop launch --grace 9 two.py", "another one")
        field(screen, "program").fill("one.py")
        first = first.replace("--max", "--grace 9 --max")
        await until(pilot, lambda: said(screen, "command") == f"$ {first}", "what was filled in for it")


def test_what_was_typed_is_remembered_as_it_was(state: Path) -> None:
    """Paths, arguments and values are used, not only shown: any character in them comes back unaltered."""
    odd = "a  b\tc\u200b\u0301 " + "x" * 5000
    program = Draft().program
    draft = Draft(
        script=odd, arguments=odd, launch={"environment": f"A='{odd}'"}, options={program: {"--data-dir": odd}}
    )
    assert remembered.remember(draft) is None
    found, notice = remembered.recall()
    assert notice is None
    for name in ("script", "arguments", "options"):
        assert getattr(found, name) == getattr(draft, name), name
    assert found.launch["environment"] == draft.launch["environment"]


def test_a_remembered_escape_sequence_does_not_come_back(state: Path) -> None:
    """Texts of the file are cleaned, but for variables, which a process gets byte by byte."""
    state.parent.mkdir()
    launch = '{"rdzv_id": "rank=1\\u001b[31m", "environment": "A=\\u001b"}'
    state.write_text(f'{{"program": "resnet", "launches": {{"resnet": {launch}}}}}')
    found, notice = remembered.recall()
    assert notice is None
    assert "\x1b" not in found.launch["rdzv_id"]
    assert found.launch["environment"] == "A=\x1b"


async def test_foreign_content_is_ignored_with_a_notice(state: Path) -> None:
    """A file of last settings that cannot be read costs a line, not the dialog."""
    state.parent.mkdir()
    for content in (
        "{",
        '{"other": 1}',
        '{"other": ""}',
        '{"world": 3}',
        '{"world": ' + "[" * 100_000,
        EVIL,
    ):
        state.write_text(content)
        draft, notice = remembered.recall()
        assert draft == Draft()
        assert notice is not None
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        assert "last settings not read" in said(await dialog(pilot), "account")


async def test_a_script_is_chosen_from_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only folders and Python files are there; the choice is what is launched, with its arguments."""
    (tmp_path / "a[b].py").write_text("print(1)\n")
    (tmp_path / "notes.txt").write_text("no")
    monkeypatch.chdir(tmp_path)
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(pilot.app.screen, ScriptPicker), "the folders")
        tree = pilot.app.screen.query_one(DirectoryTree)
        await until(pilot, lambda: len(tree.root.children) >= 1, "its files")
        assert [str(node.label) for node in tree.root.children if node.data and node.data.path.is_file()] == ["a[b].py"]
        await pilot.press("end", "enter")
        await until(pilot, lambda: pilot.app.screen is screen, "the dialog again")
        field(screen, "arguments").fill("--lr 0.1 'x y'")
        await until(pilot, lambda: "x y" in said(screen, "command"), "the line")
        assert said(screen, "command") == "$ ddptop launch 'a[b].py' -- --lr 0.1 'x y'"
        field(screen, "arguments").enter()
        await pilot.press("enter")
        await until(pilot, lambda: fleet.launched, "the launch")
        assert fleet.launched[0].program == "a[b].py"
        assert fleet.launched[0].arguments == ("--lr", "0.1", "x y")


async def test_the_program_may_change_faster_than_its_options_come() -> None:
    """A program that is chosen while the fields of another one come or go leaves the form of the last one."""
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        names = [name for name in CATALOGUE if name != screen.draft.program]
        for turns in range(12):
            field(screen, "program").fill(names[turns % len(names)])
            # So many turns of the loop, and so between any two steps of the change before.
            for _ in range(turns):
                await asyncio.sleep(0)
        await until(pilot, lambda: screen.draft.program == names[11 % len(names)], "the last program")
        await until(pilot, lambda: said(screen, "options-of") == f"options of {screen.draft.program}", "its options")
        keys = [each.key for each in screen.query(Field)]
        assert keys.count("--lr") == 1


def test_remembering_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told in one line, and nothing else happens."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert "not remembered" in (remembered.remember(Draft()) or "")


def test_options_that_the_launch_decides_are_left_out() -> None:
    """Of a program's options those about its ranks are not offered twice."""
    assert "--world" not in [option.flag for option in form.offered(OPTIONS)]


# Snapshots


@pytest.mark.parametrize(
    ("name", "keys", "size"),
    [
        ("list", ("r", "down"), "80x24"), ("list", ("r", "down"), "120x40"), ("list", ("r",), "200x50"),
        ("launch", ("l",), "80x24"), ("launch", ("l",), "120x40"), ("launch", ("l",), "200x50"),
        ("wrong", ("l", "down", "x"), "80x24"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("utc")
def test_pictures(snap_compare: Callable[..., bool], name: str, keys: tuple[str, ...], size: str) -> None:
    """The list of runs and the dialog, as a person has looked at them."""

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot)
        if name == "list":
            await listing(pilot, *keys[1:])
        else:
            screen = await dialog(pilot)
            await pilot.press(*keys[1:])
            if name == "wrong":
                note = field(screen, "world").query_one(".note", Static)
                await until(pilot, lambda: note.has_class("-wrong") and "--world x" in said(screen, "command"), "wrong")
        await rests(pilot)

    fleet = StillFleet(gpus=2 if size == "200x50" else 0)
    assert snap_compare(dashboard(fleet), terminal_size=SIZES[size], run_before=before)


def test_the_remark_is_that_of_the_verdict() -> None:
    """A run that a rank holds back is marked in the list, one that none holds back is not."""
    from ddptop.tui.link.fleet import line_of

    assert line_of(FRAMES[0]).remark == "rank 2"
    assert line_of(replace(FRAMES[0], verdicts=())).remark == ""
    # "rank 2 failed" would be read of an ended run, which a verdict is not about.
    assert line_of(replace(FRAMES[0], state="failed")).remark == ""
    for row in map(text_of, _narrow(line_of(FRAMES[0]), 60, INK)[:1]):
        assert re.search(r"^\S resnet-7f3a +running ◀ rank 2$", row), row
    assert line_of(hung_frame()).remark == "rank 1 hangs"
    alone = Verdict(1, "no_communication", "these ranks do not communicate", 0)
    assert line_of(replace(FRAMES[0], verdicts=(alone,))).remark == "no DDP?"


async def test_arrows_reach_every_field_of_a_short_form() -> None:
    """Where the form has to scroll, down goes to the next field all the same, and brings it into sight."""
    async with dashboard(StillFleet()).run_test(size=(80, 24)) as pilot:
        screen = await dialog(pilot)
        await pilot.press("f2")

        def in_sight(field: Field) -> bool:
            return screen.query_one("#fields").region.contains_region(field.region)

        fields = [each for each in screen.query(Field) if each.display]
        for each in fields[1:]:
            await pilot.press("down")
            assert pilot.app.focused is not None
            assert each in pilot.app.focused.ancestors, each.key
            await until(pilot, partial(in_sight, each), "sight")
