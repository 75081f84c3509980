"""The list of runs under a line on their machine: one is marked, one is shown on the dashboard.

Beside a run it takes two lines for each; with room for it, one.  Where a run is in the list
may change with every look: the mark stays with the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.machine import HostLoad
from ddptop.agent.text import plural
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row, figure, fitted, width_of
from ddptop.tui.drawing.theme import MARKS, Ink
from ddptop.tui.link.fleet import Fleet, Listing, RunLine, line_of

LOOK_S: Final = 1.0
ONE_LINE: Final = 78
"""Cells from which on a run takes one line."""
_ROOMY: Final = 96
"""Cells from which on its program stands in the line."""
MARKED: Final = "▸"
SHOWN: Final = "*"
"""Before the run that keys act on, and before the one on the dashboard where that is another."""
PICKED: Final = "="
"""Before the run that another one is to be compared with."""
MOST_GPUS: Final = 8
"""GPUs that have a line each; more share one."""


class RunList(Page, can_focus=True):
    """All runs of the user."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "show", "Show", id="runs.show", tooltip="Show the marked run on the dashboard"),
        Binding("space", "ask('pause')", "Pause", id="runs.pause", tooltip="Pause all ranks of the marked run"),
        Binding("space", "ask('resume')", "Resume", id="runs.resume", tooltip="Resume the marked run"),
        Binding("space", "ask('cancel')", "Cancel", id="runs.cancel", tooltip="Cancel what waits for its ranks"),
        Binding(
            "F",
            "ask('freeze')",
            "Freeze",
            id="runs.freeze",
            tooltip="Freeze the marked run, if it cannot be paused: asks first",
        ),
        Binding("c", "ask('checkpoint')", "Save", id="runs.checkpoint", tooltip="Save a checkpoint of the marked run"),
        Binding("x", "ask('stop')", "Stop", id="runs.stop", tooltip="Stop the marked run at a step: asks first"),
        Binding("k", "ask('kill')", "Kill", id="runs.kill", tooltip="Kill the marked run: asks first"),
        Binding("R", "ask('restart')", "Restart", id="runs.restart", tooltip="Restart the marked run"),
        Binding(
            "delete",
            "ask('remove')",
            "Remove",
            id="runs.remove",
            tooltip="Remove the marked run with its logs and records, once it has ended: asks first",
        ),
        Binding(
            "equals_sign",
            "compare",
            "Compare",
            id="runs.compare",
            key_display="=",
            tooltip="Compare two runs: pick the marked one, then mark another and press it again",
        ),
        Binding("up", "mark(-1)", "Run above", id="runs.up", tooltip="Mark the run above", show=False),
        Binding("down", "mark(1)", "Run below", id="runs.down", tooltip="Mark the run below", show=False),
        Binding("home", "edge(0)", "First run", id="runs.first", tooltip="Mark the first run", show=False),
        Binding("end", "edge(-1)", "Last run", id="runs.last", tooltip="Mark the last run", show=False),
        Binding("tab", "cycle(1)", "Next run", id="runs.next", tooltip="Show the next run (wraps)", show=False),
        Binding(
            "shift+tab",
            "cycle(-1)",
            "Previous run",
            id="runs.previous",
            tooltip="Show the previous run (wraps)",
            show=False,
        ),
        *(
            Binding(
                str(digit), f"nth({digit})", "Run", id=f"runs.nth_{digit}", tooltip="Show the run there", show=False
            )
            for digit in range(1, 10)
        ),
        Binding("escape", "leave", "Back", id="runs.leave", tooltip="Return to the ranks"),
    ]  # fmt: skip

    class Chosen(Message):
        """The user wants to see a run."""

        def __init__(self, run: str) -> None:
            super().__init__()
            self.run = run

    class Asked(Message):
        """The user wants something done with a run."""

        def __init__(self, action: str, line: RunLine) -> None:
            super().__init__()
            self.action = action
            self.line = line

    class Paired(Message):
        """The user wants to see two runs beside each other."""

        def __init__(self, first: str, second: str) -> None:
            super().__init__()
            self.first = first
            self.second = second

    class Left(Message):
        """The user wants to return to the ranks."""

    class Looked(Message, bubble=False):
        """All runs were looked at."""

        def __init__(self, listing: Listing) -> None:
            super().__init__()
            self.listing = listing

    def __init__(
        self,
        fleet: Fleet,
        frame: Frame,
        listing: Listing | None = None,
        **options: Any,
    ) -> None:
        """Prepare to list the runs.

        Args:
            fleet: where they are found.
            frame: of the run shown.
            listing: what another list had found.
            options: those of a widget.
        """
        super().__init__(**options)
        self._fleet = fleet
        self._frame = frame
        self.listing = listing
        self.marked = frame.run
        """Name of the run that keys act on."""
        self._picked = ""
        """Name of the run that another one is to be compared with; empty where none is picked."""
        self._looking = False
        self._first = 0
        """The number of the line on which the first run is drawn."""
        self._offers: tuple[str, bool, bool, bool] | None = None
        """The state of the marked run that decides which keys are offered, as it was drawn last; None without a run."""

    @property
    def lines(self) -> Sequence[RunLine]:
        """The runs, from the top; the one shown as it is just now."""
        shown = self._shown
        known = list(self.listing.lines) if self.listing is not None else []
        if shown is not None:
            known = [replace(shown, run=line.run) if line.run_id == shown.run_id else line for line in known]
            # One that is gone has a line as long as its name is free: what is marked is marked by its name.
            if all(shown.run_id != line.run_id and shown.run != line.run for line in known):
                known.insert(0, shown)
        return sorted(known, key=lambda line: line.over)

    @property
    def _shown(self) -> RunLine | None:
        """The run that is shown, None where none is."""
        return line_of(self._frame) if self._frame.run else None

    @property
    def line(self) -> RunLine | None:
        """The marked run; the one shown where the marked one is gone, else the first; None where there is none."""
        lines = self.lines
        found = {line.run: line for line in lines}
        return found.get(self.marked) or found.get(self._frame.run) or (lines[0] if lines else None)

    def on_mount(self) -> None:
        """Look now, and every second while it is there."""
        self.watch(self.app, "frame", self._take, init=False)
        self.set_interval(LOOK_S, self._look)
        self._look()
        self.draw()

    def _take(self, frame: Frame | None) -> None:
        if frame is not None:
            self._frame = frame
            self.draw()

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self.run_worker(self._find, thread=True)

    def _find(self) -> None:
        self.post_message(self.Looked(self._fleet.listing(self._shown)))

    def on_run_list_looked(self, message: Looked) -> None:
        """Draw what was found."""
        self._looking = False
        self.listing = message.listing
        self.draw()

    # Drawing

    def draw(self) -> None:
        width = self.size.width
        if not width:
            return
        lines = self.lines
        self.border_title = f"runs · {sum(not line.over for line in lines)} live"
        head = [] if self.listing is None else _machine(self.listing.host, width, self.ink)
        one_line = width >= ONE_LINE
        self._first = len(head) + (2 if one_line else 1)
        rows = [*head, []]
        if one_line and lines:
            rows.append(_heads(width, self.ink))
        marked = self.line
        for line in lines:
            drawn = _broad(line, width, self.ink) if one_line else _narrow(line, width, self.ink)
            for index, row in enumerate(drawn):
                shown = SHOWN if line.run_id == self._frame.run_id else " "
                shown = PICKED if line.run == self._picked else shown
                sign = " " if index else MARKED if line == marked else shown
                row = fitted([Segment(f"{sign} ", self.ink["bold brand"]), *row], width)
                rows.append(list(Segment.apply_style(row, None, self._ground)) if line == marked else row)
        if marked is not None:
            began = f"began {marked.began}" if marked.began else ""
            bare = f"nobody prepared it: {keys_of(self)['runs.show']} shows it as it is seen from outside"
            picked = f"to compare with {self._picked}: mark a run, and press {keys_of(self)['runs.compare']}"
            told = (picked if self._picked else began, marked.cause, bare if marked.unmet else "")
            rows += [[], *([Segment(f"  {units.fit(each, width - 2)}", self.ink["label"])] for each in told if each)]
        rows += self._invitation(len(lines))
        self.show_rows(rows)
        offers = None if marked is None else (marked.state, marked.launched, marked.checkpoints, bool(marked.waiting))
        if offers != self._offers:
            self._offers = offers
            self.refresh_bindings()

    def _invitation(self, runs: int) -> list[Row]:
        """Return the first steps for a new user, where there are hardly any runs."""
        launch = keys_of(self)["app.launch"]
        if runs or self.listing is None:
            text = f"  no other run; {launch} launches one"
            return [[], [Segment(text, self.ink["label"])]] if runs == 1 and self._shown is not None else []
        said = "launches one: a program that comes with ddptop, or any training script"
        return [
            [Segment("  No run yet.", self.ink["bold value"])],
            [],
            [Segment(f"  {launch} ", self.ink["bold brand"]), Segment(said, self.ink["value"])],
            [Segment("  or, from a shell: ddptop launch --world 4 resnet", self.ink["label"])],
        ]

    @property
    def _ground(self) -> Style:
        return self.ink.ground("row-chosen")

    @property
    def _tall(self) -> int:
        return 1 if self.size.width >= ONE_LINE else 2

    def on_resize(self) -> None:
        self.draw()

    # Keys and mouse

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer what can be done with the marked run."""
        if action == "leave":
            return len(self.app.screen_stack) > 1 or self._shown is not None
        if action != "ask":
            return bool(self.lines)
        line = self.line
        if line is None or parameters[0] == "remove":
            return line is not None
        return line.offers.has(str(parameters[0]))

    def lacks(self, action: str) -> bool:
        """Say whether an action is offered although the marked run has not what it needs; see `LiveScreen.lacks`."""
        line = self.line
        if line is None:
            return False
        return {"runs.checkpoint": not line.checkpoints, "runs.remove": not line.over}.get(action, False)

    def _mark(self, index: int) -> None:
        self.marked = self.lines[index].run
        self.draw()
        top = self._first + index * self._tall
        if top < self.scroll_offset.y + self._first:
            self.scroll_to(y=max(0, top - self._first), animate=False)
        elif top + self._tall > self.scroll_offset.y + self.size.height:
            self.scroll_to(y=top + self._tall - self.size.height, animate=False)
        self.refresh_bindings()

    @property
    def _index(self) -> int:
        marked = self.line
        return 0 if marked is None else self.lines.index(marked)

    def action_mark(self, by: int) -> None:
        """Mark the run so much further down."""
        self._mark(min(max(0, self._index + by), len(self.lines) - 1))

    def action_edge(self, index: int) -> None:
        self._mark(index % len(self.lines))

    def action_cycle(self, by: int) -> None:
        """Show the run after the one shown, or the one before."""
        runs = [line.run for line in self.lines]
        now = runs.index(self._frame.run) + by if self._frame.run in runs else self._index
        self._show(now % len(runs))

    def action_nth(self, number: int) -> None:
        """Show the run that stands so far down, from one."""
        if number <= len(self.lines):
            self._show(number - 1)

    def action_show(self) -> None:
        self._show(self._index)

    def _show(self, index: int) -> None:
        self._mark(index)
        self.post_message(self.Chosen(self.marked))

    def action_ask(self, action: str) -> None:
        """Ask for something to be done with the marked run."""
        if (line := self.line) is not None:
            self.post_message(self.Asked(action, line))

    def action_compare(self) -> None:
        """Pick the marked run, or compare it with the one that is picked; the same one again is let go."""
        if (line := self.line) is None:
            return
        first, self._picked = self._picked, "" if self._picked else line.run
        if first and first != line.run:
            self.post_message(self.Paired(first, line.run))
        self.draw()

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def on_click(self, event: events.Click) -> None:
        """Mark the run under the mouse, or show it."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        index = (offset.y + self.scroll_offset.y - self._first) // self._tall
        if 0 <= index < len(self.lines):
            if event.chain > 1:
                self._show(index)
            else:
                self._mark(index)


