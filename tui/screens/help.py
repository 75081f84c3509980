"""Keys, signs and letters. The keys come from the bindings themselves, so that they cannot be wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import ClassVar, Final

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row
from ddptop.tui.drawing.theme import LETTERS, MARKS, Ink
from ddptop.tui.drawing.units import DASH
from ddptop.tui.model.frame import STATES
from ddptop.tui.screens.dialogs.dialog import Dialog

_STATE_WORDS = {
    "starting": "on its way to the first step",
    "running": "completes steps",
    "pausing": "runs up to the step where all are held",
    "paused": "held at a step; nothing is lost, no timeout fires",
    "frozen": "its processes are stopped where they stood; timeouts go on",
    "stalled": "alive, but no step is completed",
    "silent": "no sign of life from its agent",
    "killing": "being ended",
    "finished": "ended by itself, exit code 0",
    "ended": "ended by itself, exit code not known",
    "stopped": "ended in order at a step, by request",
    "failed": "ended by an error",
    "killed": "ended by request",
    "lost": "ended with nobody watching",
}
_PHASE_WORDS = {
    "data": "waiting for the data loader",
    "forward": "computing the loss",
    "backward": "computing gradients",
    "optimizer": "updating the parameters",
    "wait": "blocked in a collective",
    "other": "the rest of the step",
}


_WIDEST: Final = 86


class HelpScreen(Dialog[None]):
    """What the keys do and what the signs mean."""

    DECIDES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close", id="help.close", tooltip="Close the help")
    ]

    def __init__(self, keys: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        self._keys = keys
        """Section, keys and meaning of every binding."""

    def compose(self) -> ComposeResult:
        """One page."""
        yield Page(id="help")

    def on_mount(self) -> None:
        """Fill it."""
        page = self.query_one(Page)
        page.border_title = "help"
        page.border_subtitle = Content(f"{keys_of(self)['help.close']} closes, arrows scroll")
        # The style sheet has it no wider; before the first layout the page itself does not know.
        page.show_rows(help_rows(self._keys, page.ink, min(_WIDEST, self.app.size.width) - 4))
        page.focus()


def help_rows(keys: Sequence[tuple[str, str, str]], ink: Ink, width: int) -> list[Row]:
    """Return the text of the help screen in so many cells."""
    rows: list[Row] = []
    last = ""
    for place, key, what in keys:
        if place != last:
            rows += [[], [Segment(f"keys: {place}", ink["bold brand"])]]
            last = place
        lines = textwrap.wrap(what, max(10, width - 19 - len(key[16:])))
        rows.append([Segment(f"  {key:<16} ", ink["bold value"]), Segment(lines[0], ink["value"])])
        rows += [[Segment(" " * 19 + line, ink["value"])] for line in lines[1:]]
    rows += [[], [Segment("states", ink["bold brand"])]]
    for state in STATES:
        hue = ink[f"bold state-{state}"]
        rows.append(
            [
                Segment(f"  {MARKS[state]} ", hue),
                Segment(f"{state:<14}", hue),
                Segment(_STATE_WORDS[state], ink["value"]),
            ]
        )
    rows += [[], [Segment("a step, by letter; the bars of all ranks have one scale", ink["bold brand"])]]
    for phase, letter in LETTERS.items():
        first, rest = ink.block(phase)
        rows.append(
            [
                Segment("  "),
                Segment(letter, first),
                Segment(letter * 2, rest),
                Segment(f" {phase:<12}", ink["label"]),
                Segment(_PHASE_WORDS[phase], ink["value"]),
            ]
        )
    rows += [[], [Segment("words", ink["bold brand"])]]
    for word, meaning in (
        ("all-reduce", "call to end, waiting for peers included: median, p99"),
        ("rss, mem", "resident memory of the process; memory on the device"),
        ("cpu", "in percent of one core, data workers included"),
        ("◀ slow", "the rank that the line under the header names"),
        ("! not finite", "its loss or gradients are NaN or infinite"),
        ("… ago", "since the rank completed a step"),
        (DASH, "not known"),
    ):
        rows.append([Segment(f"  {word:<16}", ink["label"]), Segment(meaning, ink["value"])])
    return rows[1:]
