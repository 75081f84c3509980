"""A screen that comes over another one and goes again."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import Screen, ScreenResultType


class Transient(Screen[ScreenResultType]):
    """A screen that closes itself only: of two keys in a burst the second would close the screen below."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close with a result, unless that was done already."""
        return super().dismiss(result) if self.is_current else AwaitComplete()
