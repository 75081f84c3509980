"""The command palette: every action that a key could do now, and each rank by its number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen
from textual.style import Style

from ddptop.tui.screens.dialogs.transient import Transient
from ddptop.tui.screens.live import LiveScreen

FIRST_RANKS: Final = 8
"""Ranks that are offered before anything is typed."""
MOST_RANKS: Final = 12


class Palette(CommandPalette, Transient[Any]):
    """Textual's, of pages of any height."""

    def _action_command_list(self, action: str) -> None:
        # Textual's list cannot turn a page before it has been laid out, as in a terminal of a few lines.
        with contextlib.suppress(KeyError):
            super()._action_command_list(action)


class RunCommands(Provider):
    """The actions of the screen below the palette."""

    def __init__(self, screen: Screen[Any], match_style: Style | None = None) -> None:
        super().__init__(screen, match_style)
        self._has_run = False
        # Now, because an error while it searches would leave the palette empty without a word.
        self._found = list(self._actions())

    async def discover(self) -> Hits:
        """Offer all actions, and some ranks."""
        for name, run in (*self._found, *self._ranks("", FIRST_RANKS)):
            yield DiscoveryHit(Content(name), run, text=name)

    async def search(self, query: str) -> Hits:
        """Offer what matches; a number is a rank's."""
        matcher = self.matcher(query)
        number = "".join(char for char in query if char.isdigit())
        for name, run in self._found:
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, text=name)
        for name, run in self._ranks(number, MOST_RANKS):
            if number or matcher.match(name) > 0:
                yield Hit(1.0 if name == f"rank {number}" else 0.9, Content(name), run, text=name)

    def _actions(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        seen = set()
        # What the footer offers comes first.
        for active in sorted(self.screen.active_bindings.values(), key=lambda active: not active.binding.show):
            binding = active.binding
            if active.enabled and binding.id is not None and binding.id != "app.palette" and binding.id not in seen:
                seen.add(binding.id)
                key = self.app.get_key_display(binding)
                run = partial(self.app.run_action, binding.action, active.node)
                yield f"{binding.tooltip}  ({key})", partial(self._run, active.node, run)

    def _ranks(self, number: str, most: int) -> Iterator[tuple[str, Callable[[], Any]]]:
        screen = self.screen
        if not isinstance(screen, LiveScreen):
            return
        fitting = [rank.rank for rank in screen.frame.ranks if str(rank.rank).startswith(number)]
        # The rank itself comes before those whose numbers only begin like it.
        for rank in fitting[:most]:
            yield f"rank {rank}", partial(self._run, screen, partial(screen.choose, rank))

    async def _run(self, node: DOMNode, act: Callable[[], Any]) -> None:
        """Do what was chosen: once, and only while it is there to be done.

        Enter twice chooses twice before the palette is gone, and what is below it may have closed meanwhile.
        """
        if self._has_run or not (node is self.app or (node.is_attached and node.screen in self.app.screen_stack)):
            return
        self._has_run = True
        if isawaitable(done := act()):
            await done
