"""A launch that is being filled in, its faults, and the command line that says the same.

Pure but for looks at the machine and at the script; every field is the text that was typed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ddptop.agent.client.start import checks
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.text import MASK, is_secret, masked_words
from ddptop.agent.wire.incoming import Verbatim
from ddptop.trainers import CATALOGUE
from ddptop.tui.launch.options import AS_MODULE, OPTIONS, LaunchOption
from ddptop.tui.launch.programs import Option
from ddptop.tui.launch.target import target

DECIDED: Final = "ranks"
"""The group of a program's options that the launch itself decides: how many ranks, and where."""
_BASIC: Final = frozenset({"world", "name"})
"""Options of the launch that most launches are about."""
_SELDOM: Final = frozenset({"data", "what is kept"})
"""Groups of a program's options that most launches leave as they are."""


class Draft(msgspec.Struct, forbid_unknown_fields=True):
    """A launch that is being filled in."""

    program: str = next(iter(CATALOGUE))
    """Name in the catalogue; empty for a script or a module."""
    script: Verbatim = ""
    """Path of a script, or `-m` and a module; has no meaning beside a name of the catalogue."""
    arguments: Verbatim = ""
    """Of the script, as in a shell."""
    launch: dict[str, Verbatim] = {}
    """By key of `OPTIONS`; where one repeats, its values are written as in a shell, with spaces between."""
    launches: dict[str, dict[str, Verbatim]] = {}
    """The same of programs that were filled in before, by `owner`, the last one last."""
    options: dict[str, dict[str, Verbatim]] = {}
    """By program and flag what was typed; a switch that is on is `yes`."""

    @property
    def named(self) -> str:
        """Return the program as it is typed."""
        return self.program or self.script

    @property
    def owner(self) -> str:
        """Return what tells this program from others: its name in the catalogue, else its absolute path.

        A module counts as one in this folder.
        """
        return self.program or os.path.abspath(os.path.expanduser(self.script))

    def choose(self, text: str) -> None:
        """Take a program as it is typed: a name of the catalogue, a path, or `-m` and a module."""
        text = text.strip()
        self.program = text if text in CATALOGUE else ""
        if not self.program:
            self.script = text

    def given(self) -> dict[str, str]:
        """Return what was typed for the options of the program."""
        return self.options.get(self.program, {})

    def filled(self, key: str) -> str:
        """Return what was typed for a key, as `fill` takes it."""
        if key == "program":
            return self.named
        if key.startswith("-"):
            return self.given().get(key, "")
        return str(getattr(self, key)) if key in self.__struct_fields__ else self.launch.get(key, "")

    def fill(self, key: str, text: str) -> None:
        """Take what was typed: for a field of the draft, for an option of the launch, or for a flag of the program."""
        if key == "program":
            self.choose(text)
        elif key.startswith("-"):
            self.options.setdefault(self.program, {})[key] = text
        elif key in self.__struct_fields__:
            setattr(self, key, text)
        else:
            self.launch[key] = text


def without_secrets(draft: Draft) -> Draft:
    """Return a draft that may be stored: `problems` asks for what its masks stand for."""
    return msgspec.structs.replace(
        draft,
        arguments=_masked(draft.arguments),
        launch={key: _masked(text) for key, text in draft.launch.items()},
        launches={
            owner: {key: _masked(text) for key, text in launch.items()} for owner, launch in draft.launches.items()
        },
        options={
            program: {flag: MASK if value and is_secret(flag, value) else value for flag, value in given.items()}
            for program, given in draft.options.items()
        },
    )


def _masked(text: str) -> str:
    words = _split(text)
    shown = list(masked_words(words))
    # As it was typed, where nothing is hidden.
    return text if shown == words else shlex.join(shown)


def offered(options: Sequence[Option]) -> list[Option]:
    """Return the options that a launch leaves to the user."""
    return [option for option in options if option.group != DECIDED]


