"""The dialog that a run is filled in and started with; the command line that does the same stands below it.

What was filled in last stands there again, closed or launched, now or tomorrow; faults, the name and secrets only
where it was closed, and on this dashboard. Fields that most launches leave empty are folded until they are asked for.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Static

from ddptop.agent.client.start.request import Request
from ddptop.agent.text import clean
from ddptop.trainers import CATALOGUE
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.launch import form, remembered
from ddptop.tui.launch.options import OPTIONS, LaunchOption
from ddptop.tui.launch.programs import Option
from ddptop.tui.link.fleet import Fleet
from ddptop.tui.link.source import Refused
from ddptop.tui.screens.dialogs.dialog import Dialog
from ddptop.tui.screens.dialogs.field import Field
from ddptop.tui.screens.dialogs.pickers import ScriptPicker
from ddptop.tui.screens.dialogs.program import ProgramField, ProgramInput

_TURNS: Final = "|/-\\"
_TURN_S: Final = 0.2


class Fields(VerticalScroll, can_focus=False, inherit_bindings=False):
    """The lines of the form; the arrows go from one to the next, and it scrolls with them."""


class LaunchDialog(Dialog["str | None"]):
    """Fills in a launch and starts it; returns the name of the run, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "launch", "Launch", id="launch.launch", tooltip="Launch what is filled in, and show it"),
        Binding("escape,q", "close", "Close", id="launch.close", tooltip="Close; what is filled in is kept"),
        Binding("ctrl+o", "choose", "Script", id="launch.choose", tooltip="Choose a script from the folders"),
        Binding("f2", "more", "More", id="launch.more", tooltip="Show all fields, or only the basic ones"),
        Binding("down", "app.focus_next", "Next", id="launch.next", tooltip="Go to the next field", show=False),
        Binding(
            "up", "app.focus_previous", "Previous", id="launch.previous", tooltip="Go to the field before", show=False
        ),
    ]

    @dataclass
    class Told(Message):
        """The options of a program, or the reason why they are not known."""

        program: str
        options: tuple[Option, ...]
        problem: str

    @dataclass
    class Started(Message):
        """A run was started, or not."""

        run: str | None
        problem: str = ""

    def __init__(self, fleet: Fleet, who: str, closed: form.Draft | None = None) -> None:
        """Prepare a form in which a `who` launches; `closed` is the draft of one that was closed, not launched."""
        super().__init__()
        self._fleet = fleet
        self._who = who
        self.draft, self._notice = remembered.recall()
        stored = self.draft.launch
        if closed is not None:
            self.draft = msgspec.structs.replace(closed, launches=self.draft.launches)
        self._recent = remembered.recent()
        self._options: tuple[Option, ...] = ()
        self._owner = self.draft.owner
        """The program that the options of the launch were filled in for."""
        self._typed = {key for key, text in self.draft.launch.items() if text != stored.get(key, "")}
        """Keys of fields that were filled in and are not stored: they stay when another program is chosen."""
        self._shown: str | None = None
        """The program whose fields are shown: a name of the catalogue, empty for all others, None before the first."""
        self._asking: str | None = None
        """The program whose options are being asked for."""
        self._asked_at = 0.0
        """When they were asked for, by the monotonic clock."""
        self._queued = False
        """The user has launched; it begins once the options are there."""
        self._starting = False
        self._problems: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """Lay out the form, and what it comes to."""
        draft = self.draft
        with Vertical(id="dialog", classes="-broad -harmless -form -folded"):
            yield Static("Launch a run", id="question")
            with Fields(id="fields"):
                yield ProgramField("program", "program", "", draft.named, self._recent)
                yield Field("arguments", "arguments", "of the program, as in a shell", draft.arguments)
                seldom = form.seldom(())
                for option in OPTIONS:
                    field = _launch_field(option, draft.launch.get(option.key, ""))
                    yield field.set_class(option.key in seldom, "-seldom")
                yield Static("", id="options-of")
                yield Vertical(id="options")
            yield Static("", id="command")
            yield Static("", id="account")
            with Horizontal(id="choices"):
                yield Button(Content("Launch"), id="launch", compact=True)
                yield Button(Content("Close and keep"), id="close", compact=True)
                yield Button(Content(""), id="more", compact=True)
            yield Static("", id="hint")

    async def on_mount(self) -> None:
        """Begin with the program."""
        self._field("program").enter()
        if self._notice is not None:
            self._say(self._notice, wrong=True)
        self._hint()
        self._name_more()
        self.set_interval(_TURN_S, self._tell_progress)
        await self._take_program()

    def _hint(self) -> None:
        """Say what the keys do: in the form, in the field of the program, or in its list."""
        keys = keys_of(self)
        launches, closes = f"{keys['launch.launch']} launches", f"{keys['launch.close']} closes"
        arrows = f"{keys['launch.previous']} {keys['launch.next']}"
        if self._choosing:
            marks = f"{keys['program.previous']} {keys['program.next']} choose"
            takes = f"{keys['program.take']} takes, {keys['program.complete']} completes"
            text = f"{takes}, {marks}, {keys['program.close']} closes the list"
        elif self._field("program").has_pseudo_class("focus-within"):
            text = f"type a name or a path, space lists all, {launches}, {arrows} fields, {closes}"
        else:
            text = f"{launches}, {arrows} choose a field, {keys['form.choose']} opens a choice, {closes}"
        self.query_one("#hint", Static).update(Content(text))

    @property
    def _fields(self) -> list[Field]:
        """The fields that can be filled in by now: those of a program come one by one."""
        return [field for field in self.query(Field) if field.is_mounted]

    def _field(self, key: str) -> Field:
        return next(field for field in self.query(Field) if field.key == key)

    # The program and its options

    async def _take_program(self) -> None:
        """Show the fields of the program now chosen, and ask for its options."""
        program = self._shown = self.draft.program
        self._field("arguments").display = not program
        self._options = ()
        self._asking = program or None
        self._queued = False
        heading = self.query_one("#options-of", Static)
        heading.display = bool(program)
        self._asked_at = time.monotonic()
        self._tell_progress()
        # Waited for: a field that is half gone has no place for what is wrong with it.
        await self.query_one("#options").remove_children()
        self._field("program").help = self._program_help()
        if program:
            self.run_worker(partial(self._ask, program), thread=True)
        self._check()

    def _tell_progress(self) -> None:
        """Show that the program is being asked, and for how long by now: it imports torch for the answer."""
        if self._asking is not None:
            took = time.monotonic() - self._asked_at
            turn = _TURNS[int(took / _TURN_S) % len(_TURNS)]
            said = f"{turn} Reading {self._asking}'s options… {took:.0f} s"
            self.query_one("#options-of", Static).update(Content(said))

    def _program_help(self) -> str:
        if self.draft.program and not self._choosing:
            return CATALOGUE[self.draft.program].technique
        return f"a name, a script, or -m MODULE; {keys_of(self)['launch.choose']} shows the folders"

    def _ask(self, program: str) -> None:
        try:
            told = self.Told(program, self._fleet.options(program), "")
        except Refused as problem:
            told = self.Told(program, (), str(problem))
        self.post_message(told)

    @on(Told)
    async def _take_options(self, message: Told) -> None:
        if message.program != self._asking:
            return
        self._asking = None
        self._options = message.options
        given = self.draft.given()
        place = self.query_one("#options")
        await place.remove_children()
        seldom = form.seldom(self._options)
        fields = [
            _program_field(option, given.get(option.flag, "")).set_class(option.flag in seldom, "-seldom")
            for option in form.offered(self._options)
        ]
        await place.mount(*fields)
        said = clean(message.problem) or f"options of {message.program}"
        self.query_one("#options-of", Static).update(Content(said))
        self._check()
        if self._queued:
            self._queued = False
            if message.problem:
                self._say(message.problem, wrong=True)
            else:
                await self.action_launch()

    # What is filled in

    @on(Field.Changed)
    async def _changed(self, message: Field.Changed) -> None:
        self._fill(message.field.key, message.field.value)
        await self._follow_program()

    def _fill(self, key: str, text: str) -> None:
        if text != self.draft.filled(key):
            self._typed.add(key)
            self.draft.fill(key, text)

    @on(ProgramInput.Offered)
    async def _offered(self) -> None:
        self._hint()
        field = self._field("program")
        field.help = self._program_help()
        await self._follow_program()
        self._say(field.help)

    @property
    def _choosing(self) -> bool:
        """True while programs are offered: what is typed is half a name, perhaps."""
        return any(field.offering for field in self.query(ProgramField))

    async def _follow_program(self) -> None:
        """Show the fields of another program once it is chosen, with what belongs to it."""
        if not self._choosing and self.draft.owner != self._owner:
            self._recall()
        if self._choosing or self.draft.program == self._shown:
            self._check()
        else:
            await self._take_program()

    def _recall(self) -> None:
        """Fill in what was filled in for this program before, but for what was typed meanwhile."""
        draft, self._owner = self.draft, self.draft.owner
        kept = draft.launches.get(draft.owner, {})
        arguments = (each.arguments for each in self._recent if each.text == draft.named)
        known = {"arguments": next(arguments, None) or "", **{option.key: "" for option in OPTIONS}, **kept}
        for key in known.keys() - self._typed:
            # Here too: the message of the field comes later, perhaps after an enter that is on its way.
            draft.fill(key, known[key])
            self._field(key).fill(known[key])

    def _check(self) -> None:
        """Say beside each field what is wrong with it, and below what it all comes to."""
        options = self._options if self.draft.program == self._shown else ()
        self._problems = form.problems(self.draft, options)
        for field in self._fields:
            half = field.key == "program" and self._choosing
            field.complain(None if half else self._problems.get(field.key))
            if self._is_needed(field):
                # It stays unfolded, also once it is empty again.
                field.remove_class("-seldom")
        line = form.command(self.draft, options)
        self.query_one("#command", Static).update(Content(f"$ {clean(line)}{' …' if self._asking else ''}"))

    def _is_needed(self, field: Field) -> bool:
        return bool(self.draft.filled(field.key)) or field.key in self._problems

    def action_more(self) -> None:
        """Show all fields, or only those that are basic or filled in."""
        dialog = self.query_one("#dialog").toggle_class("-folded")
        seldom = form.seldom(self._options) if dialog.has_class("-folded") else set()
        for field in self._fields:
            idle = not self._is_needed(field) and not field.has_pseudo_class("focus-within")
            field.set_class(field.key in seldom and idle, "-seldom")
        self._name_more()

    @on(Button.Pressed, "#more")
    def _more(self) -> None:
        self.action_more()

    def _name_more(self) -> None:
        which = "More" if self.query_one("#dialog").has_class("-folded") else "Fewer"
        self.query_one("#more", Button).label = Content(f"{which} fields ({keys_of(self)['launch.more']})")

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show the help of the field that is being filled in."""
        field = next((node for node in event.widget.ancestors if isinstance(node, Field)), None)
        if field is not None and self._notice is None:
            self._explain(field)
        self._notice = None
        self._hint()

    def _explain(self, field: Field) -> None:
        """Say what is wrong with a field, else what it is for; beside it there may be no room for all of that."""
        problem = None if field.key == "program" and self._choosing else self._problems.get(field.key)
        self._say(f"{field.title}: {problem}" if problem else field.help, wrong=problem is not None)

    def _say(self, text: str, *, wrong: bool = False) -> None:
        account = self.query_one("#account", Static)
        account.set_class(wrong, "-refused")
        account.update(Content(clean(text)))

    def action_choose(self) -> None:
        """Choose a script."""
        folder = Path(self.draft.script).expanduser().parent
        self.open_over(ScriptPicker(Path(os.getcwd(), folder if folder.is_dir() else "")), self._take_script)

    def _take_script(self, path: str | None) -> None:
        if path is None:
            return
        self.draft.choose(path)
        self._field("program").fill(path)
        self._field("program").enter()

    # Launching

    @on(Input.Submitted)
    @on(Button.Pressed, "#launch")
    async def action_launch(self) -> None:
        """Start what is filled in, or go to the first field that is wrong."""
        if self._starting:
            return
        await self._catch_up()
        if self._asking is not None:
            self._queued = True
            self._say(f"Reading {self._asking}'s options…  It is launched as soon as they are there.")
            return
        for field in self._fields:
            if field.key in self._problems:
                field.enter()
                self._explain(field)
                return
        self._starting = True
        self._say("starting …")
        request = form.request(self.draft, self._options, self._who)
        self.run_worker(partial(self._start, request), thread=True)

    async def _catch_up(self) -> None:
        """Take what was typed just before an enter that has overtaken it: else another program would be launched."""
        # The options below the program are those of the one shown, and of no other.
        same = self.draft.program == self._shown and self._field("program").current == self.draft.named
        fields = [field for field in self._fields if same or not field.key.startswith("-")]
        late = {field.key: field.current for field in fields if field.current != self.draft.filled(field.key)}
        for key, text in late.items():
            self._fill(key, text)
        if late:
            await self._follow_program()

    def _start(self, request: Request) -> None:
        try:
            started = self.Started(self._fleet.launch(request))
        except Refused as problem:
            started = self.Started(None, str(problem))
        self.post_message(started)

    @on(Started)
    def _started(self, message: Started) -> None:
        self._starting = False
        if message.run is None:
            self._say(message.problem, wrong=True)
        else:
            self._remember()
            self.dismiss(message.run)

    @on(Button.Pressed, "#close")
    async def action_close(self) -> None:
        """Close; what is filled in stays for the next time."""
        await self._catch_up()
        self._remember()
        self.dismiss(None)

    def _remember(self) -> None:
        problem = remembered.remember(self.draft)
        if problem is not None:
            self.notify(problem, severity="warning", markup=False)


def _launch_field(option: LaunchOption, value: str) -> Field:
    others = [(choice, choice) for choice in option.offered if choice != option.default]
    choices = [(option.unchosen or option.usual, ""), *others] if others else []
    return Field(option.key, option.title, option.note or option.help, value, usual=option.usual, choices=choices)


def _program_field(option: Option, value: str) -> Field:
    choices: list[tuple[str, str]] = [("no", ""), ("yes", "yes")] if option.switch else []
    if option.choices is not None:
        usual = f"default ({option.default})" if option.default is not None else "auto"
        choices = [(usual, ""), *((clean(each, 60), each) for each in option.choices)]
    return Field(
        option.flag,
        option.flag.removeprefix("--"),
        option.help,
        value,
        usual=option.default or "",
        choices=choices,
    )
