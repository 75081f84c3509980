"""Settings: read, refused, written, and followed by what they are about."""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from support.harness import ddptop
from support.screens.dashboards import footer_keys, seen, until
from support.screens.frames import NOW, StillSource, frame, frame_at
from textual.color import Color
from textual.css.stylesheet import Stylesheet

from ddptop.agent import wire
from ddptop.agent.client.host import settings
from ddptop.agent.client.host.settings import Look, Settings, SettingsError, Thresholds
from ddptop.agent.client.start import run as start
from ddptop.agent.client.start.request import RequestError
from ddptop.agent.observer.model.changes import Changes
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
from ddptop.tui.cli.main import main
from ddptop.tui.drawing.theme import DARK, LIGHT


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file, not there yet."""
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ddptop").mkdir()
    return tmp_path / "ddptop" / "config.toml"


def test_where_the_file_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable names it; else it is where the XDG specification says; relative bases are ignored."""
    assert settings.path() == file
    assert settings.load() == Settings()
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ann")
    assert settings.path() == Path("/home/ann/.config/ddptop/config.toml")
    monkeypatch.setenv(settings.VARIABLE, "~/mine.toml")
    assert settings.path() == Path("/home/ann/mine.toml")
    with pytest.raises(SettingsError, match="no such file"):
        settings.load()


def test_a_user_without_a_home_has_the_defaults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an account without a name, in a container without HOME."""

    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert settings.load() == Settings()
    assert settings.path().is_absolute()
    monkeypatch.setenv(settings.VARIABLE, "~/mine.toml")
    with pytest.raises(SettingsError, match="give its whole path"):
        settings.load()


def test_a_run_is_given_the_room_that_the_settings_say(file: Path, runtime: Path) -> None:
    """Half a gigabyte and four of all runs where they say nothing."""
    run = Run("r", "id", "x.py", (), 2, None, None, 10**9, True)

    def given() -> tuple[int, int]:
        with_room = start._with_room(run, None)
        return with_room.run_bytes, with_room.all_bytes

    assert given() == (512 << 20, 4 << 30)
    file.write_text("[storage]\nrun_mib = 16\nall_mib = 100_000\n")
    assert given() == (16 << 20, 100_000 << 20)
    file.write_text("[storage]\nrun_mib = 'all'\n")
    with pytest.raises(RequestError, match=r"storage\.run_mib"):
        given()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[look]\ntheme = drak", "not TOML: .*line 2"),
        ("[look]\ntheme = 'drak'", "look.theme: 'drak' is not one of dark, light;"),
        ("[look]\nthem = 'dark'", "look: .*unknown field `them`"),
        ("[lok]\n", "unknown field `lok`"),
        ("look = 3", "look: expected `object`"),
        ("[thresholds]\nstalled_s = -1", "thresholds.stalled_s: expected `float` >= 0.1"),
        ("[thresholds]\nsilent_s = nan", "thresholds.silent_s"),
        ("[storage]\nrun_mib = 1", "storage.run_mib: expected `int` >= 8"),
        ("[keys]\nrun.pause = 3", "keys: expected"),
        ("[keys]\nrun.paus = 'p'", "keys.run.paus: .*did you mean run.pause"),
        ("[keys]\n'run.kill' = 'spce'", "keys.run.kill: .*'spce'"),
        ("[keys]\nrun.kill = ''", "keys.run.kill: no key"),
        ("[keys]\nrun.kill = 'q'", "app.leave and run.kill are both on q|run.kill and app.leave are both on q"),
        ("[keys]\nrun.kill = 'enter'", "run.kill.*ranks.open.*enter"),
        ("[keys]\nkill.cancel = 't'", "app.theme.*kill.cancel"),
        ("\udcff", "not TOML"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(file: Path, text: str, says: str) -> None:
    """The line names the file, the place in it and what is wrong there."""
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(SettingsError, match=says) as refused:
        keymap.check(DdptopApp, settings.load().keymap)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


def test_a_broken_file_stops_before_anything_starts(file: Path, tmp_path: Path, runtime: Path) -> None:
    """Launch starts no run; kill does not need the settings and is not held up by them."""
    file.write_text("[keys]\nrun.kill = 'q'\n")
    (tmp_path / "ok.py").write_text("")
    before = set(runtime.iterdir())
    done = ddptop("launch", "ok.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert str(file) in done.stderr
    assert set(runtime.iterdir()) == before
    assert "no such run" in ddptop("kill", "nothing").stderr


@pytest.mark.parametrize("text", ["[look]\ntheme = 'blue'\n", "[keys]\nrun.kill = 'q'\n", "look"])
def test_config_helps_with_a_broken_file(
    file: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lists every setting all the same; the error is one line on stderr, and the exit code is 2."""
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["ddptop", "config"])
    with pytest.raises(SystemExit) as ended:
        main()
    output, errors = capsys.readouterr()
    assert (ended.value.code, errors.count("\n")) == (2, 1)
    assert str(file) in errors
    everything = msgspec.toml.decode(re.sub(r"(?m)^# (?=\S+ = )", "", output), type=Settings)
    assert set(everything.keymap) == {action.id for _, action in keymap.actions(DdptopApp)}
    assert "One of dark, light." in output