def seldom(options: Sequence[Option]) -> set[str]:
    """Return the keys of the options of the launch and of the program that most launches leave as they are."""
    own = {option.flag for option in offered(options) if option.group in _SELDOM}
    return own | {option.key for option in OPTIONS if option.key not in _BASIC}


def request(draft: Draft, options: Sequence[Option], who: str) -> Request:
    """Return what a draft without problems asks for."""
    values, _ = _read(draft)
    program, as_module = _program(draft)
    return Request(program, as_module, tuple(_arguments(draft, options)), who, **values)


def _program(draft: Draft) -> tuple[str, bool]:
    """Return the program as a request names it, and whether it is a module."""
    if draft.program:
        return draft.program, False
    first, _, module = draft.script.partition(" ")
    if first == AS_MODULE:
        return module.strip(), True
    # As a shell does with what is typed there.
    return os.path.expanduser(draft.script), False


def command(draft: Draft, options: Sequence[Option]) -> str:
    """Return the command line that does the same, as a shell takes it, with a mask for each secret."""
    words = [word for option in OPTIONS for text in _texts(draft, option) for word in (option.flag, text)]
    arguments = masked_words(_arguments(draft, options))
    program, as_module = _program(draft)
    named = [AS_MODULE, program or "MODULE"] if as_module else [program or "PROGRAM"]
    return shlex.join(["ddptop", "launch", *masked_words(words), *named, *(["--", *arguments] if arguments else [])])


def _texts(draft: Draft, option: LaunchOption) -> list[str]:
    text = draft.launch.get(option.key, "")
    return _split(text) if option.repeats or not text else [text]


def _arguments(draft: Draft, options: Sequence[Option]) -> list[str]:
    if not draft.program:
        return _split(draft.arguments)
    words = []
    for option in offered(options):
        value = draft.given().get(option.flag, "")
        if value:
            words += [option.flag] if option.switch else [option.flag, value]
    return words


def _split(text: str) -> list[str]:
    try:
        return _words(text)
    except ValueError:
        # Half a quotation, while it is typed; `problems` says so.
        return text.split()


def problems(draft: Draft, options: Sequence[Option]) -> dict[str, str]:
    """Return what is wrong, one line for each field or option that has something wrong."""
    values, found = _read(draft)
    if checks.BASIC.isdisjoint(found):
        found = checks.problems(Request(*_program(draft), **values)) | found
    if not draft.program:
        for field, check in (("program", _check_program), ("arguments", _check_arguments)):
            try:
                check(draft)
            except (ValueError, RequestError) as problem:
                found[field] = str(problem)
    for option in offered(options):
        text = draft.given().get(option.flag, "")
        wrong = option.problem(text) if text and not option.switch else None
        if text == MASK and is_secret(option.flag):
            wrong = f"{MASK} stands for a secret that was not kept: type it again"
        if wrong is not None:
            found[option.flag] = wrong
    return found


def _read(draft: Draft) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the options that can be read, and what is wrong with the others."""
    values: dict[str, Any] = {}
    found: dict[str, str] = {}
    for option in OPTIONS:
        try:
            values[option.key] = _value(option, draft.launch.get(option.key, ""))
        except ValueError as problem:
            found[option.key] = str(problem)
    return values, found


def _value(option: LaunchOption, text: str) -> Any:
    if not text:
        return option.default
    if option.repeats:
        return tuple(map(option.read, _words(text)))
    if option.choices and text not in option.choices:
        raise ValueError(f"one of {', '.join(option.offered)}")
    return option.read(text)


def _check_program(draft: Draft) -> None:
    program, as_module = _program(draft)
    if not program:
        raise ValueError("type a name of the list, the path of a script, or -m MODULE")
    target(Request(program, as_module))


def _check_arguments(draft: Draft) -> None:
    if any(word == MASK or word.endswith(f"={MASK}") for word in _words(draft.arguments)):
        raise ValueError(f"{MASK} stands for a secret that was not kept: type it again")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as problem:
        raise ValueError(f"{str(problem).lower()}: quote it as in a shell") from problem
