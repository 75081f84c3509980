"""Live screens that are one long list with a caption: their bases, the logs, and the events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.logs.excerpt import LogSource
from ddptop.agent.text import clean, plural
from ddptop.agent.wire.frames import MOST_EVENTS
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row, ScrolledLines, spread, width_of
from ddptop.tui.drawing.theme import MARKS
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.views.screen.events import EventSearch
from ddptop.tui.views.screen.keybar import KeyBar
from ddptop.tui.views.screen.log import absence, missing
from ddptop.tui.views.screen.loglist import LogList

L = TypeVar("L", bound=ScrolledLines[Any])


class ListScreen(LiveScreen, Generic[L]):
    """A list with a caption: two lines, and a third one while the run hangs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="log.back", tooltip="Return to where you came from"),
    ]

    LISTING: type[L]
    """The class of the list."""

    @property
    def listing(self) -> L:
        """The list."""
        return self.query_one(self.LISTING)

    @abstractmethod
    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return whose list it is, the state of that, and the second line; called once the list has the frame."""

    @abstractmethod
    def aside(self) -> tuple[str, str]:
        """Return what stands at the right of the caption, and the name of its hue."""

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        yield Page(id="caption")
        yield self.LISTING()
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the list; the keys scroll it."""
        super().on_mount()
        self.listing.focus()

    def show_caption(self, frame: Frame) -> None:
        """Say what the list is, and where it stands."""
        page = self.query_one("#caption", Page)
        ink = page.ink
        width = max(10, self.app.size.width - 2)
        keys = keys_of(self)
        (where, hue), how = self.aside(), ""
        if frame.waiting:
            where, hue, how = frame.waiting, "bold state-pausing", f" · {keys['run.cancel']} cancels"
        elif frame.view_held_s is not None:
            where, hue = f"VIEW HELD {units.duration(frame.view_held_s)} · {keys['view.freeze']} resumes", "held"
        name, state, below = self.caption(frame)
        left: Row = [
            Segment(f" {name} ", ink["bold value"]),
            Segment(f"{MARKS[state]} {state} ", ink[f"bold state-{state}"]),
        ]
        where = units.shorten(f" {where}", max(0, width - width_of(left) - 1 - len(how)))
        rows = [spread(left, [Segment(where + how, ink[hue])], width)]
        if (verdict := hang.urgent(frame)) is not None:
            rows.append([Segment(units.shorten(f" {verdict.text}", width), ink["bold level-error"])])
        rows.append([Segment(units.shorten(f" {below}", width), ink["label"])])
        page.show_rows(rows)

    @on(ScrolledLines.Followed)
    def _tell(self) -> None:
        self.show_caption(self.frame)


class FollowedScreen(ListScreen[L]):
    """A list that follows its end, and can be scrolled back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("end", "follow", "Follow", id="log.follow", tooltip="Go to the end and follow it", priority=True),
    ]

    _following = True

    def aside(self) -> tuple[str, str]:
        """Say whether the list follows its end."""
        if self.listing.following:
            return "following", "label"
        return f"scrolled back: {keys_of(self)['log.follow']} follows again", "bold state-paused"

    def show_caption(self, frame: Frame) -> None:
        """Say what the list is, and offer to follow its end where it does not."""
        super().show_caption(frame)
        if self.listing.following != self._following:
            self._following = self.listing.following
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to follow only where that is not done already."""
        if action == "follow":
            return self.is_mounted and not self._following
        return super().check_action(action, parameters)

    def action_follow(self) -> None:
        """Go to the end."""
        self.listing.following = True
        self.listing.scroll_end(animate=False, x_axis=False)
        self.show_caption(self.frame)


class LogScreen(FollowedScreen[LogList]):
    """The log of one rank or of all, with its state above it."""

    LISTING = LogList
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

    def show(self, frame: Frame) -> None:
        """Take in what was printed since."""
        if self._together or frame.rank(self.rank) is not None:
            self.listing.show(self._sources(frame), still=frame.view_held_s is not None)
        self.show_caption(frame)

    def _sources(self, frame: Frame) -> Sequence[LogSource]:
        ranks = zip(frame.values("rank"), frame.values("log"), frame.values("host"), frame.values("far"), strict=True)
        # The host is named where not all ranks are on one.
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
        sources, told = self._sources(frame), self.listing.told
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
        self._together = self._together and self.rank not in self.frame.values("rank")
        super().action_neighbour(by)

    def action_together(self) -> None:
        """Show the logs of all ranks as one, or that of the rank again."""
        self._together = not self._together
        self.show(self.frame)

    def action_follow(self) -> None:
        """Go to the end."""
        self.listing.follow()
        self.show_caption(self.frame)


_OLDER: Final = "older ones: ddptop events"


class EventScreen(FollowedScreen[EventSearch]):
    """All events that the dashboard has, with the run's state above them."""

    LISTING = EventSearch
    opened_by = "events"

    def show(self, frame: Frame) -> None:
        """Take in what has happened since."""
        self.listing.show(frame)
        self.show_caption(frame)

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return the run, and how many of its events are shown."""
        shown, all_ = self.listing.count
        if typed := self.listing.typed:
            below = f"{typed}  {units.count(shown)} of {plural(all_, 'event')}"
        elif all_ >= MOST_EVENTS:
            below = f"the newest {plural(all_, 'event')}; {_OLDER} {frame.run}"
        else:
            below = plural(all_, "event")
        return frame.run, frame.state, below

    def action_follow(self) -> None:
        """Choose the newest event."""
        self.listing.follow()
