"""The line of keys, and the keys that texts name: whole words at any width, as the user has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import pytest
from support.screens.dashboards import seen, until
from support.screens.fleets import FleetSource, StillFleet
from support.screens.frames import NOW, StillSource, frame

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import Settings
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
from ddptop.tui.drawing.lines import width_of
from ddptop.tui.drawing.theme import DARK, Ink
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.views.screen.keybar import AT_THE_END, FIRST, Hint, KeyBar, chosen, hints_of

INK = Ink(DARK)
PLACES = ((), ("2",), ("3",), ("4",), ("enter",), ("escape", "f"), ("escape", "g"), ("escape", "r"))
"""Keys that go from one screen with a line of keys to the next."""


def shown() -> DdptopApp:
    """Return a dashboard of one run out of several."""
    fleet = StillFleet()
    return DdptopApp(FleetSource(fleet, "resnet-7f3a"), clock=lambda: NOW, fleet=fleet)


def has_width(bar: KeyBar, width: int) -> bool:
    return bar.size.width == width


async def test_at_every_width_words_are_whole_and_the_help_says_that_there_is_more() -> None:
    """On every screen and from 20 to 200 cells: no label is cut, and what is left out is told."""
    app = shown()
    async with app.run_test(size=(200, 50)) as pilot:
        for keys in PLACES:
            await pilot.press(*keys)
            await until(pilot, lambda: bool(app.screen.query_one(KeyBar).text), "the line")
            hints = hints_of(app.screen, app.key_names)
            assert {"app.help", "app.leave"} <= {hint.id for hint in hints}, keys
            everything = [hint.text for hint in hints]
            for width in range(20, 201, 6):
                left, right = chosen(hints, width, INK)
                assert [hint.id for hint in right] == list(AT_THE_END)
                assert sum(width_of(hint.drawn(INK)) + 2 for hint in (*left, *right)) <= width
                whole = len(left) + len(right) == len(hints)
                assert right[0].text == ("Help" if whole else "more"), (keys, width)
                assert {hint.text for hint in left} <= set(everything)
        for width in (80, 100, 120, 200):
            await pilot.resize_terminal(width, 40)
            bar = app.screen.query_one(KeyBar)
            await until(pilot, partial(has_width, bar, width), "the new width")
            line = bar.text.strip()
            words = re.split(r"  +", line)
            assert all(re.fullmatch(r"\S+ \w+( \w+)?", word) for word in words), line
            assert words[-1] == "q Leave"


async def test_under_a_dialog_there_are_only_the_keys_of_the_dialog() -> None:
    """The keys of the screen below do nothing then; they come back when the dialog closes."""
    app = shown()
    async with app.run_test(size=(120, 40)) as pilot:
        bar = app.screen.query_one(KeyBar)
        await until(pilot, lambda: "Kill" in bar.text, "the keys of the screen")
        before = bar.text
        await pilot.press("k")
        await until(pilot, lambda: "Leave" not in bar.text, "the keys of the dialog")
        assert app.screen.is_modal
        await pilot.press("escape")
        await until(pilot, lambda: bar.text == before, "the keys of the screen again")


def test_the_most_important_keys_are_known_ones() -> None:
    """Every id in the order of importance is that of an action."""
    known = {action.id for _, action in keymap.actions(DdptopApp)}
    assert set(FIRST) | set(AT_THE_END) <= known
    assert len(set(FIRST)) == len(FIRST)


def test_the_least_important_goes_first() -> None:
    """With one cell too few it is the last in the order that is missing, wherever it stood."""
    hints = [Hint(name, (("k", "k"),), name, "") for name in ("view.freeze", "run.kill", "app.help", "app.leave")]
    room = sum(width_of(hint.drawn(INK)) + 2 for hint in hints)
    assert [hint.id for hint in chosen(hints, room, INK)[0]] == ["view.freeze", "run.kill"]
    assert [hint.id for hint in chosen(hints, room - 1, INK)[0]] == ["run.kill"]


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_what_the_script_has_no_function_for_is_dim(checkpoints: bool) -> None:
    """The key that saves stays, because it tells how to register a function; of the run shown, and in the list."""
    app = DdptopApp(StillSource(frame(checkpoints=checkpoints)), clock=lambda: NOW, fleet=StillFleet())
    async with app.run_test(size=(200, 50)) as pilot:
        for keys in ((), ("r",)):
            await pilot.press(*keys)
            bar = app.screen.query_one(KeyBar)
            await until(pilot, lambda bar=bar: "c Save" in bar.text, "the key")  # type: ignore[misc]
            dim = {hint.id for hint in hints_of(app.screen, app.key_names) if hint.dim}
            expected = set() if checkpoints else {"runs.checkpoint" if keys else "run.checkpoint"}
            # The run that is marked there lives.
            expected |= {"runs.remove"} if keys else set()
            assert dim == expected, keys


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("running", ("Pause", "Kill", "Stop")),
        ("paused", ("Resume", "Step", "Kill", "Stop")),
        ("finished", ("Restart",)),
    ],
)
async def test_what_acts_on_the_run_stays_in_80_cells(state: str, words: Sequence[str]) -> None:
    """Views and lists give way to it, on every view of the ranks."""
    app = DdptopApp(StillSource(frame(state)), clock=lambda: NOW, fleet=StillFleet((frame(state),)))
    async with app.run_test(size=(80, 24)) as pilot:
        for view in ("panels", "table", "heatmap", "timeline"):
            await app.screen.run_action(f"view('{view}')")
            bar = app.screen.query_one(KeyBar)
            await until(pilot, lambda: all(word in bar.text for word in words), f"{words} with the {view}")  # noqa: B023 - awaited within the turn


async def test_what_is_offered_is_known_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw the bar does not walk through all of the screen for each key: it is drawn at every change of focus."""
    app = shown()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.screen.check_action("zoom", ()), "the plot, whose keys are offered late")
        searched: list[object] = []
        monkeypatch.setattr(type(app.screen), "query", lambda self, *wanted: searched.append(wanted))
        assert any("plot.full" in hint.id for hint in hints_of(app.screen, {}))
        assert searched == []
        monkeypatch.undo()


