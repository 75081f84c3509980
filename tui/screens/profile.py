"""The newest profile of the run, all of the screen for it: in what the slow rank differs from an ordinary one."""

from __future__ import annotations

from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.report import ReportScreen


class ProfileScreen(ReportScreen):
    """A profile as it was when the screen was opened."""

    opened_by = "profile"

    def show(self, frame: Frame) -> None:
        """Show the state of the run; the profile stays."""
        self.listing.fold()
        self.show_caption(frame)

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return the run, and how profiles are had as text."""
        return frame.run, frame.state, f"all profiles of the run: ddptop profile {frame.run} --list"
