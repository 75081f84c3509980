"""A screen that comes over another one and goes again."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import Screen, ScreenResultType

from ddptop.tui.drawing.painting import LineCompositor


class Transient(Screen[ScreenResultType]):
    """A screen that closes itself only: of two keys in a burst the second would close the screen below."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close with a result, unless that was done already."""
        return super().dismiss(result) if self.is_current else AwaitComplete()

    def _compositor_refresh(self) -> None:
        stack = self.app.screen_stack
        if self not in stack[:-1] or not self.is_current:
            super()._compositor_refresh()
            return
        # Under a dialog Textual counts what has changed here as changed once more, again and again, and once that is
        # the whole screen, as it is when the dialog opens, it stays that. It has no public way to change this.
        if regions := tuple(self._compositor._dirty_regions):
            self._compositor._dirty_regions.clear()
            for between in stack[stack.index(self) + 1 : -1]:
                between._set_dirty(*regions)
            top = stack[-1]
            if isinstance(top._compositor, LineCompositor):
                # The box of the dialog has not changed: it is neither asked for its lines nor painted. What is behind
                # it is seen once it has gone.
                top._dirty_regions.update(regions)
                regions = tuple(top._compositor.seen_of(top, regions))
            if regions:
                top.refresh(*regions)
        self._dirty_widgets.clear()
