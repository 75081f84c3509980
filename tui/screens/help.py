"""The help: the keys of the screen one is on, then all others; on a page of its own what signs and words mean.

The keys come from the bindings themselves, so that they cannot be wrong.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import ClassVar, Final

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from ddptop.agent.wire.frames import STATES
from ddptop.tui.drawing.lines import Page, Row, fitted, width_of
from ddptop.tui.drawing.theme import LETTERS, MARKS, Ink
from ddptop.tui.drawing.units import DASH
from ddptop.tui.screens.dialogs.dialog import Dialog

Keys = Sequence[tuple[str, str, str]]
"""Section, keys and meaning, a line for each."""
Signs = list[tuple[list[Segment], str, str]]
"""How a sign is drawn, its name and its meaning."""

_STATE_WORDS: Final = {
    "starting": "before the first step",
    "running": "completes steps",
    "pausing": "running to the common step",
    "paused": "held at a step; nothing is lost, no timeout fires",
    "held": "held by ddptop for some work, as a probe, and goes on by itself",
    "frozen": "its processes are stopped by SIGSTOP; timeouts go on",
    "stalled": "alive, but no step is completed",
    "silent": "no message from its agent",
    "killing": "being killed",
    "ending": "all ranks have ended; their launcher has not",
    "finished": "ended with exit code 0",
    "ended": "ended, exit code not known",
    "stopped": "ended at a step, by request",
    "failed": "ended by an error",
    "killed": "killed by request",
    "lost": "ended while nothing watched it",
}
_PHASE_WORDS: Final = {
    "data": "waiting for the data loader",
    "copy": "copying from the host to a GPU",
    "forward": "computing the loss",
    "backward": "computing gradients",
    "optimizer": "updating the parameters",
    "wait": "blocked in a collective until the last rank comes",
    "other": "the rest of the step",
}
_SIGN_WORDS: Final = (
    ("◀ slow", "the rank that holds the others back"),
    ("◀ hangs", "the rank for which the others wait without end"),
    ("◀ first", "the rank of which the run died; the others followed"),
    ("! not finite", "its loss or gradients are NaN or infinite"),
    ("… ago", "since the rank completed a step"),
    (DASH, "not known"),
    ("×", "in a plot: a value that is not finite"),
    ("[1]", "above a plot: the chosen rank"),
    ("░ ━ ▼", "in the timeline: waiting, transfer, the rank that came last"),
)
_WORDS: Final = (
    ("own time", "a step without its waiting: what the rank itself needs"),
    ("all-reduce", "time of a call, waiting for peers included: p50, p99"),
    ("by looks", "parts of the time, from samples of its stack; ± is their error"),
    ("by log", "step, total and loss are those that its log names"),
    ("clipped", "outliers are out of the plot's range"),
    ("rss, mem", "resident memory of the process; memory on the device"),
    ("cpu", "percent of one core, data workers included"),
    ("unprepared", "started without ddptop, and seen from outside"),
    ("pause", "all ranks hold at the same step and can go on"),
    ("freeze", "SIGSTOP to all ranks, wherever they are"),
    ("stop", "the run ends at a step, after a checkpoint"),
    ("kill", "SIGTERM, then SIGKILL, to all processes of the run"),
    ("hold", "the view stands still, the run goes on"),
)
_PAGES: Final = ("keys", "signs and words")
_OTHERS: Final = "other screens and dialogs"
_TWO_COLUMNS: Final = 100
"""Cells from which on there are two columns."""
_BETWEEN: Final = 3
_WIDEST: Final = 150
"""Cells of the box at most, as in the style sheet; `_FRAME` of them are its border and padding."""
_FRAME: Final = 4
_KEYS: Final = 14


class HelpScreen(Dialog[None]):
    """The keys, here and elsewhere, and what the signs mean."""

    DECIDES = False
    # By Textual, which knows whether the screen is still there: one that is closed at once has no page.
    AUTO_FOCUS = "Page"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "close", "Close", id="help.close", tooltip="Close the filter or help"),
        Binding("tab", "turn", "Page", id="help.page", tooltip="Show the other page: keys, or signs and words"),
        Binding("slash", "filter", "Filter", id="help.filter", key_display="/", tooltip="Show only what has a word"),
    ]

    def __init__(self, here: Keys, others: Keys = ()) -> None:
        """Show the keys of the screen below, and those of all other screens."""
        super().__init__()
        self._here, self._others = here, others
        self._page = 0
        self._filter = ""

    def compose(self) -> ComposeResult:
        """A field for the filter, shown where there is one, above a page."""
        with Vertical(id="help"):
            yield Input(placeholder="a key or a word", compact=True)
            yield Page()

    def on_mount(self) -> None:
        """Fill it before it is painted: a machine that is busy would show an empty box for a second."""
        self._show()

    def on_resize(self) -> None:
        """Draw for another width."""
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        page, box = self.query_one(Page), self.query_one("#help", Vertical)
        # One cell is reserved for the scrollbar.
        width = max(20, page.size.width - 1 + page.scrollbar_size_vertical * page.show_vertical_scrollbar)
        if not page.size:
            # Not laid out yet: by the style sheet.
            width = max(20, min(_WIDEST, self.app.size.width) - _FRAME - 1)
        hues = page.ink.hues
        names = (
            Content.styled(name, f"bold {hues['value']}" if index == self._page else hues["label"])
            for index, name in enumerate(_PAGES)
        )
        box.border_title = Content("help: ") + Content(" │ ").join(names)
        box.border_subtitle = self.hint(f"{{page}} {_PAGES[not self._page]} · {{filter}} filters · {{close}} closes")
        box.set_class(bool(self._filter) or self.query_one(Input).has_focus, "-filtered")
        page.show_rows(
            key_rows(self._here, self._others, page.ink, width, self._filter)
            if self._page == 0
            else sign_rows(page.ink, width, self._filter)
        )

    def action_close(self) -> None:
        """Close the filter where there is one, else the help."""
        field = self.query_one(Input)
        if self._filter or field.has_focus:
            field.value = self._filter = ""
            self.query_one(Page).focus()
            self._show()
        else:
            self.dismiss()

    def action_turn(self) -> None:
        """Show the other page, from the top."""
        self._page = 1 - self._page
        self.query_one(Page).scroll_home(animate=False)
        self._show()

    def action_filter(self) -> None:
        """Take a word."""
        self.query_one("#help", Vertical).add_class("-filtered")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self._filter = event.value
        self.query_one(Page).scroll_home(animate=False)
        self._show()

    @on(Input.Submitted)
    def _read(self) -> None:
        self.query_one(Page).focus()


def key_rows(here: Keys, others: Keys, ink: Ink, width: int, typed: str = "") -> list[Row]:
    """Return the page of the keys in so many cells, those of the present screen first, as far as they fit the filter.

    One character is the key of that name where there is one; else each word has to be in a line.
    """
    if len(typed) == 1 and any(typed in keys.split() for _, keys, _ in (*here, *others)):
        kept = [[line for line in lines if typed in line[1].split()] for lines in (here, others)]
    else:
        kept = [[line for line in lines if _has(" ".join(line), typed)] for lines in (here, others)]
    column = _column(width)
    parts = [[_key_block(lines, ink, column) for _, lines in groupby(part, key=lambda line: line[0])] for part in kept]
    rows = _in_columns(parts[0], width)
    if parts[1]:
        line = f"── {_OTHERS} "
        rows += [*([[]] if rows else []), [Segment(line.ljust(width, "─"), ink["label"])], []]
        rows += _in_columns(parts[1], width)
    return rows or _nothing(typed, ink)


def sign_rows(ink: Ink, width: int, typed: str = "") -> list[Row]:
    """Return the page of the signs and words, as far as they fit the filter."""
    states: Signs = [
        ([Segment(f"{MARKS[state]} {state}", ink[f"bold state-{state}"])], state, _STATE_WORDS[state])
        for state in STATES
    ]
    phases: Signs = []
    for phase, letter in LETTERS.items():
        first, rest = ink.block(phase)
        drawn = [Segment(letter, first), Segment(letter * 2, rest), Segment(f" {phase}", ink["label"])]
        phases.append((drawn, phase, _PHASE_WORDS[phase]))
    signs: Signs = [([Segment(sign, ink["value"])], sign, meaning) for sign, meaning in _SIGN_WORDS]
    words: Signs = [([Segment(word, ink["value"])], word, meaning) for word, meaning in _WORDS]
    blocks = []
    for title, lines in (
        ("states", states), ("phases of a step; the bars of all ranks have one scale", phases), ("signs", signs),
        ("words", words),
    ):  # fmt: skip
        kept = [(drawn, meaning) for drawn, name, meaning in lines if _has(f"{title} {name} {meaning}", typed)]
        if kept:
            blocks.append(_block(title, kept, ink, _column(width)))
    return _in_columns(blocks, width) or _nothing(typed, ink)


def _has(text: str, typed: str) -> bool:
    return all(word in text.casefold() for word in typed.casefold().split())


def _nothing(typed: str, ink: Ink) -> list[Row]:
    return [[Segment(f"nothing here has {typed!r}", ink["label"])]] if typed else []


def _key_block(lines: Iterable[tuple[str, str, str]], ink: Ink, width: int) -> list[Row]:
    found = list(lines)
    signs = [([Segment(keys, ink["bold value"])], meaning) for _, keys, meaning in found]
    return _block(found[0][0], signs, ink, width)


def _block(title: str, lines: Sequence[tuple[Row, str]], ink: Ink, width: int) -> list[Row]:
    """Return a title and its lines, the meanings below each other and whole."""
    rows: list[Row] = [[Segment(title[:width], ink["bold brand"])]]
    for drawn, meaning in lines:
        lead = max(_KEYS, width_of(drawn)) + 2
        first, *others = textwrap.wrap(meaning, max(10, width - lead - 2)) or [""]
        rows.append([Segment("  "), *fitted(drawn, lead), Segment(first, ink["value"])])
        rows += [[Segment(" " * (lead + 2) + line, ink["value"])] for line in others]
    return rows


def _column(width: int) -> int:
    return (width - _BETWEEN) // 2 if width >= _TWO_COLUMNS else width


def _in_columns(blocks: Sequence[list[Row]], width: int) -> list[Row]:
    """Return blocks below each other, in two columns of about the same height where there is room for two."""
    column = _column(width)
    if column == width or len(blocks) < 2:
        return _below(blocks)
    splits = ((_below(blocks[:place]), _below(blocks[place:])) for place in range(1, len(blocks)))
    left, right = min(splits, key=lambda split: max(map(len, split)))
    empty: Row = []
    return [
        [
            *fitted(left[index] if index < len(left) else empty, column + _BETWEEN),
            *(right[index : index + 1] or [[]])[0],
        ]
        for index in range(max(len(left), len(right)))
    ]


def _below(blocks: Sequence[list[Row]]) -> list[Row]:
    rows: list[Row] = []
    for block in blocks:
        rows += [[], *block] if rows else block
    return rows
