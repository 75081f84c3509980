"""Every color of the dashboard, by what it means, and the sign that says the same without color.

They begin from those of Okabe and Ito (https://jfly.uni-koeln.de/color/).  Text has a contrast of 4.5 or
more, and hues that mean different things stay apart for color-blind eyes; a test computes both.  Where a hue says
how a rank or a run is, a letter or a shape beside it says the same.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Final

from rich.style import Style
from textual.color import Color, Gradient
from textual.theme import Theme


class _Marks(dict[str, str]):
    """Signs of states, and one for each state that only a newer agent knows."""

    def __missing__(self, state: str) -> str:
        return "○"


MARKS: Final[Mapping[str, str]] = _Marks(
    {
        "starting": "◌",
        "running": "●",
        "pausing": "◐",
        "paused": "‖",
        "held": "◫",
        "frozen": "*",
        "stalled": "▲",
        "silent": "?",
        "killing": "×",
        "ending": "◔",
        "finished": "✓",
        "ended": "○",
        "stopped": "□",
        "failed": "✗",
        "killed": "■",
        "lost": "◇",
    }
)
"""One sign for each of `wire.frames.STATES`, and one for any other word."""

LETTERS: Final[Mapping[str, str]] = {
    "data": "d",
    "copy": "c",
    "forward": "f",
    "backward": "b",
    "optimizer": "o",
    "wait": "w",
    "other": "·",
}
"""One letter for each of `wire.PHASES`, in the order of a step."""

_LETTERS_ON_CPU: Final = {phase: letter for phase, letter in LETTERS.items() if phase != "copy"}


def letters_of(phases: Container[str]) -> Mapping[str, str]:
    """Return the letters of the phases that steps of this kind have: copies to a device only where they are known."""
    return LETTERS if "copy" in phases else _LETTERS_ON_CPU


RANK_HUES: Final = 8
"""Lines of the plot that have a color of their own; further ranks begin again."""

_PHASES: Final = {
    "phase-data": "#e69f00",
    "phase-copy": "#f0e442",
    "phase-forward": "#56b4e9",
    "phase-backward": "#3d86cf",
    "phase-optimizer": "#2bc48a",
    "phase-wait": "#c05a80",
    "phase-other": "#b4bcc6",
}
"""Grounds of bars and swatches, under dark letters, in both themes."""

_DARK_HUES: Final = {
    "state-starting": "#56b4e9",
    "state-running": "#3fc380",
    "state-pausing": "#f0e442",
    "state-paused": "#f0e442",
    "state-held": "#f0e442",
    "state-frozen": "#e69f00",
    "state-stalled": "#e69f00",
    "state-silent": "#cc79a7",
    "state-killing": "#ef6a4c",
    "state-ending": "#3fc380",
    "state-finished": "#3fc380",
    "state-ended": "#cc79a7",
    "state-stopped": "#3fc380",
    "state-failed": "#ef6a4c",
    "state-killed": "#ef6a4c",
    "state-lost": "#cc79a7",
    "transfer": "#009e73",
    "rank-slow": "#e69f00",
    "rank-chosen": "#ffffff",
    "rank-border": "#4b5563",
    "row-chosen": "#1f2d3f",
    "level-info": "#9aa4b2",
    "level-warning": "#e69f00",
    "level-error": "#ef6a4c",
    "value": "#e8ecf1",
    "label": "#8d97a5",
    "faint": "#7e8896",
    "gauge": "#7a9cc6",
    "history": "#7fb8a4",
    "brand": "#56b4e9",
}
_LINES: Final = ("#56b4e9", "#e69f00", "#3fc380", "#cc79a7", "#f0e442", "#8f7ff0", "#ef6a4c", "#b0b8c4")

_LIGHT_HUES: Final = {
    "state-starting": "#005a8c",
    "state-running": "#00734f",
    "state-pausing": "#7a6600",
    "state-paused": "#7a6600",
    "state-held": "#7a6600",
    "state-frozen": "#6e3a00",
    "state-stalled": "#6e3a00",
    "state-silent": "#b32d9e",
    "state-killing": "#b3123a",
    "state-ending": "#00734f",
    "state-finished": "#00734f",
    "state-ended": "#b32d9e",
    "state-stopped": "#00734f",
    "transfer": "#00734f",
    "state-failed": "#b3123a",
    "state-killed": "#b3123a",
    "state-lost": "#b32d9e",
    "rank-slow": "#8a4600",
    "rank-chosen": "#000000",
    "rank-border": "#a9b0ba",
    "row-chosen": "#d3e3f2",
    "level-info": "#4f5866",
    "level-warning": "#8a4600",
    "level-error": "#b3123a",
    "value": "#16191d",
    "label": "#4f5866",
    "faint": "#616975",
    "gauge": "#3a689f",
    "history": "#25705b",
    "brand": "#005a8c",
}
_LIGHT_LINES: Final = ("#1747d1", "#6b2c00", "#17703f", "#9a1f94", "#7a6600", "#00334d", "#5f0a14", "#4a4f58")


SHADES: Final = 16
"""Colors of a scale from little to much."""
SHADE_SIGNS: Final = ".:-=+*#%@"
"""The same scale where a terminal has no colors for it."""
NOT_FINITE: Final = "×"

# Inferno of Matplotlib (https://bids.github.io/colormap/): evenly lighter, so that it is read without any color vision.
_INFERNO: Final = (
    "#1f0c48", "#3b0964", "#550f6d", "#721a6e", "#88226a", "#a32c61", "#ba3655", "#d24644", "#e35933", "#f1731d",
    "#f98c0a", "#fbab11", "#f9c932", "#f2e963", "#fcffa4",
)  # fmt: skip


def _variables(hues: Mapping[str, str], lines: tuple[str, ...], ramp: tuple[str, ...]) -> dict[str, str]:
    shades = Gradient.from_colors(*ramp, quality=SHADES).colors
    return {
        **_PHASES,
        **hues,
        **{f"line-{index}": hue for index, hue in enumerate(lines)},
        **{f"shade-{index}": hue.hex for index, hue in enumerate(shades, start=1)},
    }


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
    variables=_variables(_DARK_HUES, _LINES, _INFERNO),
)
LIGHT: Final = Theme(
    name="ddptop-light",
    primary="#005a8c",
    secondary="#3a689f",
    warning="#8a4600",
    error="#b3123a",
    success="#00734f",
    accent="#005a8c",
    foreground="#23272d",
    background="#fbfbf9",
    surface="#fbfbf9",
    panel="#e9ebee",
    dark=False,
    variables=_variables(_LIGHT_HUES, _LIGHT_LINES, _INFERNO[:0:-1]),
)
THEMES: Final = (DARK, LIGHT)


class Ink:
    """The styles of one theme by name, for widgets that draw their own cells."""

    def __init__(self, theme: Theme) -> None:
        self.hues = theme.variables
        self._ground = Color.parse(theme.background or "#000000")
        self._styles: dict[str, Style] = {}
        self._blocks: dict[str, tuple[Style, Style]] = {}

    def __getitem__(self, name: str) -> Style:
        """Return the style of a name in the theme's variables; `bold …` makes it bold.

        A state that is not known here, as a newer agent may say it, looks like a label.
        """
        found = self._styles.get(name)
        if name == "held" and found is None:
            found = self._styles[name] = Style(color=self._ground.hex, bgcolor=self.hues["state-paused"], bold=True)
        elif found is None:
            weight, _, hue = name.rpartition(" ")
            if hue not in self.hues and "state-" in name:
                return self[f"{'bold ' * name.startswith('bold ')}label"]
            found = self._styles[name] = Style(color=self.hues[hue], bold=weight == "bold")
        return found

    def ground(self, name: str) -> Style:
        """Return a background in the hue of a name."""
        key = f"ground {name}"
        if key not in self._styles:
            self._styles[key] = Style(bgcolor=self.hues[name])
        return self._styles[key]

    def block(self, phase: str) -> tuple[Style, Style]:
        """Return the style of the first cell of a phase in a bar, and of the cells after it.

        The letter is repeated in a hue near the ground's: a texture that is still there without color.
        """
        found = self._blocks.get(phase)
        if found is None:
            ground = Color.parse(self.hues[f"phase-{phase}"])
            near = ground.blend(Color.parse("#000000"), 0.28)
            first, rest = (
                Style(color="#0b0d10", bgcolor=ground.hex, bold=True),
                Style(color=near.hex, bgcolor=ground.hex),
            )
            found = self._blocks[phase] = first, rest
        return found

    def faded(self, name: str) -> str:
        """Return the hue of a name nearer to the ground, for what stands behind."""
        return Color.parse(self.hues[name]).blend(self._ground, 0.4).hex

    def shades(self, upper: int, lower: int) -> tuple[str, Style]:
        """Return the character and the style of a cell whose halves have these shades.

        0 is not known and stays the ground; 1 to `SHADES` is the scale; the one after is not finite.
        """
        if upper == lower:
            if upper > SHADES:
                return NOT_FINITE, self["bold level-error"]
            return (" ", Style.null()) if not upper else ("█", self[f"shade-{upper}"])
        name = f"shades {upper} {lower}"
        if name not in self._styles:
            hues = [
                self.hues["level-error"] if each > SHADES else self.hues.get(f"shade-{each}") for each in (upper, lower)
            ]
            front, back = hues if upper else reversed(hues)
            self._styles[name] = Style(color=front, bgcolor=back)
        return "▀" if upper else "▄", self._styles[name]


@lru_cache(maxsize=4)
def ink(name: str) -> Ink:
    """Return the styles of the theme of that name, the dark one for a name that is not known."""
    return Ink(next((theme for theme in THEMES if theme.name == name), DARK))
