"""What colors and signs say reaches every eye and every terminal."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from support.screens.dashboards import seen, until
from support.screens.frames import EVIL, NOW, StillSource, verdict_frame
from support.screens.terminal import TESTS
from textual.color import Color
from textual.pilot import Pilot
from textual.theme import Theme

import ddptop.tui.drawing.theme
from ddptop.agent.client.host.settings import Look, Settings
from ddptop.agent.wire.frames import STATES
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.drawing import glyphs
from ddptop.tui.drawing.theme import LETTERS, MARKS, THEMES, ink
from ddptop.tui.views.timeline.lines import LAST

TUI = Path(ddptop.tui.drawing.theme.__file__).parent.parent
DECORATION = {"rank-border", "row-chosen"}
"""Names of hues that no text has."""


def light(hue: str) -> NDArray[np.float64]:
    """Return a color in linear light, as WCAG 2.2 defines it."""
    parts = np.array(Color.parse(hue).rgb) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.2, 1 to 21."""
    low, high = sorted(float(light(each) @ (0.2126, 0.7152, 0.0722)) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira, Fernandes 2009, severity 1.0, in linear light.
EYES = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return CIE L*a*b* under D65."""
    x, y, z = np.cbrt(XYZ @ np.clip(linear, 0, 1) / (0.95047, 1.0, 1.08883))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def apart(one: str, other: str) -> tuple[float, str]:
    """Return the smallest distance (CIE76) that two hues have, and for which eyes; about 2 can just be seen."""
    return min(
        (float(np.linalg.norm(lab(eye @ light(one)) - lab(eye @ light(other)))), name) for name, eye in EYES.items()
    )


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_all_text_can_be_read(theme: Theme) -> None:
    """Every hue of text has a contrast of 4.5 on both grounds, letters on the bars too (WCAG 2.2, AA)."""
    grounds = [str(theme.background), str(theme.panel)]
    hues = {**theme.variables, "foreground": str(theme.foreground)}
    for name, hue in hues.items():
        if name.startswith("phase-"):
            assert contrast("#0b0d10", hue) >= 4.5, name
        elif name not in DECORATION and not name.startswith("shade-"):
            assert min(contrast(hue, ground) for ground in grounds) >= 4.5, name
    for name in ("value", "label"):
        assert contrast(hues[name], hues["row-chosen"]) >= 4.5, f"{name} in the chosen row"
    style, _ = ink(theme.name).block("data")
    assert style.color is not None
    assert style.color.name == "#0b0d10"


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_hues_stay_apart_for_color_blind_eyes(theme: Theme) -> None:
    """What is told apart by hue beside a sign differs for deuteranopes and protanopes as well."""
    hues = theme.variables
    groups = (
        (12, [f"phase-{phase}" for phase in LETTERS]),
        (10, [f"state-{state}" for state in ("starting", "running", "paused", "stalled", "silent", "failed")]),
        (15, ["level-info", "level-warning", "level-error"]),
        (15, ["value", "rank-slow"]),
        (8, [f"line-{number}" for number in range(8)]),
    )
    for bound, names in groups:
        for one, other in itertools.combinations(names, 2):
            distance, eyes = apart(hues[one], hues[other])
            assert distance >= bound, (one, other, eyes)


def signs() -> set[str]:
    """Return every sign beyond ASCII in the texts of the dashboard, taken from its source."""
    found: set[str] = set()
    for file in TUI.rglob("*.py"):
        if file.name in ("glyphs.py", "units.py"):
            continue
        tree = ast.parse(file.read_text())
        documents = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                found |= {char for char in node.value if not char.isascii()}
    return found


def test_every_sign_has_one_in_ascii_of_its_own_width() -> None:
    """No sign of the dashboard becomes a question mark; what tells states apart still does."""
    for sign in signs():
        plain = glyphs.ascii_of(sign)
        assert plain.isascii()
        assert plain != "?", f"{sign} is missing in glyphs.py"
    plain_marks = {glyphs.ascii_of(MARKS[state]) for state in STATES}
    assert len(plain_marks) == len(STATES)
    assert glyphs.ascii_of(LAST) not in plain_marks, "the rank that came last is no state"
    for text in (EVIL, "温度 émile ⠿⠁⠀ 👩‍👩‍👧 \u202e"):
        assert cell_len(glyphs.ascii_of(text)) == cell_len(text)
        assert glyphs.ascii_of(text).isascii()


SCREENS = ((), ("enter",), ("escape", "g"), ("escape", "k"), ("escape", "question_mark"), ("escape", "ctrl+p"))
"""Keys that show one screen after the other."""


async def changed(pilot: Pilot[None], keys: tuple[str, ...], before: str) -> str:
    """Press keys, and return what the screen shows once the run is on it and it is not what it was before."""
    await pilot.press(*keys)
    await until(pilot, lambda: seen(pilot.app).strip() and seen(pilot.app) != before, f"another screen after {keys}")
    await pilot.pause()
    return seen(pilot.app)


async def test_every_screen_in_ascii_has_nothing_else() -> None:
    """Borders, bars, plots, marks, the footer and the palette: ASCII, in the same places."""
    app = DdptopApp(StillSource(verdict_frame()), clock=lambda: NOW, settings=Settings(look=Look(glyphs="ascii")))
    async with app.run_test(size=(120, 40)) as pilot:
        text = ""
        for keys in SCREENS:
            text = await changed(pilot, keys, text)
            assert text.isascii(), {char for char in text if not char.isascii()}
            assert len({len(line) for line in text.splitlines()}) == 1


async def test_without_color_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR no cell has a color, and phases, states, the slow rank and the chosen one are still told apart."""
    monkeypatch.setenv("NO_COLOR", "1")
    app = DdptopApp(StillSource(verdict_frame()), clock=lambda: NOW)
    async with app.run_test(size=(120, 40)) as pilot:
        text = await changed(pilot, (), "")
        assert re.search("d+f+b+o+w+", text)
        assert "● RUNNING" in text
        assert "◀ slow" in text
        assert "┏━ 0" in text
        for keys in SCREENS:
            text = await changed(pilot, keys, text if keys else "")
            for segment in itertools.chain.from_iterable(app.screen._compositor.render_strips()):
                style = segment.style or Style.null()
                for color in (style.color, style.bgcolor):
                    assert color is None or color.is_default, (keys, segment)


FORBIDDEN = {
    "16": r"\x1b\[[0-9;]*[34]8;",
    "256": r"\x1b\[[0-9;]*[34]8;2;",
    "none": r"\x1b\[[0-9;]*(3[0-8]|4[0-8]|9[0-7])[;m]",
}
"""By setting, what no sequence may be."""


def test_as_many_colors_as_are_wanted(tmp_path: Path) -> None:
    """No sequence goes out that the terminal was not said to have. Rich keeps what it wrote: hence a fork for each."""
    code = f"""
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from support.screens.frames import StillSource, frame
from ddptop.tui.app.app import DdptopApp
from ddptop.agent.client.host.settings import Look, Settings
async def main(color):
    app = DdptopApp(StillSource(frame()), settings=Settings(look=Look(color=color)))
    async with app.run_test(size=(80, 24)):
        written = "".join(strip.render(app.console) for strip in app.screen._compositor.render_strips())
        Path(sys.argv[1], color).write_text(written)
for color in {list(FORBIDDEN)}:
    if not os.fork():
        asyncio.run(main(color))
        os._exit(0)
    os.wait()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    for color, forbidden in FORBIDDEN.items():
        written = (tmp_path / color).read_text()
        assert "RUNNING" in written
        assert "\x1b[" in written
        assert not re.search(forbidden, written), color


@pytest.mark.parametrize(("locale", "plain"), [("C", True), ("C.UTF-8", False)])
def test_signs_follow_the_locale(locale: str, plain: bool) -> None:
    """Where the encoding is not UTF-8, ASCII is drawn and printed without being asked for."""
    environment = {**os.environ, "LC_ALL": locale, "PYTHONIOENCODING": "ascii" if plain else "utf-8"}
    code = (
        "from ddptop.tui.drawing import glyphs; import sys\n"
        "if sys.stdout.encoding != 'utf-8': glyphs.let_print()\n"
        "print(glyphs.locale_is_unicode(), '● – …')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ("False o - ~\n" if plain else "True ● – …\n")
