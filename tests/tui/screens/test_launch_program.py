"""The field of the launch dialog that names the program: typed, completed, chosen by key or mouse, and launched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.screens.dashboards import SIZES, rests, seen, settled, until
from support.screens.fleets import FRAMES, FleetSource, StillFleet
from support.screens.frames import NOW
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from ddptop.agent.client.start.request import Request
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.launch import remembered
from ddptop.tui.screens.dialogs.field import Field
from ddptop.tui.screens.dialogs.launch import LaunchDialog
from ddptop.tui.screens.dialogs.program import ProgramInput
from ddptop.tui.screens.run import RunScreen


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts of one's own, in which the dashboard runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for name in ("train.py", "src/evaluate.py", "src/train.py", "quick.py"):
        (folder / name).write_text("")
    monkeypatch.chdir(folder)
    return folder


def dashboard(fleet: StillFleet) -> DdptopApp:
    """Return a dashboard of the first run of a fleet."""
    return DdptopApp(FleetSource(fleet, FRAMES[0].run), clock=lambda: NOW, fleet=fleet)


async def dialog(pilot: Pilot[None]) -> LaunchDialog:
    """Open the launch dialog and wait until the program's options are there."""
    await pilot.press("l")
    await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog), "the dialog")
    screen = pilot.app.screen
    assert isinstance(screen, LaunchDialog)
    await until(pilot, lambda: any(field.key == "--lr" for field in screen.query(Field)), "the options")
    await until(pilot, lambda: not line(screen).endswith(" …"), "the command line")
    return screen


def line(screen: LaunchDialog) -> str:
    """Return the command line that is shown."""
    return str(screen.query_one("#command", Static).content)


def shown(pilot: Pilot[None]) -> str:
    """Return the name of the run that the screen of a run is about."""
    screen = pilot.app.screen
    return screen.frame.run if isinstance(screen, RunScreen) else ""


def offered(screen: LaunchDialog) -> list[str]:
    """Return the first word of each program that is offered; nothing while the list is closed."""
    listing = screen.query_one(".programs", OptionList)
    return [str(option.prompt).split("  ")[0] for option in listing.options] if listing.display else []


async def test_a_script_is_typed_completed_and_launched() -> None:
    """From the opened dialog by keys alone: two letters, tab, arrow, enter takes, enter launches; `q` is a letter."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(80, 24)) as pilot:
        screen = await dialog(pilot)
        await pilot.press(*"sr", "tab")
        await until(pilot, lambda: offered(screen) == ["src/evaluate.py", "src/train.py"], "what is in the folder")
        await pilot.press("down", "enter")
        await until(pilot, lambda: line(screen) == "$ ddptop launch src/train.py", "the line")
        assert offered(screen) == []
        assert not fleet.launched, "enter took it, and no more"
        await until(pilot, lambda: not screen.query("#options Field"), "no options of the program before")
        await pilot.press("enter")
        await until(pilot, lambda: fleet.launched, "the launch")
        assert (fleet.launched[0].program, fleet.launched[0].as_module) == ("src/train.py", False)
        await until(pilot, lambda: shown(pilot) == "started-0001", "the run")
        screen = await again(pilot)
        await pilot.press(*"quick", "tab")
        await until(pilot, lambda: line(screen) == "$ ddptop launch quick.py", "q is typed")


async def again(pilot: Pilot[None]) -> LaunchDialog:
    """Open the dialog a second time, for a script."""
    await pilot.press("l")
    await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog), "the dialog")
    screen = pilot.app.screen
    assert isinstance(screen, LaunchDialog)
    await until(pilot, lambda: isinstance(pilot.app.focused, ProgramInput), "the field")
    return screen


async def test_typing_filters_and_escape_closes_the_list_first() -> None:
    """A name's beginning is enough; escape leaves what is typed, complains beside it, and closes the dialog next."""
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        await pilot.press(*"resne")
        await until(pilot, lambda: offered(screen) == ["resnet", "resnet34"], "the programs")
        note = screen.query(Field).first().query_one(".note", Static)
        assert not note.has_class("-wrong"), "half a name is not wrong yet"
        await pilot.press("escape")
        await until(pilot, lambda: "did you mean 'resnet'" in str(note.content), "the complaint")
        assert offered(screen) == []
        await pilot.press("t")
        await until(pilot, lambda: offered(screen) == ["resnet", "resnet34"], "the programs")
        await pilot.press("up", "down", "enter")
        await until(
            pilot, lambda: screen.draft.program == "resnet" and "options of resnet" in seen(pilot.app), "options"
        )
        await pilot.press("tab")
        assert not isinstance(pilot.app.focused, ProgramInput), "all is complete: tab goes on"
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, RunScreen)