def _machine(host: HostLoad, width: int, ink: Ink) -> list[Row]:
    label = ink["label"]
    cpu: Row = [
        Segment("  cpu ", label),
        figure(units.percent(host.cpu_percent), ink),
        Segment(f" of {plural(host.cores, 'core')}", label),
    ]
    memory: Row = [Segment("mem ", label), *_share(host.memory_bytes, host.memory_total_bytes, ink)]
    rows = [[*cpu, Segment("   "), *memory]]
    if width_of(rows[0]) > width:
        rows = [cpu, [Segment("  "), *memory]]
    for index, gpu in enumerate(host.gpus[:MOST_GPUS]):
        rows.append(
            [
                Segment(f"  gpu{index} ", label),
                figure(units.percent(gpu.percent), ink),
                Segment("   mem ", label),
                *_share(gpu.memory_bytes, gpu.memory_total_bytes, ink),
            ]
        )
    if len(host.gpus) > MOST_GPUS:
        rows.append([Segment(f"  and {len(host.gpus) - MOST_GPUS} GPUs more", label)])
    return rows


def _share(used: int | None, total: int | None, ink: Ink) -> Row:
    return [figure(units.size(used), ink), Segment(" of ", ink["label"]), figure(units.size(total).strip(), ink)]


def _state(line: RunLine, ink: Ink) -> Row:
    hue = ink[f"bold state-{line.state}"]
    return [Segment(f"{MARKS[line.state]} ", hue)]


