"""Where every rank stands, all of the screen for it: asked when it is opened, and again by a key."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType
from textual.message import Message

from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.client.frame import Frame
from ddptop.agent.text import plural
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.link.source import Inspector, Refused
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.diagnosis.stacks import places
from ddptop.tui.screens.lists import ListScreen
from ddptop.tui.views.stacks.places import StackList

_OFTEN_S: Final = 0.1
"""Seconds between two words on how many ranks have answered."""


class StacksScreen(ListScreen[StackList]):
    """The stacks of all ranks, those at the same place together."""

    LISTING = StackList
    opened_by = "stacks"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "ask", "Ask again", id="stacks.again", tooltip="Ask all ranks again where they stand"),
        Binding(
            "n",
            "ask(True)",
            "Native",
            id="stacks.native",
            tooltip="Ask for the frames of C and C++, too: stops each rank for about a second",
        ),
    ]

    class Heard(Message):
        """Some ranks have answered."""

        def __init__(self, heard: int, asked: int) -> None:
            super().__init__()
            self.heard, self.asked = heard, asked

    class Taken(Message):
        """A question has its answer: the stacks, or the reason why there are none."""

        def __init__(self, taken: Stacks | Refused) -> None:
            super().__init__()
            self.taken = taken

    def __init__(self, frame: Frame, rank: int, inspector: Callable[[], Inspector], first: int | None = None) -> None:
        """Show a run; `inspector` returns what asks its ranks, rank `first` comes before all others."""
        super().__init__(frame, rank)
        self._inspector = inspector
        self._first = first
        self._stacks: Stacks | None = None
        self._status = ""
        """The present activity, or the reason why nothing can be shown."""
        self._known_places = 0
        """Places of ranks of which something could be had."""
        self._asking = False
        self._left = False

    def on_mount(self) -> None:
        """Begin with what was recorded of a hang, where there is one; else ask."""
        super().on_mount()
        self._begin(since=hang.recorded_since(self.frame))

    def on_unmount(self) -> None:
        """Ask no further."""
        self._left = True

    def _begin(self, *, native: bool = False, since: float | None = None) -> None:
        """Ask the ranks, unless it is recorded where they stood at `since`, in seconds since the epoch, or later."""
        self._asking, self._status = True, "asking …"
        self._show_places()
        inspector = self._inspector()

        def carry_out() -> None:
            told_at = 0.0

            def heard(heard: int, asked: int) -> None:
                nonlocal told_at
                if not heard or time.monotonic() - told_at > _OFTEN_S:
                    told_at = time.monotonic()
                    self.post_message(self.Heard(heard, asked))

            taken: Stacks | Refused | None
            try:
                taken = None if since is None else inspector.recorded(since)
                taken = taken or inspector.ask(native=native, heard=heard, cancelled=lambda: self._left)
            except Refused as refusal:
                taken = refusal
            self.post_message(self.Taken(taken))

        self.run_worker(carry_out, thread=True)

    @on(Heard)
    def _tell_progress(self, message: Heard) -> None:
        answered = f", {message.heard:,} have answered" if message.heard else ""
        self._status = f"asking {plural(message.asked, 'rank')} …{answered}"
        self.show_caption(self.frame)

    @on(Taken)
    def _take(self, message: Taken) -> None:
        self._asking = False
        if isinstance(message.taken, Stacks):
            self._stacks, self._status = message.taken, ""
        else:
            self._status = str(message.taken)
        self._show_places()

    def _show_places(self) -> None:
        found = [] if self._stacks is None else places(self._stacks, hang.culprits(self.frame), self._first)
        self._known_places = sum(bool(place.inspections) for place in found)
        self.listing.show(found, "" if self._asking else self._status or "no rank has sent its stack")
        self.show_caption(self.frame)

    def show(self, frame: Frame) -> None:
        """Take in how the run is; its stacks stay until they are asked for again."""
        self.show_caption(frame)

    def choose(self, rank: int) -> None:
        """Show the place of another rank first."""
        self.rank = self._first = rank
        self._show_places()

    def aside(self) -> tuple[str, str]:
        """Say how long the collectives of a hang may still wait."""
        verdict = hang.verdict_of(self.frame)
        return ("" if verdict is None else hang.countdown(self.frame, verdict)), "bold level-warning"

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return the run, and of when the stacks are."""
        if self._asking:
            return frame.run, frame.state, self._status
        again = f"{keys_of(self)['stacks.again']} asks again"
        if self._stacks is None:
            return frame.run, frame.state, f"nothing to show · {again}"
        if typed := self.listing.typed:
            return frame.run, frame.state, f"{typed}  {self.listing.count} of {plural(self.listing.places, 'place')}"
        at = time.strftime("%H:%M:%S", time.localtime(self._stacks.at))
        known = plural(len(self._stacks.inspections), "rank")
        if self._status:
            return frame.run, frame.state, f"{self._status} · these are of {at} · {again}"
        if self._stacks.recorded:
            return frame.run, frame.state, f"{known} as recorded at {at}, in the hang · {again}"
        where = plural(self._known_places, "place")
        if unknown := len(self._stacks.unknown):
            where += f", {unknown:,} unknown"
        # Debuggers do it either way.
        return frame.run, frame.state, f"{known} at {where} · {at}, the innermost call first · {again}"

    def action_ask(self, native: bool = False) -> None:
        """Ask all ranks now, unless that is being done."""
        if not self._asking:
            self._begin(native=native)
