"""The keys that diagnose a run, and the screen of a diagnosis."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.harness import DEADLINE_S
from support.screens.dashboards import dashboard, seen, until
from support.screens.frames import StillSource, frame
from textual.screen import Screen

from ddptop.agent.wire import MemoryUse, ObjectKind
from ddptop.agent.wire.diagnoses.kept import Censused, Difference, Kept, RankMemory, Summary
from ddptop.agent.wire.diagnoses.probed import Probe
from ddptop.tui.screens.diagnosis import DiagnosisScreen
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.lists import EventScreen
from ddptop.tui.screens.run import RunScreen

USE = MemoryUse(5, 7, (), census_ns=900_000_000)
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
        source.kept["profile"] = [KEPT]
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


FOUND: dict[str, Kept[Any]] = {
    "profile": replace(KEPT, found=Summary("r", (5, 7), [0, 2], 2, 0, 1.5e9, ["this and that"], [], 0, True, "")),
    "probe": Kept("0001", Path("/run/probes/0001"), 1, Probe("r", 5, 1.5e9, sentences=["this and that"])),
    "memory": Kept(
        "0001", Path("/run/memory/0001"), 1, Censused("r", 1.5e9, 1, (RankMemory(1, "", "this and that", USE),))
    ),
}


@pytest.mark.parametrize(("key", "kind"), [("P", "profile"), ("D", "probe"), ("M", "memory")])
async def test_an_ended_run_shows_its_newest(key: str, kind: str) -> None:
    """Nothing is asked of it, and no key is offered that does nothing."""
    source = StillSource(frame("finished"))
    source.kept[kind] = [FOUND[kind]]
    async with dashboard(source).run_test(size=(110, 30)) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: "this and that" in seen(pilot.app), "the lines")
        assert f"all that are kept: ddptop {kind} resnet-7f3a --list" in seen(pilot.app)
        assert "makes another one" not in seen(pilot.app)
        assert key not in pilot.app.screen.active_bindings
        assert source.asked == []


@pytest.mark.parametrize(("key", "kind"), [("P", "profile"), ("M", "memory")])
async def test_a_paused_run_shows_its_newest_and_why_no_other_is_made(key: str, kind: str) -> None:
    """A profile and growth are of steps; it says what to do first, at 80 columns too."""
    source = StillSource(frame("paused"))
    source.kept[kind] = [FOUND[kind]]
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: "this and that" in seen(pilot.app), "the lines")
        assert "another one needs steps: space resumes the run" in seen(pilot.app)
        assert f"all that are kept: ddptop {kind} resnet-7f3a --list" in seen(pilot.app)
        await pilot.press(key)
        assert [each.message for each in pilot.app._notifications] == [
            f"{key} does nothing: the run is paused; space resumes it"
        ]
        assert source.asked == []
        source.current = frame("running")
        await until(pilot, lambda: f"{key} makes another one" in seen(pilot.app), "another one is offered")
        assert "needs steps" not in seen(pilot.app)


async def test_a_paused_run_can_be_probed() -> None:
    """The screen says what makes another one."""
    source = StillSource(frame("paused"))
    source.kept["probe"] = [FOUND["probe"]]
    async with dashboard(source).run_test(size=(110, 30)) as pilot:
        await pilot.press("D")
        await until(pilot, lambda: "this and that" in seen(pilot.app), "the lines")
        assert source.asked == ["probe 1 (0, 1, 2, 3) True"]
        assert "D makes another one · all that are kept: ddptop probe resnet-7f3a --list" in seen(pilot.app)


async def test_the_key_of_memory_looks_and_shows_what_grows() -> None:
    """Over three steps of the rank that a verdict names, or of the first ranks; `escape` leads back."""
    cause = "train.py:52 made 3 more float32[64, 32, 256] in 3 steps (6 MiB), held by list `kept` of main()"
    leak = ObjectKind("tensor", "Tensor", "float32", (64, 32, 256), "cpu", 9, 18 << 20, 3, 6 << 20, "train.py:52")
    use = MemoryUse(5, 7, (leak,), census_ns=900_000_000)
    kept = Kept("0002", Path("/run/memory/0002"), 1, Censused("r", 1.5e9, 1, (RankMemory(1, "", cause, use),)))
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(130, 30)) as pilot:
        source.kept["memory"] = [kept]
        await pilot.press("M")
        await until(pilot, lambda: cause in seen(pilot.app), "the sentence")
        assert source.asked == ["memory 3 (0, 1, 2, 3) True"]
        assert isinstance(pilot.app.screen, DiagnosisScreen)
        text = seen(pilot.app)
        assert "memory 0002: rank 1 over steps 5 to 7" in text
        assert "made at train.py:52" in text
        assert "for 0.9 s, by both counts" in text
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the run")


async def test_lines_end_beside_the_scroll_bar() -> None:
    """Nothing of them is cut for it."""
    words = [f"word-{number}" for number in range(200)]
    source = StillSource(frame("finished"))
    long = Probe("r", 5, 1.5e9, notes=["x" * 80, *(" ".join(words[begin : begin + 25]) for begin in range(0, 200, 25))])
    source.kept["probe"] = [Kept("0001", Path("/run/probes/0001"), 1, long)]
    async with dashboard(source).run_test(size=(80, 50)) as pilot:
        await pilot.press("D")
        await until(pilot, lambda: words[0] in seen(pilot.app), "the lines")
        text = seen(pilot.app)
        assert [word for word in words if word not in text] == []
        await pilot.resize_terminal(80, 24)
        await pilot.press("end")
        await until(pilot, lambda: words[-1] in seen(pilot.app), "the last word")
        shown = [int(number) for number in re.findall(r"word-(\d+)", seen(pilot.app))]
        assert shown == list(range(shown[0], 200))
        assert "…" not in seen(pilot.app)
