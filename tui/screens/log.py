"""What the ranks printed, all of the screen for it: one rank's log, or those of all as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from ddptop.agent.text import clean, plural
from ddptop.tui.link.logs.window import LogSource
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.with_roll import RollScreen
from ddptop.tui.views.screen.log import absence, missing
from ddptop.tui.views.screen.loglist import LogList


class LogScreen(RollScreen):
    """The log of one rank or of all, with its state above it."""

    opened_by = "logs"
    is_of_rank = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "together", "All ranks", id="log.all", tooltip="Show the ends of all logs as one, or one log"),
        Binding("tab", "neighbour(1)", "Next rank", id="log.next", tooltip="Show the next rank's log", priority=True),
        Binding(
            "shift+tab",
            "neighbour(-1)",
            "Previous rank",
            id="log.previous",
            tooltip="Show the previous rank's log",
            priority=True,
            show=False,
        ),
    ]

    _together = False
    """True where the logs of all ranks are shown."""

    @property
    def roll(self) -> LogList:
        """The lines of the log."""
        return self.query_one(LogList)

    def make_roll(self) -> LogList:
        """Return the list, as wide as its widest line."""
        return LogList()

    def show(self, frame: Frame) -> None:
        """Take in what was printed since."""
        if self._together or frame.rank(self.rank) is not None:
            self.roll.show(self._sources(frame), still=frame.view_held_s is not None)
        self.show_caption(frame)

    def _sources(self, frame: Frame) -> Sequence[LogSource]:
        ranks = zip(frame.values("rank"), frame.values("log"), frame.values("host"), frame.values("far"), strict=True)
        # The host is told where not all ranks are on one.
        return [
            LogSource(log, rank, host=None if frame.one_host is not None else host, missing=missing(far, host))
            for rank, log, host, far in ranks
            if log is not None and (self._together or rank == self.rank)
        ]

    @property
    def logs_in_sight(self) -> frozenset[int]:
        """Those of which the lines are shown."""
        return frozenset(self.frame.values("rank")) if self._together else frozenset({self.rank})

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return whose log it is, and what is held and looked for of it."""
        sources, told = self._sources(frame), self.roll.told
        if self._together:
            left = len(frame.ranks) - len(sources) if frame.hosts.several else 0
            others = f", {plural(left, 'other')} on other hosts" if left else ""
            return "all ranks", frame.state, f"{told}  the ends of {len(sources):,} logs{others}"
        rank = frame.rank(self.rank)
        if rank is None:
            return f"rank {self.rank}", frame.state, "the run has this rank no more; its lines stay until you go back"
        if not sources:
            return f"rank {rank.rank}", rank.state, absence(rank)
        where = f"copied from {rank.host or 'another host'}" if rank.far else clean(sources[0].path)
        return f"rank {rank.rank}", rank.state, f"{told}  {where}"

    def action_neighbour(self, by: int) -> None:
        """Show another rank's log."""
        ranks = list(self.frame.values("rank"))
        if self.rank in ranks:
            self._together = False
            self.choose(ranks[(ranks.index(self.rank) + by) % len(ranks)])

    def action_together(self) -> None:
        """Show the logs of all ranks as one, or that of the rank again."""
        self._together = not self._together
        self.show(self.frame)

    def action_follow(self) -> None:
        """Go to the end."""
        self.roll.follow()
        self.show_caption(self.frame)
