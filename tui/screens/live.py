"""A screen of a run that goes on: it takes frames, and has the keys that act on the run.

These keys name actions of the app; a screen of this kind knows no source.
"""

from __future__ import annotations

from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import Input

from ddptop.tui.control.actions import is_offered
from ddptop.tui.drawing.lines import Drawn
from ddptop.tui.drawing.painting import LineCompositor
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.dialogs.transient import Transient
from ddptop.tui.views.runs import RunList
from ddptop.tui.views.screen.header import Header

COUNT_S: Final = 0.7
"""A digit that is not followed within this by another or by `.` was meant for a view."""


class LiveScreen(Transient[int]):
    """A frame of the run and the keys that act on the run. Returns the rank it showed last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "app.act('pause')", "Pause", id="run.pause", tooltip="Hold all ranks at the same step"),
        Binding("space", "app.act('resume')", "Resume", id="run.resume", tooltip="Let all ranks go on"),
        Binding(
            "full_stop",
            "app.act('step')",
            "Step",
            id="run.step",
            key_display=".",
            tooltip="From a pause: one more step; a number typed before makes so many",
        ),
        Binding(
            "c",
            "app.act('checkpoint')",
            "Save",
            id="run.checkpoint",
            tooltip="Save a checkpoint on all ranks at the same step",
        ),
        Binding(
            "x",
            "app.act('stop')",
            "Stop",
            id="run.stop",
            tooltip="End the run at a step, after a checkpoint: asks first",
        ),
        Binding("k", "app.act('kill')", "Kill", id="run.kill", tooltip="End the run, or the chosen rank: asks first"),
        Binding(
            "R",
            "app.act('restart')",
            "Restart",
            id="run.restart",
            tooltip="Start the ended run again, with the same settings",
        ),
        Binding("g", "app.logs", "Logs", id="rank.logs", tooltip="Show what the chosen rank printed"),
        Binding(
            "v",
            "app.hold",
            "Hold",
            id="view.freeze",
            tooltip="Hold the view, or let it go on; the run never stops",
        ),
    ]

    def __init__(self, frame: Frame, rank: int = 0) -> None:
        super().__init__()
        self._compositor = LineCompositor()
        self.frame = frame
        self.rank = rank
        """The rank that keys act on."""
        self._typed = ""
        """The count of steps typed so far."""
        self._typing: Timer | None = None
        self._passes_on = False
        """True while a digit is handed on as the key that it is otherwise."""
        self._shows = False
        """True once the widgets are there; `is_mounted` comes before they are."""
        self._headers: tuple[Header, ...] = ()

    def take(self, frame: Frame) -> None:
        """Take in a new frame; called at frame rate while the screen can be seen."""
        changed = frame.state != self.frame.state
        self.frame = frame
        if not self._shows:
            return
        self.show(frame)
        # All at once: messages of the widgets would be read one by one, and a painting may come between two of them.
        seen = self._compositor.visible_widgets
        self._dirty_widgets.update(each for each in seen if isinstance(each, Drawn) and each.take_repaint())
        if self.is_current:
            # At once: Textual would wait for the screen's own messages, and then for a timer.
            self._on_timer_update()
        else:
            self.check_idle()
        if changed:
            self.refresh_bindings()

    @property
    def in_sight(self) -> frozenset[int]:
        """Ranks of which single steps are shown."""
        return frozenset({self.rank})

    def show(self, frame: Frame) -> None:
        """Pass the frame to the widgets; here to the header, where the screen has one."""
        for header in self._headers:
            header.show(frame)

    def choose(self, rank: int) -> None:
        """Show another rank, or choose it among all."""
        self.rank = rank
        self.show(self.frame)

    def on_mount(self) -> None:
        """Show what is known before the first paint."""
        self._shows = True
        self._headers = tuple(self.query(Header))
        self.show(self.frame)

    @property
    def counts(self) -> bool:
        """True where digits are a number of steps: the run is paused, and they mean nothing else."""
        held = is_offered("step", self.frame.state, launched=self.frame.launched)
        return held and not self._passes_on and not isinstance(self.focused, Input | RunList)

    def count(self, digit: int) -> None:
        """Take a digit of the number of steps; alone it is the key that it is otherwise."""
        self._typed = (self._typed + str(digit))[-6:]
        self._show_typed()
        if self._typing is not None:
            self._typing.stop()
        self._typing = self.set_timer(COUNT_S, self._forget_typed)

    async def _forget_typed(self) -> None:
        typed = self._take_typed()
        if len(typed) == 1 and self.is_active:
            self._passes_on = True
            active = self.active_bindings.get(typed)
            self._passes_on = False
            if active is not None:
                await self.app.run_action(active.binding.action, active.node)

    def _take_typed(self) -> str:
        typed, self._typed = self._typed, ""
        if self._typing is not None:
            self._typing.stop()
            self._typing = None
        self._show_typed()
        return typed

    def _show_typed(self) -> None:
        for header in self._headers:
            header.count(self._typed)

    def take_count(self) -> int:
        """Return how many steps were typed, one where none were, and begin anew."""
        return int(self._take_typed() or 1) or 1