def _progress(line: RunLine) -> str:
    return units.count(line.step) + (f"/{line.total_steps:,}" if line.total_steps else "")


def _remark(line: RunLine, ink: Ink) -> Row:
    if line.unprepared and not line.remark:
        return [Segment("unprepared", ink["label"])]
    return [Segment(f"◀ {line.remark}" if line.remark else "", ink["bold rank-slow"])]


def _narrow(line: RunLine, width: int, ink: Ink) -> tuple[Row, Row]:
    """Return two lines: a run's name and state, then its program and progress."""
    room = width - 2
    state = [Segment(f" {line.state}", ink[f"state-{line.state}"])]
    if line.remark or line.unprepared:
        state += [Segment(" "), *_remark(line, ink)]
    name = units.fit(line.run, room - 2 - width_of(state))
    # Its program would be cut to half a word; the run's own name, made of it, stands above.
    world = f"×{line.world:,}"
    return (
        [*_state(line, ink), Segment(name, ink["bold value"]), *state],
        [
            Segment(f"  {units.fit(world, max(7, room - 30))} ", ink["label"]),
            figure(units.shorten(_progress(line), 11).rjust(11), ink),
            Segment(" "),
            figure(units.loss(line.loss), ink),
            Segment(f" {units.duration(line.age_s):>7}", ink["label"]),
        ],
    )


