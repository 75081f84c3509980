"""A screen that comes over another one and goes again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from textual import events, on
from textual.await_complete import AwaitComplete
from textual.css.query import NoMatches
from textual.messages import Prune
from textual.screen import Screen, ScreenResultCallbackType, ScreenResultType
from textual.worker import Worker


class Transient(Screen[ScreenResultType]):
    """A screen that may be left at any moment, also while it opens, and that closes only itself.

    Textual mounts no widgets on a screen that is being removed, and yet hands it what it would do with them.
    """

    @property
    def is_left(self) -> bool:
        """True once it is being removed, or the app is being left: its widgets go, or never come."""
        # Each screen is displayed until it is being removed. An app that ends by itself is no longer running, one that
        # was told to exit has nothing attached.
        return not (self.display and self.is_attached and self.app.is_running)

    async def on_event(self, event: events.Event) -> None:
        """Handle events only until it is left."""
        if not self.is_left or isinstance(event, events.Unmount | events.Callback):
            await super().on_event(event)

    @on(Prune)
    def _end_workers(self) -> None:
        """End what it has under way while its widgets are there; Textual does that when they have gone."""
        self.workers.cancel_node(self)

    def run_worker(self, work: Any, *args: Any, **kwargs: Any) -> Worker[Any]:
        """Start a worker; one whose first turn comes when the screen is left finds no widgets: no error."""
        if not kwargs.get("thread"):
            work = partial(self._while_shown, work)
        return super().run_worker(work, *args, **kwargs)

    async def _while_shown(self, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await work()
        except NoMatches:
            if not self.is_left:
                raise

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        """Call it later, unless the screen is left by then: it is the topmost screen that calls, whichever that is."""
        return super().call_after_refresh(self._unless_left, partial(callback, *args, **kwargs))

    def _unless_left(self, callback: Callable[[], Any]) -> Any:
        return None if self.is_left else callback()

    def open_over(self, screen: Screen[Any], then: ScreenResultCallbackType[Any]) -> None:
        """Open another screen over this one, in the app's own turn: keys wait until it has its widgets."""
        self.app.call_later(self.app.push_screen, screen, then)

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close with a result where it is on top: Textual would close what is there, be it over this one or below."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
