"""A screen of a run that goes on: it takes frames, and has the keys that act on the run.

These keys name actions of the app; a screen of this kind knows no source.
"""

from __future__ import annotations

from typing import ClassVar, Final

from textual.binding import ActiveBinding, Binding, BindingType
from textual.widgets import Input

from ddptop.agent.client.diagnosis.kinds import DIAGNOSES
from ddptop.agent.client.frame import Frame
from ddptop.tui.control.actions import Offers
from ddptop.tui.model.sentences import can_be_joined
from ddptop.tui.screens.dialogs.transient import Transient
from ddptop.tui.views.runs import RunList
from ddptop.tui.views.screen.header import Header

MOST_DIGITS: Final = 6
"""Digits of a number of steps; further ones are left out."""


def _offers(frame: Frame) -> tuple[object, ...]:
    """Return what of a frame decides which keys are offered, and how."""
    return Offers.of(frame), frame.checkpoints, can_be_joined(frame)


class LiveScreen(Transient[int]):
    """A frame of the run and the keys that act on the run. Returns the rank it showed last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "app.act('pause')", "Pause", id="run.pause", tooltip="Pause all ranks at the same step"),
        Binding("space", "app.act('resume')", "Resume", id="run.resume", tooltip="Resume all ranks"),
        Binding("space", "app.act('cancel')", "Cancel", id="run.cancel", tooltip="Cancel what waits for ranks"),
        Binding(
            "F",
            "app.act('freeze')",
            "Freeze",
            id="run.freeze",
            tooltip="Stop the processes where they are, if they cannot be paused: asks first",
        ),
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
            tooltip="Stop the run at a step, after a checkpoint: asks first",
        ),
        Binding(
            "J",
            "app.act('join')",
            "Join",
            id="run.join",
            tooltip="Have the agent join a job that nobody prepared (Python 3.14 and newer): asks first",
        ),
        Binding(
            "J",
            "app.act('leave')",
            "Take out",
            id="run.leave",
            tooltip="Take the agent out of a job that it has joined",
        ),
        Binding("k", "app.act('kill')", "Kill", id="run.kill", tooltip="Kill the run or the chosen rank: asks first"),
        Binding(
            "R",
            "app.act('restart')",
            "Restart",
            id="run.restart",
            tooltip="Restart the ended run with the same settings",
        ),
        Binding("g", "app.logs", "Logs", id="rank.logs", tooltip="Show what the chosen rank printed"),
        Binding(
            "s",
            "app.stacks",
            "Stacks",
            id="run.stacks",
            tooltip="Show where each rank stands: its stack, and the collectives that it is in",
        ),
        Binding("o", "app.report", "Report", id="run.report", tooltip="Show why the run has failed, and what to do"),
        *(
            Binding(
                each.key,
                f"app.diagnose('{name}')",
                name.capitalize(),
                id=f"run.{name}",
                show=each.is_in_key_bar,
                tooltip=each.key_does,
            )
            for name, each in DIAGNOSES.items()
        ),
        Binding("e", "app.events", "Events", id="run.events", tooltip="Show all events of the run, to search them"),
        Binding(
            "v",
            "app.hold",
            "Hold",
            id="view.freeze",
            tooltip="Hold or resume the view; the run is not affected",
        ),
    ]

    opened_by = ""
    """The action of the app that opens a screen of this kind, and that it does not offer; empty where there is none."""
    is_of_rank: ClassVar[bool] = False
    """True where all of the screen is about one rank."""

    def __init__(self, frame: Frame, rank: int = 0) -> None:
        super().__init__()
        self.frame = frame
        self.rank = rank
        """The rank that keys act on."""
        self.typed = ""
        """The number of steps typed so far."""
        self.elsewhere: ActiveBinding | None = None
        """The action of the one digit that was typed, where no steps are counted; None of more digits, or of none."""
        self._passes_on = False
        """True while the other meaning of a digit is looked up."""
        self._shows = False
        """True once the widgets are there; `is_mounted` comes before they are."""
        self._headers: tuple[Header, ...] = ()
        """The header, which shows the number of steps; none on a screen that has none."""

    def take(self, frame: Frame) -> None:
        """Take in a new frame; called at frame rate while the screen can be seen."""
        changed = _offers(frame) != _offers(self.frame)
        other = frame.run != self.frame.run
        self.frame = frame
        if not self._shows:
            return
        if self.typed and (other or not Offers.of(frame)._replace(waiting=False).has("step")):
            self.action_forget_count()
        self.show(frame)
        if changed:
            self.refresh_bindings()

    def lacks(self, action: str) -> bool:
        """Say whether an action is offered although the run lacks what it needs, which its key then says."""
        return action == "run.checkpoint" and not self.frame.checkpoints

    @property
    def in_sight(self) -> frozenset[int]:
        """Ranks of which single steps are shown."""
        return frozenset({self.rank})

    @property
    def logs_in_sight(self) -> frozenset[int]:
        """Ranks whose logs are shown."""
        return frozenset()

    def show(self, frame: Frame) -> None:
        """Pass the frame to the widgets; here to the header, where the screen has one."""
        for header in self._headers:
            header.show(frame)

    def choose(self, rank: int) -> None:
        """Show another rank, or choose it among all."""
        self.rank = rank
        self.show(self.frame)

    def action_back(self) -> None:
        """Return, with the rank chosen here."""
        self.dismiss(self.rank)

    def action_neighbour(self, by: int) -> None:
        """Show another rank, after the last one the first."""
        ranks = self.frame.values("rank")
        if self.rank in ranks:
            self.choose(ranks[(ranks.index(self.rank) + by) % len(ranks)])

    def on_mount(self) -> None:
        """Show what is known before the first paint."""
        self._shows = True
        self._headers = tuple(self.query(Header))
        self.show(self.frame)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the keys of a number of steps where they do something."""
        match action:
            case "count":
                return self.counts
            case "uncount" | "forget_count":
                return bool(self.typed)
            case "leave_count":
                return self.elsewhere is not None
        return super().check_action(action, parameters)

    @property
    def counts(self) -> bool:
        """True where digits are a number of steps: the run is paused, and they mean nothing else."""
        return Offers.of(self.frame).has("step") and self.can_count and not self._passes_on

    @property
    def can_count(self) -> bool:
        """True where digits are a number of steps as soon as the run is paused."""
        # A number that nobody sees would be taken for less than what was typed.
        return bool(self._headers) and not self.is_typed_into

    @property
    def is_typed_into(self) -> bool:
        """True while the part that has the keys takes text."""
        return isinstance(self.focused, Input | RunList) or getattr(self.focused, "typing", False)

    def action_count(self, digit: int) -> None:
        """Take a digit of the number of steps; a zero at its beginning is none."""
        if len(self.typed) < MOST_DIGITS and (digit or self.typed):
            self._type(self.typed + str(digit))

    def action_uncount(self) -> None:
        """Take the last digit away."""
        self._type(self.typed[:-1])

    def action_forget_count(self) -> None:
        """Clear the number of steps."""
        if self.typed:
            self._type("")

    def take_count(self) -> int:
        """Return how many steps were typed, one where none were, and begin anew."""
        typed = self.typed
        self.action_forget_count()
        return int(typed or 1)

    async def action_leave_count(self) -> None:
        """Do what the one digit does where no steps are counted."""
        if (meant := self.elsewhere) is not None:
            self.action_forget_count()
            await self.app.run_action(meant.binding.action, meant.node)

    def _type(self, typed: str) -> None:
        self.typed, self.elsewhere = typed, None
        if len(typed) == 1:
            self._passes_on = True
            self.elsewhere = self.active_bindings.get(typed)
            self._passes_on = False
        for header in self._headers:
            header.count(typed, elsewhere=self.elsewhere is not None)
        self.refresh_bindings()

    def on_screen_suspend(self) -> None:
        """Clear the number of steps: another screen takes the keys."""
        self.action_forget_count()
