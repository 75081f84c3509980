"""What a launch is filled in as, what is wrong with it, and the command line that says the same.

Pure but for looks at the machine and at the script; every field is the text that was typed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ddptop.agent.observer import machine
from ddptop.agent.run import injection, rundir
from ddptop.agent.run.files.masking import MASK, is_secret, masked_words
from ddptop.agent.wire.incoming import Verbatim
from ddptop.trainers import CATALOGUE
from ddptop.tui.control.launch.launch import (
    Request,
    RequestError,
    check_on_term,
    check_restarts,
    restarts,
    target,
    variables,
)
from ddptop.tui.control.launch.programs import Option

TORCHRUN: Final = "torchrun"
GRACE_S: Final = 5.0
MOST_GRACE_S: Final = 3600.0
DECIDED: Final = "ranks"
"""The group of a program's options that the launch itself decides: how many ranks, and where."""


class Draft(msgspec.Struct, forbid_unknown_fields=True):
    """A launch that is being filled in."""

    program: str = next(iter(CATALOGUE))
    """Name in the catalogue; empty for a script."""
    script: Verbatim = ""
    world: str = ""
    backend: str = ""
    name: str = ""
    grace: str = ""
    inject: str = ""
    """Faults, with spaces between."""
    environment: Verbatim = ""
    """`KEY=VALUE`, or `KEY` for the value that it has here, as in a shell, with spaces between."""
    arguments: Verbatim = ""
    """Of the script, as in a shell."""
    start: str = ""
    """Who starts the ranks; empty for torchrun."""
    on_term: str = ""
    """What a TERM from outside leads to; empty for what it always does."""
    max_restarts: str = ""
    options: dict[str, dict[str, Verbatim]] = {}
    """By program and flag what was typed; a switch that is on is `yes`."""

    def given(self) -> dict[str, str]:
        """Return what was typed for the options of the program."""
        return self.options.get(self.program, {})


def without_secrets(draft: Draft) -> Draft:
    """Return a draft that may be stored: `problems` asks for what its masks stand for."""
    return msgspec.structs.replace(
        draft,
        environment=_masked(draft.environment),
        arguments=_masked(draft.arguments),
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


def request(draft: Draft, options: Sequence[Option], who: str) -> Request:
    """Return what a draft without problems asks for."""
    return Request(
        program=draft.program or draft.script,
        arguments=tuple(_arguments(draft, options)),
        world=int(draft.world) if draft.world else None,
        name=draft.name or None,
        backend=draft.backend or None,
        grace_s=float(draft.grace) if draft.grace else GRACE_S,
        who=who,
        inject=tuple(draft.inject.split()),
        environment=tuple(shlex.split(draft.environment)),
        start=draft.start or TORCHRUN,
        on_term=draft.on_term,
        max_restarts=restarts(draft.max_restarts or "0"),
    )


def command(draft: Draft, options: Sequence[Option]) -> str:
    """Return the command line that does the same, as a shell takes it, with a mask for each secret."""
    words = ["ddptop", "launch"]
    for flag, value in (
        ("--world", draft.world),
        ("--backend", draft.backend),
        ("--name", draft.name),
        ("--grace", draft.grace),
        ("--start", draft.start),
        ("--on-term", draft.on_term),
        ("--max-restarts", draft.max_restarts),
    ):
        words += [flag, value] if value else []
    for fault in draft.inject.split():
        words += ["--inject", fault]
    for assignment in _split(draft.environment):
        words += ["--env", *masked_words([assignment])]
    words.append(draft.program or draft.script or "SCRIPT")
    arguments = masked_words(_arguments(draft, options))
    return shlex.join([*words, "--", *arguments] if arguments else words)


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
        return shlex.split(text)
    except ValueError:
        # Half a quotation, while it is typed; `problems` says so.
        return text.split()


def problems(draft: Draft, options: Sequence[Option]) -> dict[str, str]:
    """Return what is wrong, one line for each field or option that has something wrong."""
    checks: dict[str, Callable[[], object]] = {
        "script": lambda: None if draft.program else _check_script(draft.script),
        "world": lambda: machine.check_world(_world(draft)),
        "backend": lambda: machine.choose(_world(draft), draft.backend or None),
        "name": lambda: rundir.check_name(draft.name) if draft.name else None,
        "grace": lambda: _check_grace(draft.grace),
        "inject": lambda: injection.parse_all(draft.inject.split(), _world(draft)),
        "on_term": lambda: check_on_term(draft.on_term, draft.start),
        "max_restarts": lambda: check_restarts(restarts(draft.max_restarts or "0"), draft.start),
        "environment": lambda: variables(_words(draft.environment)),
        "arguments": lambda: None if draft.program else _check_kept(_words(draft.arguments)),
    }
    found = {}
    for field, check in checks.items():
        try:
            check()
        except (ValueError, RequestError, rundir.RunDirError) as problem:
            if field == "world" or "world" not in found:
                # What depends on a wrong number of ranks is not wrong itself.
                found[field] = str(problem)
    for option in offered(options):
        text = draft.given().get(option.flag, "")
        wrong = option.problem(text) if text and not option.switch else None
        if text == MASK and is_secret(option.flag):
            wrong = f"{MASK} stands for a secret that was not kept: type it again"
        if wrong is not None:
            found[option.flag] = wrong
    return found


def _world(draft: Draft) -> int:
    if not draft.world:
        return machine.default_world()
    if not (draft.world.isascii() and draft.world.isdecimal()):
        raise ValueError("a whole number of ranks")
    return int(draft.world)


def _check_grace(text: str) -> None:
    try:
        value = float(text or GRACE_S)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_GRACE_S:
        raise ValueError(f"seconds, from 0 to {MOST_GRACE_S:g}")


def _check_script(path: str) -> None:
    if not path:
        raise ValueError("a script: type its path, or choose it from the folders")
    target(Request(path))


def _check_kept(arguments: list[str]) -> None:
    if any(word == MASK or word.endswith(f"={MASK}") for word in arguments):
        raise ValueError(f"{MASK} stands for a secret that was not kept: type it again")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as problem:
        raise ValueError(f"{str(problem).lower()}: quote it as in a shell") from problem
