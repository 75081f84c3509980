"""The keys that diagnose a run, and the screen of a diagnosis."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.harness import DEADLINE_S
from support.screens.dashboards import dashboard, seen, until
from support.screens.frames import StillSource, frame
from textual.screen import Screen

from ddptop.agent.observer.record.profiles.kept import Kept
from ddptop.agent.observer.record.profiles.summary import Difference, Summary
from ddptop.tui.model.diagnosis.profile import newest
from ddptop.tui.screens.diagnosis import DiagnosisScreen
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.lists import EventScreen
from ddptop.tui.screens.run import RunScreen

SENTENCE = "aten::sort takes 18 ms a step on rank 2 and 0.4 ms on rank 0: 12 calls against 12"
SORT = Difference("aten::sort", 18.0, 0.4, 17.6, 12.0, 12.0, ["[200000]"], ["[100]"])
KEPT = Kept(
    "0003",
    Path("/run/resnet-7f3a/profiles/0003/trace.json.gz"),
    40_000,
    Summary("resnet-7f3a", (5, 7), [0, 2], 2, 0, 1.5e9, [SENTENCE], [SORT], 0, True, "rank 2 against rank 0"),
)


async def test_the_key_profiles_and_shows_what_that_says() -> None:
    """Three steps of the accused rank and an ordinary one, or of the first ranks; `escape` leads back."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(110, 30)) as pilot:
        source.kept["profile"] = newest([KEPT])
        await pilot.press("P")
        await until(pilot, lambda: SENTENCE in seen(pilot.app), "the summary")
        assert source.asked == ["profile 3 (0, 1, 2, 3) True"]
        assert isinstance(pilot.app.screen, DiagnosisScreen)
        text = seen(pilot.app)
        assert "profile 0003: steps 5 to 7 of ranks 0, 2" in text
        assert "12 / 12 " in text
        assert "[200000] against [100]" in text
        assert "profiles/0003/trace.json.gz" in text
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the run")


@pytest.mark.parametrize(("key", "place"), [("k", KillDialog), ("e slash", EventScreen)])
async def test_a_profile_does_not_come_between_the_user_and_a_dialog(
    key: str, place: type[Screen[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor takes what is typed into a field: a message says where it is."""
    source, made = StillSource(frame()), threading.Event()
    monkeypatch.setattr(source, "diagnose", lambda *_, **__: made.wait(DEADLINE_S) and "/run/profiles/0001")
    async with dashboard(source).run_test(size=(110, 30), notifications=True) as pilot:
        await pilot.press("P", *key.split())
        await until(pilot, lambda: isinstance(pilot.app.screen, place), "the place to type")
        made.set()
        await until(pilot, lambda: pilot.app._notifications, "a message")
        assert [each.message for each in pilot.app._notifications] == ["profile kept in /run/profiles/0001"]
        assert isinstance(pilot.app.screen, place)


@pytest.mark.parametrize(("kept", "says"), [([KEPT], SENTENCE), ([], "no profile is kept with this run")])
async def test_an_ended_run_shows_its_newest_profile(kept: list[Kept], says: str) -> None:
    """Nothing is asked of it."""
    source = StillSource(frame("finished"))
    source.kept["profile"] = newest(kept)
    async with dashboard(source).run_test(size=(110, 30)) as pilot:
        await pilot.press("P")
        await until(pilot, lambda: says in seen(pilot.app), "the profile")
        assert source.asked == []


async def test_a_paused_run_says_why_it_is_not_profiled() -> None:
    """A profile is of steps."""
    source = StillSource(frame("paused"))
    async with dashboard(source).run_test(size=(110, 30), notifications=True) as pilot:
        await pilot.press("P")
        assert [each.message for each in pilot.app._notifications] == ["P does nothing: the run is paused"]
        assert source.asked == []
