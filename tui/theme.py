"""Every color of the dashboard, by what it means, and the sign that says the same without color.

The hues of the phases are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which
people with color-blind vision can tell apart; a letter or a shape always stands beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

MARKS: Final[Mapping[str, str]] = {
    "starting": "◌",
    "running": "●",
    "pausing": "◐",
    "paused": "‖",
    "frozen": "*",
    "stalled": "▲",
    "silent": "?",
    "killing": "×",
    "finished": "✓",
    "stopped": "□",
    "failed": "✗",
    "killed": "■",
    "lost": "◇",
}
"""One sign for each of `frame.STATES`."""

LETTERS: Final[Mapping[str, str]] = {
    "data": "d",
    "forward": "f",
    "backward": "b",
    "optimizer": "o",
    "wait": "w",
    "other": "·",
}
"""One letter for each of `wire.PHASES`, in the order of a step."""

RANK_HUES: Final = 8
"""Lines of the plot that have a color of their own; further ranks begin again."""

_DARK_HUES: Final = {
    "state-starting": "#56b4e9",
    "state-running": "#3fc380",
    "state-pausing": "#f0e442",
    "state-paused": "#f0e442",
    "state-frozen": "#e69f00",
    "state-stalled": "#e69f00",
    "state-silent": "#cc79a7",
    "state-killing": "#ef6a4c",
    "state-finished": "#3fc380",
    "state-stopped": "#3fc380",
    "state-failed": "#ef6a4c",
    "state-killed": "#ef6a4c",
    "state-lost": "#cc79a7",
    "phase-data": "#e69f00",
    "phase-forward": "#56b4e9",
    "phase-backward": "#2f7fc1",
    "phase-optimizer": "#009e73",
    "phase-wait": "#d8688a",
    "phase-other": "#7d8590",
    "rank-slow": "#e69f00",
    "rank-chosen": "#ffffff",
    "rank-border": "#4b5563",
    "level-info": "#9aa4b2",
    "level-warning": "#e69f00",
    "level-error": "#ef6a4c",
    "value": "#e8ecf1",
    "label": "#8d97a5",
    "faint": "#5b6472",
    "gauge": "#7a9cc6",
    "history": "#7fb8a4",
    "brand": "#56b4e9",
}
_LINES: Final = ("#56b4e9", "#e69f00", "#3fc380", "#cc79a7", "#f0e442", "#4f8fd0", "#ef6a4c", "#b0b8c4")

_LIGHT_HUES: Final = {
    "state-starting": "#0072b2",
    "state-running": "#00734f",
    "state-pausing": "#7a6a00",
    "state-paused": "#7a6a00",
    "state-frozen": "#a35f00",
    "state-stalled": "#a35f00",
    "state-silent": "#9a3f74",
    "state-killing": "#b53a10",
    "state-finished": "#00734f",
    "state-stopped": "#00734f",
    "state-failed": "#b53a10",
    "state-killed": "#b53a10",
    "state-lost": "#9a3f74",
    "phase-data": "#e69f00",
    "phase-forward": "#56b4e9",
    "phase-backward": "#2f7fc1",
    "phase-optimizer": "#1fae84",
    "phase-wait": "#d8688a",
    "phase-other": "#9aa1ab",
    "rank-slow": "#a35f00",
    "rank-chosen": "#000000",
    "rank-border": "#a9b0ba",
    "level-info": "#5a6472",
    "level-warning": "#a35f00",
    "level-error": "#b53a10",
    "value": "#16191d",
    "label": "#5a6472",
    "faint": "#9aa1ab",
    "gauge": "#4a78b0",
    "history": "#2f7d66",
    "brand": "#0072b2",
}
_LIGHT_LINES: Final = ("#0072b2", "#a35f00", "#00734f", "#9a3f74", "#7a6a00", "#56b4e9", "#b53a10", "#5a6472")


def _variables(hues: Mapping[str, str], lines: tuple[str, ...]) -> dict[str, str]:
    return {**hues, **{f"line-{index}": hue for index, hue in enumerate(lines)}}


DARK: Final = Theme(
    name="ddptop-dark",
    primary="#56b4e9",
    secondary="#7a9cc6",
    warning="#e69f00",
    error="#ef6a4c",
    success="#3fc380",
    accent="#56b4e9",
    foreground="#d5dae1",
    background="#0f1216",
    surface="#0f1216",
    panel="#1b2027",
    dark=True,
    variables=_variables(_DARK_HUES, _LINES),
)
LIGHT: Final = Theme(
    name="ddptop-light",
    primary="#0072b2",
    secondary="#4a78b0",
    warning="#a35f00",
    error="#b53a10",
    success="#00734f",
    accent="#0072b2",
    foreground="#23272d",
    background="#fbfbf9",
    surface="#fbfbf9",
    panel="#e9ebee",
    dark=False,
    variables=_variables(_LIGHT_HUES, _LIGHT_LINES),
)
THEMES: Final = (DARK, LIGHT)


class Ink:
    """The styles of one theme by name, for widgets that draw their own cells."""

    def __init__(self, theme: Theme) -> None:
        self.hues = theme.variables
        self._styles: dict[str, Style] = {}

    def __getitem__(self, name: str) -> Style:
        """Return the style of a name in the theme's variables; `bold …` makes it bold."""
        found = self._styles.get(name)
        if found is None:
            weight, _, hue = name.rpartition(" ")
            found = self._styles[name] = Style(color=self.hues[hue], bold=weight == "bold")
        return found

    def block(self, phase: str) -> tuple[Style, Style]:
        """Return the style of the first cell of a phase in a bar, and of the cells after it.

        The letter is repeated in a hue near the ground's: a texture that is still there without color.
        """
        name = f"block {phase}"
        if name not in self._styles:
            ground = Color.parse(self.hues[f"phase-{phase}"])
            near = ground.blend(Color.parse("#000000"), 0.28)
            self._styles[name] = Style(color="#0b0d10", bgcolor=ground.hex, bold=True)
            self._styles[f"{name} on"] = Style(color=near.hex, bgcolor=ground.hex)
        return self._styles[name], self._styles[f"{name} on"]


@lru_cache(maxsize=4)
def ink(name: str) -> Ink:
    """Return the styles of the theme of that name, the dark one for a stranger."""
    return Ink(next((theme for theme in THEMES if theme.name == name), DARK))