def test_what_only_prints_needs_no_settings(
    file: Path, own_base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ps` and `status` print, whatever stands there."""
    file.write_text("[look]\ntheme = 'blue'\n")
    name = f"settled-{os.getpid()}"
    rundir.create(Run(name, name, "toy", (), 1, "gloo", "cpu", time.time_ns(), True, state="finished", exit_code=0))
    for arguments in (["ps"], ["status", name]):
        monkeypatch.setattr(sys, "argv", ["ddptop", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert name in capsys.readouterr().out


def test_what_config_prints_is_the_file_it_came_from(file: Path) -> None:
    """Printed, it says the same again; with every comment taken away it is all the defaults."""
    file.write_text(
        '[look]\ntheme = "light"\n[plain]\ninterval_s = 0.5\n[keys]\nrun.pause = "p,f5"\n"rank.logs" = "f9"\n'
    )
    printed = ddptop("config").stdout
    assert str(file) in printed
    again = msgspec.toml.decode(printed, type=Settings)
    assert again.look == Look(theme="light")
    assert again.keymap == settings.load().keymap == {"run.pause": "p,f5", "rank.logs": "f9"}
    file.unlink()
    everything = re.sub(r"(?m)^# (?=\S+ = )", "", ddptop("config").stdout)
    every = msgspec.toml.decode(everything, type=Settings)
    assert (every.look, every.plain, every.thresholds) == (Look(), Settings().plain, Thresholds())
    assert set(every.keymap) == {action.id for _, action in keymap.actions(DdptopApp)}
    keymap.check(DdptopApp, every.keymap)


async def test_keys_follow_the_settings() -> None:
    """The new key works and is shown in footer, header and help; the old one does nothing; its neighbour keeps it."""
    source = StillSource(frame())
    mine = Settings(keys={"run": {"pause": "p,f5"}, "app.help": "H", "app.leave": "Q"})
    app = DdptopApp(source, clock=lambda: NOW, settings=mine)
    async with app.run_test(size=(100, 70), notifications=True) as pilot:
        await pilot.press("space", "question_mark")
        assert source.asked == []
        await pilot.press("p")
        await until(pilot, lambda: source.asked == ["pause"], "the new key")
        await until(pilot, lambda: "Resume" in footer_keys(app), "paused")
        assert "space Resume" in seen(app)
        await pilot.press("space")
        await until(pilot, lambda: source.asked == ["pause", "resume"], "the key that was left to resume")
        await pilot.press("f5")
        await until(pilot, lambda: source.asked[2:] == ["pause"], "the other new key")
        await pilot.press("H")
        text = seen(app)
        assert re.search(r"p f5 +Pause all ranks", text)
        assert re.search(r"space +Resume all ranks", text)
        assert re.search(r"Q ctrl\+c +Leave", text)
        await pilot.press("escape", "Q")
    assert app.return_code == 0


async def test_the_first_theme_is_there_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first screen has the colors of its theme without a second reading of the style sheet; later themes do too."""
    read: list[Stylesheet] = []
    reparse = Stylesheet.reparse

    def counted(sheet: Stylesheet) -> None:
        read.append(sheet)
        reparse(sheet)

    monkeypatch.setattr(Stylesheet, "reparse", counted)
    app = DdptopApp(StillSource(frame()), settings=Settings(look=Look(theme="light")))
    async with app.run_test(size=(80, 24)) as pilot:
        assert not read
        assert app.screen.styles.background == Color.parse(str(LIGHT.background))
        await pilot.press("t")
        await pilot.pause()
        assert read
        assert app.screen.styles.background == Color.parse(str(DARK.background))


async def test_another_theme_says_how_to_keep_it() -> None:
    """With the line for the settings file; the one that is kept says nothing."""
    app = DdptopApp(StillSource(frame()), settings=Settings(look=Look(theme="dark")))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        (said,) = app._notifications
        assert 'theme = "light" in [look] of ' in said.message
        # As Textual's markup, the section would be a style that is not seen.
        assert not said.markup
        await pilot.press("t")
        assert list(app._notifications) == [said]


async def test_the_dashboard_begins_as_it_is_set() -> None:
    """Theme and view are those of the settings."""
    app = DdptopApp(StillSource(frame()), settings=Settings(look=Look(theme="light")))
    async with app.run_test(size=(80, 24)):
        assert app.theme == "ddptop-light"


def test_thresholds_decide_what_is_told() -> None:
    """The same records with other thresholds: stalled earlier, silent later, a verdict that is too small not told."""
    run = Run("toy-1", "id", "toy.py", (), 1, "gloo", "cpu", 10**9, True)
    at, ms = 100.0, 10**6

    def state(after: float, **thresholds: float) -> str:
        store = Store(run, thresholds=Thresholds(**thresholds))
        step = wire.Step(1, 1, int(at * 1e9), 10 * ms, 0, 10 * ms, 0, 0, 0, 0, 1.0, 32, ())
        store.apply(wire.Steps(0, (step,)), at)
        store.apply(wire.Beat(0, int(at * 1e9), "running", "forward", 1, int(at * 1e9), 1), at + after - 1)
        return frame_at(store, at + after).ranks[0].state

    assert [state(5.0), state(5.0, stalled_s=4.0)] == ["running", "stalled"]
    changes = Changes(verdict_share=0.2)
    for share, told in ((0.15, None), (0.25, 0.25), (0.15, 0.15), (0.1, None)):
        changes.note_verdicts(1, (wire.Verdict(1, "slow_rank", "…", 1, rank=0, share=share),))
        assert (changes.verdicts[0].share if changes.verdicts else None) == told, "once shown it does not come and go"
