"""The run that is shown: as it is now, or as it was when the user held the view."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ddptop.agent.client.frame import Frame
from ddptop.tui.link.source import Source


class ShownRun:
    """A source, and the frame of it that is looked at."""

    def __init__(self, source: Source, clock: Callable[[], float]) -> None:
        self.source = source
        self._clock = clock
        self._held: Frame | None = None
        """The frame that the user holds."""

    def newest(self) -> Frame:
        """Return the run as it is."""
        return self.source.frame()

    def frame(self) -> Frame:
        """Return the newest frame, or the one that the user holds."""
        if self._held is None:
            return self.newest()
        return replace(self._held, view_held_s=float(int(self._clock() - self._held.at)))

    def hold(self) -> None:
        """Hold the view, or resume it."""
        frame = self.newest()
        upto = None if frame.history is None else frame.history.by_step.last
        self._held = None if self._held is not None else replace(frame, upto=upto)

    def let_go(self) -> None:
        """Hold the view no longer: who acts on the run wants to see the effect."""
        self._held = None