async def test_a_click_does_what_the_key_does() -> None:
    """The mouse on a word or on one of several keys before it; the tooltip says what it is for."""
    app = shown()
    async with app.run_test(size=(120, 40)) as pilot:
        bar = app.screen.query_one(KeyBar)
        await until(pilot, lambda: "View" in bar.text, "the line")
        at = bar.text.index("1234 View")
        await pilot.hover(KeyBar, offset=(at + 6, 0))
        assert "Show a panel for each rank" in str(bar.tooltip)
        await pilot.click(KeyBar, offset=(at + 1, 0))
        await until(pilot, lambda: app.screen.query_one("#views").current == "table", "the table")  # type: ignore[attr-defined]
        await until(pilot, lambda: "Filter" in bar.text, "the keys of the table")
        await pilot.click(KeyBar, offset=(bar.text.index("Help") if "Help" in bar.text else bar.text.index("more"), 0))
        await until(pilot, lambda: isinstance(app.screen, HelpScreen), "the help")


@pytest.mark.parametrize(
    ("shown_frame", "keys", "told"),
    [
        (frame(), ("v", "g"), {"view.freeze"}),
        (frame(), ("3",), {"ranks.open"}),
        (frame(), ("2", "slash", *"xyz"), {"table.clear"}),
        (frame(), ("2", "C"), {"columns.tick", "columns.usual", "columns.close"}),
        (frame(), ("m",), {"metrics.take", "metrics.close"}),
        (frame(), ("question_mark",), {"help.close"}),
        (frame(), ("x",), {"question.do", "question.cancel", "question.previous", "question.next"}),
        (frame("failed"), ("R",), {"question.do", "question.cancel", "question.previous", "question.next"}),
        (frame(), ("k",), {"kill.do", "kill.cancel", "kill.signal", "kill.previous", "kill.next"}),
        (frame(), ("k", "right", "right", "right"), {"kill.do"}),
        (frame(), ("k", "s"), {"signals.send", "signals.cancel", "signals.previous", "signals.next"}),
        (frame(), ("k", "right", "right", "right", "enter"), {"processes.cancel"}),
        (frame("stalled", waiting="pausing: waiting for rank 1"), (), {"run.cancel", "run.freeze"}),
        (frame("stalled"), ("F",), {"question.do", "run.resume"}),
        (frame(), ("l",), {"launch.close", "launch.previous", "launch.next"}),
        (frame(), ("l", "ctrl+o"), {"scripts.up", "scripts.cancel"}),
    ],
)  # fmt: skip
async def test_texts_name_the_keys_that_the_user_has(shown_frame: Frame, keys: Sequence[str], told: set[str]) -> None:
    """Where a text names a key it is that of the settings, in every dialog, header and empty place."""
    fleet = StillFleet((shown_frame,))
    app = DdptopApp(StillSource(shown_frame), clock=lambda: NOW, fleet=fleet)
    # Another name for each key, which no text could have by itself.
    app.key_names = {name: f"<{number}>" for number, name in enumerate(app.key_names)}
    plotted = "m" in keys
    async with app.run_test(size=(120, 40 if plotted else 30)) as pilot:
        await until(pilot, lambda: not plotted or app.screen.query("Plot"), "the plot, whose keys are offered late")
        await pilot.press(*keys)
        wanted = {app.key_names[name] for name in told}
        await until(pilot, lambda: wanted <= set(re.findall(r"<\d+>", seen(app))), f"{told} after {keys}")


async def test_a_moved_key_is_told_in_its_new_place() -> None:
    """From the settings to the text: what is told is what works."""
    mine = Settings(keys={"question.cancel": "f8", "run.stop": "f7"})
    app = DdptopApp(StillSource(frame()), clock=lambda: NOW, settings=mine)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f7")
        await until(pilot, lambda: "f8 cancels" in seen(app), "the hint")
        await pilot.press("f8")
        await until(pilot, lambda: len(app.screen_stack) == 1, "closed")


def test_keys_in_words_are_told_apart() -> None:
    """A terminal without arrows has their names, with a sign between; a click on either does what it does."""
    words = Hint("rank.previous", (("left", "left"), ("right", "right")), "Step", "")
    assert "".join(segment.text for segment in words.drawn(INK)) == "left/right Step"
    assert [words.key_at(x) for x in (0, 3, 5, 9)] == ["left", "left", "right", "right"]
    arrows = Hint("rank.previous", (("left", "←"), ("right", "→")), "Step", "")
    assert "".join(segment.text for segment in arrows.drawn(INK)) == "←→ Step"


@pytest.mark.parametrize(("known_by", "diagnosed"), [("agent", {"run.profile"}), ("outside", set[str]())])
async def test_a_frozen_run_offers_the_diagnoses_that_it_could_have(known_by: str, diagnosed: set[str]) -> None:
    """The newest one is shown until it is resumed; of a job without an agent there is none, then or later."""
    app = DdptopApp(StillSource(frame("frozen", known_by=known_by)), clock=lambda: NOW)
    async with app.run_test(size=(200, 50)) as pilot:
        await until(pilot, lambda: "Kill" in app.screen.query_one(KeyBar).text, "the keys of the screen")
        offered = {hint.id for hint in hints_of(app.screen, app.key_names)}
        assert offered & {"run.profile"} == diagnosed
