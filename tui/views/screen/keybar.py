"""The line of keys at the foot of a screen: what can be done now, as far as there is room for it.

Textual's own footer cuts a label in half where its keys do not fit.  Here the keys that matter
least are left out whole, and the one for the help says that there are more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.screen import Screen

from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row, width_of
from ddptop.tui.drawing.theme import Ink

HELP: Final = "app.help"
AT_THE_END: Final = ("app.help", "app.leave")
"""Ids of the actions that stand at the right edge, always in the same place."""
FIRST: Final = (
    "crosshair.close", "crosshair.left",
    "rank.back", "plot.leave", "log.back", "runs.leave", "runs.show", "run.pause", "run.resume", "runs.pause",
    "runs.resume", "run.cancel", "run.freeze",
    "run.report", "run.kill", "runs.kill", "run.stop", "runs.stop", "run.restart", "runs.restart", "events.clear",
    "events.filter", "stacks.clear", "stacks.again", "stacks.filter", "stacks.native", "log.clear", "log.search",
    "log.below", "log.above", "log.level", "log.all",
    "run.join", "run.step", "run.checkpoint", "runs.checkpoint", "runs.remove", "ranks.open", "view.panels",
    "table.clear", "table.filter", "heatmap.highest", "timeline.latest", "timeline.back", "rank.previous",
    "plot.next", "log.next", "rank.logs", "run.stacks", "run.events", "run.profile", "app.runs", "plot.full",
    "log.follow", "table.sort", "heatmap.metric", "app.launch", "view.freeze",
)  # fmt: skip
"""Ids of actions, the most important first: the way back, then what acts on the run, then views. Where there is no room
for all, they are left out from the end."""


_DIM: Final = Style(dim=True)


@dataclass(frozen=True, slots=True)
class Hint:
    """The keys of one action, or of several that share a label."""

    id: str
    """The id of the first action."""
    keys: tuple[tuple[str, str], ...]
    """The key of each action: Textual's name of it, and the one that the user sees."""
    text: str
    tooltip: str
    dim: bool = False
    """The run has not what the action needs; the key says what."""

    @property
    def _between(self) -> str:
        """The text between the keys: names in words need some, single signs do not."""
        return "/" if any(len(shown) > 1 for _, shown in self.keys) else ""

    def drawn(self, ink: Ink) -> Row:
        """Return its cells."""
        named = self._between.join(shown for _, shown in self.keys)
        if self.dim:
            return [Segment(f"{named} {self.text}", ink["label"] + _DIM)]
        return [Segment(f"{named} ", ink["bold brand"]), Segment(self.text, ink["label"])]

    def key_at(self, x: int) -> str:
        """Return the key that stands `x` cells from its left; the text is the first one's."""
        for key, shown in self.keys:
            if (x := x - len(shown)) < 0:
                return key
            x -= len(self._between)
        return self.keys[0][0]


def hints_of(screen: Screen[Any], names: Mapping[str, str]) -> list[Hint]:
    """Return what is offered on a screen now; `names` has by the id of an action the key it is known by."""
    found: dict[str, dict[str, Hint]] = {}
    for key, active in screen.active_bindings.items():
        binding = active.binding
        if binding.show and active.enabled:
            shown = screen.app.get_key_display(binding)
            # `lacks` is what screens and widgets with such actions have.
            lacks = getattr(active.node, "lacks", None)
            dim = lacks is not None and lacks(binding.id)
            hint = Hint(binding.id or key, ((key, shown),), binding.description, active.tooltip, dim=dim)
            place = found.setdefault(binding.group.description if binding.group else hint.id, {})
            # Of several keys the first one in the settings is what an action is known by.
            if hint.id not in place or shown == names.get(hint.id):
                place[hint.id] = hint
    return [_together(group, list(hints.values())) for group, hints in found.items()]


def _together(group: str, hints: Sequence[Hint]) -> Hint:
    if len(hints) == 1:
        return hints[0]
    keys = tuple(key for hint in hints for key in hint.keys)
    return Hint(hints[0].id, keys, group, " · ".join(hint.tooltip for hint in hints))


def chosen(hints: Sequence[Hint], width: int, ink: Ink) -> tuple[list[Hint], list[Hint]]:
    """Return the hints that `width` cells have room for, those at the left and those at the right edge."""
    rank = {name: place for place, name in enumerate((*AT_THE_END, *FIRST))}
    kept: set[str] = set()
    left = width
    for hint in sorted(hints, key=lambda hint: rank.get(hint.id, len(rank))):
        cells = width_of(hint.drawn(ink)) + 2
        if cells > left:
            # No smaller one in its place: what is there would depend on lengths of words.
            break
        left -= cells
        kept.add(hint.id)
    fitting = [hint for hint in hints if hint.id in kept]
    right = sorted((hint for hint in fitting if hint.id in AT_THE_END), key=lambda hint: AT_THE_END.index(hint.id))
    more = len(fitting) < len(hints)
    return (
        [hint for hint in fitting if hint not in right],
        [Hint(hint.id, hint.keys, "more", hint.tooltip) if more and hint.id == HELP else hint for hint in right],
    )


class KeyBar(Page, can_focus=False):
    """One line; a click does what the key does. Under a dialog it has the dialog's keys."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._at: list[tuple[int, Hint]] = []
        """By hint, the cell where it begins."""

    def on_mount(self) -> None:
        """Follow what can be done."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self.app.screen_change_signal.subscribe(self, self._covered)
        self.call_after_refresh(self._draw)

    def on_unmount(self) -> None:
        """Follow it no longer."""
        self.screen.bindings_updated_signal.unsubscribe(self)
        self.app.screen_change_signal.unsubscribe(self)

    def on_resize(self) -> None:
        self._draw()

    def notify_style_update(self) -> None:
        """Draw in the colors of another theme."""
        super().notify_style_update()
        if self.is_mounted:
            self._draw()

    def _changed(self, screen: Screen[Any]) -> None:
        if self.is_attached and screen is self.screen:
            self.call_after_refresh(self._draw)

    def _covered(self, top: Screen[Any]) -> None:
        """Follow a dialog that opens or closes over the screen."""
        if self.is_attached and (top is self.screen or top.is_modal):
            self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self.size.width
        if not width or not self.is_attached:
            return
        # Under a dialog the keys of the screen do nothing.
        top = self.app.screen
        left, right = chosen(hints_of(top if top.is_modal else self.screen, keys_of(self)), width, self.ink)
        ends = sum(width_of(hint.drawn(self.ink)) + 2 for hint in right)
        self._at = []
        row: Row = []
        for hints, begin in ((left, 1), (right, width - ends + 1)):
            row.append(Segment(" " * (begin - width_of(row))))
            for hint in hints:
                self._at.append((width_of(row), hint))
                row += [*hint.drawn(self.ink), Segment("  ")]
        self.show_rows([row])

    def _under(self, x: int) -> tuple[int, Hint] | None:
        """Return the hint at a cell, and where it begins."""
        return next(
            ((start, hint) for start, hint in reversed(self._at) if 0 <= x - start < width_of(hint.drawn(self.ink))),
            None,
        )

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain the key under the mouse."""
        found = self._under(event.x)
        self.tooltip = found[1].tooltip if found is not None else None

    def on_click(self, event: events.Click) -> None:
        """Do what the key under the mouse does."""
        found = self._under(event.x)
        if found is not None:
            start, hint = found
            self.app.simulate_key(hint.key_at(event.x - start))
