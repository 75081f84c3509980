"""The newest diagnosis of a kind, all of the screen for it: a profile, a probe, or a look at the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddptop.agent.client.frame import Frame
from ddptop.tui.control.actions import Offers
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.model.diagnosis.report import ReportLine
from ddptop.tui.screens.report import ReportScreen


class DiagnosisScreen(ReportScreen):
    """A diagnosis as it was when the screen was opened."""

    def __init__(self, frame: Frame, rank: int, kind: str, make: Callable[[], Sequence[ReportLine]]) -> None:
        """Show what `make` returns, which is called in a thread; `kind` is a key of `kinds.DIAGNOSES`."""
        super().__init__(frame, rank, make)
        self.opened_by = kind

    def show(self, frame: Frame) -> None:
        """Show the state of the run; the diagnosis stays."""
        self.listing.fold()
        self.show_caption(frame)

    def aside(self) -> tuple[str, str]:
        """Say what makes another one possible."""
        offers = Offers.of(self.frame)
        if not offers.has(self.opened_by) and offers.remedy(self.opened_by) == "resume":
            return f"another one needs steps: {keys_of(self)['run.resume']} resumes the run", "label"
        return super().aside()

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return the run, the key that makes another one, and how all of the kind are had as text."""
        again = ""
        if Offers.of(self.frame).has(self.opened_by):
            again = f"{keys_of(self)[f'run.{self.opened_by}']} makes another one · "
        return frame.run, frame.state, f"{again}all that are kept: ddptop {self.opened_by} {frame.run} --list"
