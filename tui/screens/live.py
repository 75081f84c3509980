"""A screen of a run that goes on: it takes frames, and says what the user wants done.

What a key means for the run travels up as a message; the app alone knows the source.
"""

from __future__ import annotations

from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from ddptop.tui.frame import ENDED, Frame

ACTS: Final = "run."
"""How the ids of bindings begin that change the run."""


class Asked(Message):
    """The user wants something done with the run or shown of it."""


class PauseAsked(Asked):
    """Hold all ranks."""


class ResumeAsked(Asked):
    """Let them go on."""


class HelpAsked(Asked):
    """Show the keys."""


class KillAsked(Asked):
    """End the run or the rank: ask how."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class LogsAsked(Asked):
    """Show what a rank printed."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class LiveScreen(Screen[int]):
    """A picture of the run and the keys that act on the run. Returns the rank it showed last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "Pause", id="run.pause", tooltip="Hold all ranks at the same step"),
        Binding("space", "resume", "Resume", id="run.resume", tooltip="Let all ranks go on"),
        Binding("k", "kill", "Kill", id="run.kill", tooltip="End the run, or the chosen rank: asks first"),
        Binding("g", "logs", "Logs", id="rank.logs", tooltip="Show what the chosen rank printed"),
        Binding("question_mark", "help", "Help", id="app.help", key_display="?", tooltip="Show keys, signs and colors"),
    ]

    def __init__(self, frame: Frame, rank: int = 0) -> None:
        super().__init__()
        self.frame = frame
        self.rank = rank
        """The rank that keys act on."""
        self._acting = {b.action.partition("(")[0] for _, b in self._bindings if (b.id or "").startswith(ACTS)}
        self._shows = False
        """True once the widgets are there; `is_mounted` comes before they are."""

    def take(self, frame: Frame) -> None:
        """Take a new picture; called at frame rate while the screen can be seen."""
        changed = frame.state != self.frame.state
        self.frame = frame
        if not self._shows:
            return
        self.show(frame)
        if changed:
            self.refresh_bindings()

    def show(self, frame: Frame) -> None:
        """Hand the picture to the widgets."""
        raise NotImplementedError

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
            return state == "paused"
        if action == "kill":
            return state not in ENDED
        return True

    def action_pause(self) -> None:
        """Ask to hold."""
        self.post_message(PauseAsked())

    def action_resume(self) -> None:
        """Ask to go on."""
        self.post_message(ResumeAsked())

    def action_kill(self) -> None:
        """Ask to end."""
        self.post_message(KillAsked(self.rank))

    def action_logs(self) -> None:
        """Ask for the log."""
        self.post_message(LogsAsked(self.rank))

    def action_help(self) -> None:
        """Ask for the keys."""
        self.post_message(HelpAsked())