def _widths(width: int) -> tuple[int, ...]:
    """Return the cells of name, state, program, ranks, step, loss, age; the rest is the remark's.

    Where there is little room the program has none: a run is named after it, where the user gave no name.
    """
    if width < _ROOMY:
        return 19 + width - ONE_LINE, 8, 0, 5, 11, 7, 7
    spare = min(42, width - _ROOMY)
    return 18 + spare // 3, 8, 11 + spare // 3, 5, 11 + spare // 3, 7, 7


def _heads(width: int, ink: Ink) -> Row:
    name, state, program, ranks, step, loss, age = _widths(width)
    text = (
        f"{'RUN':<{name}} {'STATE':<{state + 2}} {'PROGRAM' if program else '':<{program}} {'RANKS':>{ranks}} "
        f"{'STEP':>{step}} {'LOSS':>{loss}} {'RAN':>{age}}"
    )
    return [Segment(f"  {text}", ink["label"])]


def _broad(line: RunLine, width: int, ink: Ink) -> tuple[Row]:
    name, state, program, ranks, step, loss, age = _widths(width)
    return (
        [
            Segment(units.fit(line.run, name) + " ", ink["bold value"]),
            *_state(line, ink),
            Segment(f"{line.state:<{state}} ", ink[f"state-{line.state}"]),
            Segment(units.fit(line.program, program) + " ", ink["value"]),
            Segment(f"{line.world:>{ranks},} ", ink["value"]),
            figure(units.shorten(_progress(line), step).rjust(step), ink),
            Segment(" "),
            figure(units.loss(line.loss).rjust(loss), ink),
            Segment(" "),
            Segment(units.duration(line.age_s).rjust(age), ink["label"]),
            Segment(" "),
            *_remark(line, ink),
        ],
    )
