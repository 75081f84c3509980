"""The hint of the first run: one line, in its time, until it was used once on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.screens.dashboards import INK, KEYS, SIZES, seen, settled, text_of, until
from support.screens.frames import NOW, StillSource, frame, verdict_frame
from textual.pilot import Pilot

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import Look, Settings
from ddptop.agent.client.start.request import Request
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys.hint import QUIET_S, FirstHint
from ddptop.tui.launch import remembered
from ddptop.tui.launch.form import Draft
from ddptop.tui.views.screen.header import header_rows

SEE_WAITS = "press 4: see who waits"
ALL_KEYS = "press ? for all keys"


def hinting(shown: Frame) -> DdptopApp:
    """Return a dashboard with a hint."""
    return DdptopApp(StillSource(shown), clock=lambda: NOW, hint=FirstHint())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the use of the hint is kept; its folder is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/ddptop/hint-used"


def test_it_comes_with_the_first_verdict_or_after_half_a_minute(file: Path) -> None:
    """Not at the start and not at the end; a verdict on a single rank has nobody who waits."""
    hint = FirstHint()
    run = frame()

    def text(shown: Frame, after: float) -> str:
        return hint.text(replace(shown, at=NOW + after), KEYS)

    assert text(frame("starting"), -60.0) == ""
    assert text(run, 0.0) == ""
    assert text(run, QUIET_S - 1) == ""
    assert text(verdict_frame(), 1.0) == SEE_WAITS
    assert text(replace(verdict_frame(), world=1), 1.0) == ALL_KEYS
    assert text(run, QUIET_S) == ALL_KEYS
    assert text(frame("finished"), QUIET_S) == ""
    ended = tuple(replace(rank, state="finished") for rank in verdict_frame().ranks)
    assert text(replace(verdict_frame(), state="ending", ranks=ended), 1.0) == ""
    assert not file.exists()


@pytest.mark.parametrize("key", ["4", "question_mark"])
async def test_it_is_gone_once_a_key_that_it_may_name_was_pressed(file: Path, key: str) -> None:
    """In this dashboard and in the next ones; any other key leaves it there."""
    source = StillSource(verdict_frame())
    app = DdptopApp(source, clock=lambda: NOW, hint=FirstHint())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: SEE_WAITS in seen(app), "the hint")
        await pilot.press("2")
        source.current = replace(verdict_frame(), at=NOW + 1)
        await until(pilot, lambda: app.frame is source.current, "a frame with the table")
        assert SEE_WAITS in seen(app)
        assert not file.exists()
        await pilot.press(key)
        source.current = replace(verdict_frame(), at=NOW + 2)
        await until(pilot, lambda: file.exists(), "remembered")
        await pilot.press("escape")
        await until(pilot, lambda: SEE_WAITS not in seen(app), "gone")
    assert FirstHint().text(verdict_frame(), KEYS) == ""


async def test_a_view_that_is_shown_from_the_start_was_not_chosen(file: Path) -> None:
    """Settings that begin with the timeline are no sign that somebody has read the hint."""
    mine = Settings(look=Look(view="timeline"))
    app = DdptopApp(StillSource(verdict_frame()), clock=lambda: NOW, settings=mine, hint=FirstHint())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: SEE_WAITS in seen(app), "the hint")
        assert not file.exists()


def test_without_a_home_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint, the settings of a launch and the programs launched are then of this dashboard only."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    hint = FirstHint()
    hint.use("view.timeline")
    assert hint.text(verdict_frame(), KEYS) == ""
    remembered.note_launch(Request("toy"))
    assert remembered.recent() == []
    assert remembered.recall() == (Draft(), None)
    assert "set HOME or XDG_STATE_HOME" in (remembered.remember(Draft()) or "")


async def test_it_names_the_key_that_the_user_has(file: Path) -> None:
    """A moved key is told in its new place."""
    mine = Settings(keys={"view.timeline": "f9"})
    app = DdptopApp(StillSource(verdict_frame()), clock=lambda: NOW, settings=mine, hint=FirstHint())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "press f9: see who waits" in seen(app), "the hint")


def test_a_place_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is over for this dashboard all the same."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    hint = FirstHint()
    assert hint.text(verdict_frame(), KEYS) == SEE_WAITS
    hint.use("view.timeline")
    assert hint.text(verdict_frame(), KEYS) == ""


@pytest.mark.parametrize("roomy", [True, False])
@pytest.mark.parametrize("shown", [frame(), verdict_frame(), frame(note=None, placement="")])
def test_it_is_the_last_line_of_the_header(shown: Frame, roomy: bool) -> None:
    """It takes nothing from the lines above it."""
    bare = [text_of(row) for row in header_rows(shown, 78, INK, KEYS, roomy=roomy)]
    rows = [text_of(row) for row in header_rows(shown, 78, INK, KEYS, hint=SEE_WAITS, roomy=roomy)]
    assert [row for row in rows if row] == [*(row for row in bare if row), SEE_WAITS]


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("size", ["80x24", "120x40"])
def test_pictures(snap_compare: Callable[..., bool], file: Path, size: str) -> None:
    """Below the verdict."""

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot)

    assert snap_compare(hinting(verdict_frame()), terminal_size=SIZES[size], run_before=before)
