"""When messages are taken in, and when frames are painted.

A poll comes with each frame.  Between two frames there are more only while more messages come than the turn of a frame
takes in, or while the history that is looked at is not whole.  Behind a dialog the run goes on once a second: Textual
paints the whole screen for any change there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from textual.app import App

from ddptop.tui.link.source import LONG_POLL_S
from ddptop.tui.model.frame import Frame

POLL_HZ: Final = 20
PAINT_HZ: Final = 4


class Rhythm:
    """The clocks of an app.

    Args:
        app: the app, whose clocks they are.
        poll: takes in messages.
        frame: returns the frame that is shown, None before the first.
        repaint: makes the next frame and shows it.
    """

    def __init__(
        self, app: App[None], poll: Callable[[], None], frame: Callable[[], Frame | None], repaint: Callable[[], None]
    ) -> None:
        self._app = app
        self._poll = poll
        self._frame = frame
        self._repaint = repaint
        self._turn = 0
        self.between = app.set_interval(1 / POLL_HZ, self._take_in)
        """The clock of the polls between frames."""
        app.set_interval(1 / PAINT_HZ, self.next_frame)

    def next_frame(self) -> None:
        """Take in new messages and show them."""
        self._turn += 1
        if not self._has_more():
            behind = any(screen.is_modal for screen in self._app.screen_stack[-1:])
            if self._turn % PAINT_HZ == 0 or not behind:
                self._repaint()
            return
        self.between.resume()
        # A key that has come meanwhile is done before.
        self._app.call_later(self._repaint)

    def _take_in(self) -> None:
        """Take in what has come between two frames: only while there is more than a frame's turn takes in."""
        waited = self._waits
        more = self._has_more()
        if waited and not self._waits:
            # The history is whole, and is shown without waiting for the clock.
            self._repaint()
        elif not more and self._frame() is not None:
            self.between.pause()

    def _has_more(self) -> bool:
        """Take in new messages, and return whether more of them may be there already."""
        began = time.monotonic()
        self._poll()
        return self._waits or time.monotonic() - began > LONG_POLL_S

    @property
    def _waits(self) -> bool:
        """True while the history that is looked at is not whole."""
        frame = self._frame()
        history = None if frame is None else frame.history
        return history is not None and not history.complete
