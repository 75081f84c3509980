"""All runs of this user, as the dashboard lists them, acts on them and adds to them.

A `Fleet` is to the runs what a `Source` is to the one that is shown: the app, the list and the
launch dialog know nothing else of them.  No sockets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.machine import HostLoad
from ddptop.agent.wire import VERDICT_KINDS
from ddptop.agent.wire.frames import ENDED, OUTSIDE
from ddptop.tui.control.actions import Offers
from ddptop.tui.drawing import units
from ddptop.tui.link.source import Control
from ddptop.tui.model.diagnosis import hang

if TYPE_CHECKING:
    from ddptop.agent.client.start.request import Request
    from ddptop.tui.launch.programs import Option


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in the list. Text in here is clean."""

    run: str
    run_id: str
    """The identity of a run, which stays its own where another run takes its name."""
    state: str
    program: str
    world: int
    step: int | None
    total_steps: int | None
    loss: float | None
    remark: str
    """In a word what holds it back; empty where nothing is wrong."""
    age_s: float | None
    """Since it began; how long it took, where it has ended."""
    launched: bool
    unmet: bool = False
    """As in `Frame`."""
    unprepared: bool = False
    """True where nobody prepared it, and no agent has joined it."""
    checkpoints: bool = False
    """True where its script has registered how to save one."""
    grace_s: float = 5.0
    """As in `Frame`."""
    hangs: str = ""
    """How it hangs; empty where it does not."""
    waiting: str = ""
    """As in `Frame`."""
    cause: str = ""
    """Of which it has ended; empty where that is not known, or it goes on."""
    began: str = ""
    """When it began, with its day; empty where that is not known."""

    @property
    def offers(self) -> Offers:
        """What decides which actions are offered for it; of no line it is known that all ranks have ended."""
        known_by = OUTSIDE if self.unprepared else "agent"
        return Offers(self.state, self.launched, bool(self.waiting), known_by=known_by)

    @property
    def over(self) -> bool:
        """Say whether it has ended."""
        return self.state in ENDED


def line_of(frame: Frame) -> RunLine:
    """Return a run's line from its frame."""
    end = frame.at if frame.ended_at is None else frame.ended_at
    stuck = hang.urgent(frame)
    return RunLine(
        run=frame.run,
        run_id=frame.run_id,
        state=frame.state,
        program=frame.program,
        world=frame.world,
        step=frame.step,
        total_steps=frame.total_steps,
        loss=frame.loss,
        remark=_remark(frame),
        age_s=None if frame.started_at is None else end - frame.started_at,
        launched=frame.launched,
        unmet=frame.unmet,
        unprepared=frame.unmet or frame.known_by == OUTSIDE,
        checkpoints=frame.checkpoints,
        grace_s=frame.grace_s,
        waiting=frame.waiting,
        cause=frame.cause or "" if frame.state in ENDED else "",
        began="" if frame.started_at is None else units.moment(frame.started_at),
        hangs="" if stuck is None else stuck.text,
    )


def _remark(frame: Frame) -> str:
    verdict = frame.verdict
    # What held back a run that has ended is in its report; here it would be read as the cause of its end.
    if verdict is None or frame.state in ENDED:
        return ""
    if verdict.rank is not None:
        return f"rank {verdict.rank}{' hangs' if verdict.kind == 'hang' else ''}"
    kind = VERDICT_KINDS.get(verdict.kind)
    return kind.word if kind is not None and kind.word else verdict.kind.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Listing:
    """The runs and their machine at one moment."""

    lines: Sequence[RunLine]
    """Live ones first, the newest first of both."""
    host: HostLoad


class Fleet(Protocol):
    """The runs as the dashboard sees them."""

    def listing(self, shown: RunLine | None) -> Listing:
        """Look at all runs; `shown` is known already. Takes a moment; called by one thread at a time."""
        ...

    def control(self, run: str) -> Control:
        """Return what acts on a run that is not shown.

        Raises:
            Refused: there is no such run.
        """
        ...

    def options(self, program: str) -> tuple[Option, ...]:
        """Return the options of a program of the catalogue. May take seconds.

        Raises:
            Refused: it does not describe them, and why.
        """
        ...

    def launch(self, request: Request) -> str:
        """Start a run and return its name. Takes a moment.

        Raises:
            Refused: nothing was started, and why.
        """
        ...

    def remove(self, line: RunLine) -> str:
        """Remove an ended run with its logs and records, and say so. Takes a moment.

        Raises:
            Refused: it stays, and why.
        """
        ...

    def close(self) -> None:
        """Let go of sockets; the runs go on."""