async def test_a_recent_program_comes_first_with_its_arguments(project: Path) -> None:
    """Space lists all; the one that was launched last is marked, and a click takes another one."""
    remembered.note_launch(Request("toy"))
    remembered.note_launch(Request("src/train.py", arguments=("--lr", "0.1")))
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        await pilot.press("space")
        await until(pilot, lambda: offered(screen)[:3] == ["src/train.py", "toy", "quick.py"], "all programs")
        await pilot.press("enter")
        await until(pilot, lambda: line(screen) == "$ ddptop launch src/train.py -- --lr 0.1", "its arguments")
        await pilot.click(ProgramInput)
        await until(pilot, lambda: bool(offered(screen)), "all programs")
        await pilot.click(".programs", offset=(2, 2))
        await until(pilot, lambda: line(screen).startswith("$ ddptop launch toy"), "the clicked one")
        assert isinstance(pilot.app.focused, Input), "the keys stay with the form"
        await pilot.click(".arrow")
        await until(pilot, lambda: bool(offered(screen)), "the arrow opens it too")
        screen.query(Field).last().enter()
        await until(pilot, lambda: not offered(screen), "it closes with its field")


async def test_keys_that_come_at_once_launch_what_they_name() -> None:
    """Typed ahead of a slow machine, the program is the typed one with its arguments, not the one before."""
    remembered.note_launch(Request("src/train.py", arguments=("--lr", "0.1")))
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(80, 24)) as pilot:
        await dialog(pilot)
        for key in (*"src", "tab", "enter", "enter"):
            pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: fleet.launched, "the launch")
        await until(pilot, lambda: shown(pilot) == "started-0001", "the run")
        assert (fleet.launched[0].program, fleet.launched[0].arguments) == ("src/train.py", ("--lr", "0.1"))


async def test_an_enter_takes_from_the_list_of_what_was_typed_before_it() -> None:
    """However quickly it follows: not from the list that was open for less."""
    async with dashboard(StillFleet()).run_test(size=(80, 24)) as pilot:
        screen = await dialog(pilot)
        await pilot.press("space")
        await until(pilot, lambda: offered(screen)[:2] == ["quick.py", "train.py"], "all programs")
        # As keys that arrive in one read: nothing else runs between them.
        field = screen.query_one(ProgramInput)
        field.value = "train"
        await field.action_take()
        await until(pilot, lambda: line(screen) == "$ ddptop launch train.py", "what was typed")


async def test_a_recent_program_leaves_typed_arguments() -> None:
    """Its own fill an empty field, and one that holds those of another recent program."""
    remembered.note_launch(Request("quick.py", arguments=("--lr", "0.2")))
    remembered.note_launch(Request("src/train.py", arguments=("--lr", "0.1")))
    async with dashboard(StillFleet()).run_test(size=(120, 40)) as pilot:
        screen = await dialog(pilot)
        await pilot.press("space", "enter")
        await until(pilot, lambda: line(screen) == "$ ddptop launch src/train.py -- --lr 0.1", "its arguments")
        await pilot.click(ProgramInput)
        await pilot.press("down", "enter")
        await until(pilot, lambda: line(screen) == "$ ddptop launch quick.py -- --lr 0.2", "those of the other")
        await pilot.press("down", "end", *" --mine")
        await pilot.click(ProgramInput)
        await until(pilot, lambda: offered(screen)[:2] == ["src/train.py", "quick.py"], "all programs")
        await pilot.press("enter")
        await until(pilot, lambda: line(screen) == "$ ddptop launch src/train.py -- --lr 0.2 --mine", "kept")


async def test_a_module_is_typed() -> None:
    """`-m` and a module, package by package, make the line and the request that say so."""
    fleet = StillFleet()
    async with dashboard(fleet).run_test(size=(80, 24)) as pilot:
        screen = await dialog(pilot)
        await pilot.press("minus", "m", "space", "s", "tab")
        await until(pilot, lambda: offered(screen) == ["-m src.evaluate", "-m src.train"], "the modules")
        await pilot.press("enter", "enter")
        await until(pilot, lambda: fleet.launched, "the launch")
        await until(pilot, lambda: shown(pilot) == "started-0001", "the run")
        assert (fleet.launched[0].program, fleet.launched[0].as_module) == ("src.evaluate", True)


@pytest.mark.parametrize(("size", "keys"), [("80x24", ("space",)), ("120x40", ("t", "r", "a", "i", "n"))])
def test_pictures(snap_compare: Callable[..., bool], size: str, keys: tuple[str, ...]) -> None:
    """The list of programs over the form, as a person has looked at it."""
    remembered.note_launch(Request("src/train.py", arguments=("--lr", "0.1")))

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot)
        screen = await dialog(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: offered(screen)[:1] == ["src/train.py"], "the programs")
        listing = screen.query_one(".programs", OptionList)
        await until(pilot, lambda: listing.size.height == min(10, len(listing.options)), "all lines, or ten")
        await rests(pilot)

    assert snap_compare(dashboard(StillFleet()), terminal_size=SIZES[size], run_before=before)
