"""One step of all ranks on one time axis: who computes, who waits, and who came last.

Two lines a rank: its phases, and below them its collectives. Arrows go through the ranks and
back through the steps that are held; the newest is followed, calmly, until one goes back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.strip import Strip

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire import AlignedStep
from ddptop.agent.wire.frames import ENDED
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Row
from ddptop.tui.model.sentences import stepless
from ddptop.tui.views.ranks import RankView
from ddptop.tui.views.timeline import lines
from ddptop.tui.views.timeline.spans import Timeline, timeline

FOLLOW_S: Final = 1.0
"""The step that is shown changes at most so often while the newest is followed."""
_ABOVE: Final = 2
_DETAILS: Final = 6
"""Lines for the collectives of the chosen rank at most; with the legend they stand below."""
_FAR: Final = 10
_GROUP: Final = Binding.Group("Step", compact=True)


class TimelineView(RankView):
    """Phases and collectives of one step."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="timeline.up", tooltip="Choose the rank above", show=False),
        Binding("down", "move(1)", "Down", id="timeline.down", tooltip="Choose the rank below", show=False),
        Binding("pageup", "page(-1)", "Up", id="timeline.page_up", tooltip="Go up by what is in sight", show=False),
        Binding("pagedown", "page(1)", "Down", id="timeline.page_down", tooltip="Go down by as much", show=False),
        Binding("left", "step(-1)", "Step back", id="timeline.back", tooltip="Show the step before", group=_GROUP),
        Binding("right", "step(1)", "Step on", id="timeline.on", tooltip="Show the next step", group=_GROUP),
        Binding(
            "left_square_bracket", f"step(-{_FAR})", "Ten steps", id="timeline.far_back", key_display="[ ]",
            tooltip="Go back by ten steps", show=False,
        ),
        Binding(
            "right_square_bracket", f"step({_FAR})", "Ten on", id="timeline.far_on", tooltip="Go on by ten steps",
            show=False,
        ),
        Binding("n", "latest", "Last rank", id="timeline.latest", tooltip="Choose the rank that came last"),
        Binding("home", "oldest", "Oldest", id="timeline.oldest", tooltip="Show the oldest step kept", show=False),
        Binding("end", "newest", "Newest", id="timeline.newest", tooltip="Follow the newest step again", show=False),
    ]  # fmt: skip

    def __init__(self, frame: Frame, **options: Any) -> None:
        super().__init__(frame, **options)
        self.number: int | None = None
        """The step that is shown."""
        self.follows = True
        self._due = 0.0
        self._line: Timeline | None = None
        self._steps: Mapping[int, AlignedStep] = {}
        """What that was made of."""
        self._standing = lines.Position(0, 0, True)
        self._top = 0
        """The first rank in sight, as an index."""
        self._drawn: list[Strip] = []

    # Layout

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """All ranks and some collectives; the style sheet sets the limit."""
        return _ABOVE + 2 * max(1, len(self.frame.ranks)) + 1 + _DETAILS

    @property
    def _below(self) -> int:
        """Lines below the ranks: legend and details, at most half of what there is."""
        lane = None if self._line is None else self._line.lane(self.chosen)
        needed = 1 if lane is None else 1 + len(lane.bars)
        return max(1, min(1 + _DETAILS, 1 + needed, (self.size.height - _ABOVE) // 2))

    @property
    def _fitting(self) -> int:
        """Ranks in sight at a time."""
        return max(1, (self.size.height - _ABOVE - self._below) // 2)

    def fit(self) -> None:
        self.show(self.frame)
        self._paint()

    def awaits_history(self, width: int) -> bool:
        history = self.frame.history
        if history is None:
            return False
        history.steps.numbers(self.in_sight)
        return not history.steps.complete

    # The step

    def show(self, frame: Frame) -> None:
        """Take in a new frame; go on to its newest step if it is time to."""
        self.frame = frame
        if frame.history is None:
            return
        numbers = frame.history.steps.numbers(self.in_sight)
        if not numbers:
            return
        now = time.monotonic()
        if self.follows and self.number != numbers[-1] and (now >= self._due or frame.state in ENDED):
            self.number, self._due = numbers[-1], now + FOLLOW_S
        elif self.number is None or self.number < numbers[0]:
            self.number = numbers[0]
        self._lay(numbers)

    def _lay(self, numbers: Sequence[int]) -> None:
        history, number = self.frame.history, self.number
        if history is None or number is None:
            return
        back = sum(1 for each in numbers if each > number)
        standing = lines.Position(0 if self.follows else back, len(numbers), self.follows)
        steps = history.steps.step(self.in_sight, number)
        if steps and steps is not self._steps:
            self._line, self._steps = timeline(number, steps), steps
        elif standing == self._standing:
            return
        self._standing = standing
        self._paint()

    def action_step(self, by: int) -> None:
        numbers = () if self.frame.history is None else self.frame.history.steps.numbers(self.in_sight)
        if not numbers or (self.follows and by > 0):
            # The newest is shown a moment late: a step on from there would be one that is not the newest any more.
            return
        at = next((index for index, each in enumerate(numbers) if each >= (self.number or 0)), len(numbers) - 1)
        at = max(0, at + by)
        self.follows = at >= len(numbers)
        self.number = numbers[min(at, len(numbers) - 1)]
        self._lay(numbers)

    def action_oldest(self) -> None:
        self.action_step(-1_000_000)

    def action_newest(self) -> None:
        self.action_step(1_000_000)

    # Ranks

    @property
    def in_sight(self) -> frozenset[int]:
        """The ranks that are drawn."""
        return frozenset(self._ranks[self._top : self._top + self._fitting])

    @property
    def _ranks(self) -> list[int]:
        """All ranks, those of a host together."""
        ranks, hosts = list(self.frame.values("rank")), self.frame.hosts
        if not hosts.several:
            return ranks
        # As nearly always they are in that order: the sort then goes through them once.
        return sorted(ranks, key=lambda rank: hosts.by_rank.get(rank, len(hosts)))

    def action_move(self, by: int) -> None:
        """Choose the rank so many places below."""
        ranks = self._ranks
        if ranks:
            at = ranks.index(self.chosen) if self.chosen in ranks else 0
            self.chosen = ranks[max(0, min(len(ranks) - 1, at + by))]

    def action_latest(self) -> None:
        """Choose the rank that the others waited for longest."""
        latest = None if self._line is None else self._line.latest()
        if latest is not None:
            self.chosen = latest

    def action_page(self, by: int) -> None:
        """Move by what is in sight."""
        self.action_move(by * self._fitting)

    def bring_into_view(self) -> None:
        """Mark the chosen rank, and scroll so that it is there."""
        self._paint()

    def on_click(self, event: events.Click) -> None:
        """Choose the rank under the mouse; with a double click, open it."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y < _ABOVE:
            return
        index = (offset.y - _ABOVE) // 2
        if index < self._fitting and self._top + index < len(self._ranks):
            self.chosen = self._ranks[self._top + index]
            if event.chain == 2:
                self.action_open()

    # Painting

    def notify_style_update(self) -> None:
        """Draw all again, in the colors of another theme."""
        super().notify_style_update()
        if self.is_mounted:
            self._paint()

    def _paint(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        rows = [] if self._line is None else self._rows(self._line, width, height)
        strips = [Strip(row).adjust_cell_length(width) for row in rows]
        for y in range(height):
            now = strips[y : y + 1]
            if now != self._drawn[y : y + 1]:
                self.refresh_line(y)
        self._drawn = strips

    def _rows(self, line: Timeline, width: int, height: int) -> list[Row]:
        ink, ranks = self.ink, self._ranks
        hosts = self.frame.hosts
        names = lines.names_width(hosts, width)
        before = names + len(str(max(ranks, default=0))) + 3
        room = max(1, width - before - 1)
        fitting = min(self._fitting, len(ranks))
        at = ranks.index(self.chosen) if self.chosen in ranks else 0
        self._top = max(at - fitting + 1, min(self._top, at), 0)
        self._top = max(0, min(self._top, len(ranks) - fitting))
        keys = keys_of(self)
        turning = f"{keys['timeline.back']} {keys['timeline.on']}"
        rows = [
            lines.title(line, self._standing, self.in_sight, width, ink, turning),
            lines.axis(line.length, room, before, ink),
        ]
        above = None
        for rank in ranks[self._top : self._top + fitting]:
            mark = "▸" if rank == self.chosen else " "
            hue = "bold rank-chosen" if rank == self.chosen else "label"
            lane, host = line.lane(rank), hosts.of(rank)
            # Where nobody knows when it was, the sign stands beside the rank.
            certain = " " if lane is None or lane.compared else lines.UNKNOWN_WHEN
            label = [
                *([lines.name(host if host != above else None, names, ink)] if names else []),
                Segment(f"{mark}{rank:>{before - names - 3}}{certain} ", ink[hue]),
            ]
            above = host
            if lane is None:
                rows += [[*label, Segment("no record of this step", ink["label"])], []]
                continue
            rows.append([*label, *lines.phases(lane, line.length, room, ink)])
            rows.append([Segment(" " * before), *lines.calls(lane, line.length, room, ink)])
        rows.append(lines.legend(line, width, ink))
        left = min(_DETAILS, height - len(rows))
        return rows + lines.details(line, line.lane(self.chosen), self.chosen, left, width, ink, hosts)

    def render_line(self, y: int) -> Strip:
        if y < len(self._drawn):
            return self.grounded(self._drawn[y], 0, self.size.width)
        history = self.frame.history
        is_known = history is None or history.steps.complete
        nothing = stepless(self.frame) or ("no step is complete yet" if is_known else "loading history")
        text = f" {nothing}" if y == 0 and self._line is None else ""
        return self.grounded(
            Strip([Segment(units.shorten(text, self.size.width), self.ink["label"])]), 0, self.size.width
        )
