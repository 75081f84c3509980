"""A screen of a run that goes on: it takes frames, and says what the user wants done.

What a key means for the run travels up as a message; a screen of this kind knows no source.
"""

from __future__ import annotations

from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from ddptop.tui.model.frame import ENDED, Frame
from ddptop.tui.screens.dialogs.transient import Transient
from ddptop.tui.views.runs import RunList
from ddptop.tui.views.screen.header import Header

COUNT_S: Final = 0.7
"""A digit that is not followed within this by another or by `.` was meant for a view."""

ACTS: Final = "run."
"""How the ids of bindings begin that change the run."""


class Asked(Message):
    """The user wants something done with the run or shown of it."""


class PauseAsked(Asked):
    """Hold all ranks."""


class ResumeAsked(Asked):
    """Let them go on."""


class HoldAsked(Asked):
    """Hold the view, or let it go on."""


class StepAsked(Asked):
    """From a pause, make so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps


class CheckpointAsked(Asked):
    """Save a checkpoint on all ranks."""


class StopAsked(Asked):
    """End the run at a step: ask how."""


class KillAsked(Asked):
    """End the run or the rank: ask how."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class RestartAsked(Asked):
    """Start an ended run again: ask how."""


class LogsAsked(Asked):
    """Show what a rank printed."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class LiveScreen(Transient[int]):
    """A frame of the run and the keys that act on the run. Returns the rank it showed last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "Pause", id="run.pause", tooltip="Hold all ranks at the same step"),
        Binding("space", "resume", "Resume", id="run.resume", tooltip="Let all ranks go on"),
        Binding(
            "full_stop",
            "step",
            "Step",
            id="run.step",
            key_display=".",
            tooltip="From a pause: one more step; a number typed before makes so many",
        ),
        Binding(
            "c", "checkpoint", "Save", id="run.checkpoint", tooltip="Save a checkpoint on all ranks at the same step"
        ),
        Binding("x", "stop", "Stop", id="run.stop", tooltip="End the run at a step, after a checkpoint: asks first"),
        Binding("k", "kill", "Kill", id="run.kill", tooltip="End the run, or the chosen rank: asks first"),
        Binding(
            "R", "restart", "Restart", id="run.restart", tooltip="Start the ended run again, with the same settings"
        ),
        Binding("g", "logs", "Logs", id="rank.logs", tooltip="Show what the chosen rank printed"),
        Binding(
            "v",
            "keep",
            "Freeze",
            id="view.freeze",
            tooltip="Freeze the picture, or let it go on; the run never stops",
        ),
    ]

    def __init__(self, frame: Frame, rank: int = 0) -> None:
        super().__init__()
        self.frame = frame
        self.rank = rank
        """The rank that keys act on."""
        self._acting = {b.action.partition("(")[0] for _, b in self._bindings if (b.id or "").startswith(ACTS)}
        self._typed = ""
        """The count of steps typed so far."""
        self._typing: Timer | None = None
        self._shows = False
        """True once the widgets are there; `is_mounted` comes before they are."""

    def take(self, frame: Frame) -> None:
        """Take in a new frame; called at frame rate while the screen can be seen."""
        changed = frame.state != self.frame.state
        self.frame = frame
        if not self._shows:
            return
        self.show(frame)
        if changed:
            self.refresh_bindings()

    @property
    def in_sight(self) -> frozenset[int]:
        """Ranks of which single steps are shown."""
        return frozenset({self.rank})

    def show(self, frame: Frame) -> None:
        """Pass the frame to the widgets; here to the header, where the screen has one."""
        for header in self.query(Header):
            header.show(frame)

    def choose(self, rank: int) -> None:
        """Show another rank, or choose it among all."""
        self.rank = rank
        self.show(self.frame)

    def on_mount(self) -> None:
        """Show what is known before the first paint."""
        self._shows = True
        self.show(self.frame)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only the keys that work in the run's state, and none that acts on a run that is only looked at."""
        if action in self._acting and self.app.read_only:  # type: ignore[attr-defined]  # of the one app there is
            return False
        state = self.frame.state
        if action == "pause":
            return state in ("running", "stalled")
        if action == "resume":
            return state in ("paused", "frozen")
        if action == "step":
            return state == "paused"
        if action in ("checkpoint", "stop"):
            return state in ("running", "stalled", "paused")
        if action == "kill":
            return state not in ENDED
        if action == "restart":
            return state in ENDED and self.frame.launched
        return True

    def action_pause(self) -> None:
        """Ask to hold."""
        self.post_message(PauseAsked())

    def action_resume(self) -> None:
        """Ask to go on."""
        self.post_message(ResumeAsked())

    @property
    def counts(self) -> bool:
        """True where digits are a number of steps: the run is paused, and they mean nothing else."""
        return self.frame.state == "paused" and not isinstance(self.focused, Input | RunList)

    def count(self, digit: int) -> None:
        """Take a digit of the number of steps; alone it is the key that it is otherwise."""
        self._typed = (self._typed + str(digit))[-6:]
        self._show_typed()
        if self._typing is not None:
            self._typing.stop()
        self._typing = self.set_timer(COUNT_S, self._forget_typed)

    async def _forget_typed(self) -> None:
        typed = self._take_typed()
        if len(typed) == 1:
            # The same way that the key would have gone without us; Textual has no public one.
            await self.app._check_bindings(typed)

    def _take_typed(self) -> str:
        typed, self._typed = self._typed, ""
        if self._typing is not None:
            self._typing.stop()
            self._typing = None
        self._show_typed()
        return typed

    def _show_typed(self) -> None:
        for header in self.query(Header):
            header.count(self._typed)

    def action_step(self) -> None:
        """Ask for as many steps as were typed, or one."""
        self.post_message(StepAsked(int(self._take_typed() or 1) or 1))

    def action_checkpoint(self) -> None:
        """Ask for a checkpoint."""
        self.post_message(CheckpointAsked())

    def action_stop(self) -> None:
        """Ask to end at a step."""
        self.post_message(StopAsked())

    def action_kill(self) -> None:
        """Ask to end."""
        self.post_message(KillAsked(self.rank))

    def action_restart(self) -> None:
        """Ask to start again."""
        self.post_message(RestartAsked())

    def action_logs(self) -> None:
        """Ask for the log."""
        self.post_message(LogsAsked(self.rank))

    def action_keep(self) -> None:
        """Ask to hold the view."""
        self.post_message(HoldAsked())
