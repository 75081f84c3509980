"""The last form and the last launches, remembered for this user from one dashboard to the next."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.client.host import state
from ddptop.agent.client.start.request import Request
from ddptop.agent.text import clean, masked_words
from ddptop.agent.wire.incoming import Verbatim, cleaned
from ddptop.trainers import CATALOGUE
from ddptop.tui.launch.form import Draft, without_secrets
from ddptop.tui.launch.options import AS_MODULE
from ddptop.tui.launch.programs import Suggestion

_DRAFT: Final = "launch.json"
_LAUNCHED: Final = "launched.json"
_MOST: Final = 20
"""Programs that are remembered."""
_NEVER: Final = frozenset({"inject", "name"})
"""Options that are not remembered: a fault is meant for one run, and a name is taken by it."""


class _Launched(msgspec.Struct, frozen=True):
    """A program that was launched."""

    program: Verbatim
    """Name in the catalogue, absolute path of a script, or `-m` and a module."""
    arguments: Verbatim
    """As in a shell, with a mask for each secret; those of the catalogue's programs stand in the draft."""
    folder: Verbatim
    """From which a module was launched; empty for others, which are the same everywhere."""


def recall() -> tuple[Draft, str | None]:
    """Return the last draft, a fresh one where there is none, and what was wrong with the file, if anything."""
    try:
        found = state.read(_DRAFT, Draft)
    except ValueError as problem:
        return Draft(), f"last settings not read: {problem}"
    if found is None:
        return Draft(), None
    draft = cleaned(found)
    if draft.program and draft.program not in CATALOGUE:
        draft.program = Draft().program
    # Values of variables are passed on as they are, like the arguments of a script.
    draft.launch = {
        key: text if key == "environment" else clean(text)
        for key, text in draft.launches.get(draft.owner, {}).items()
        if key not in _NEVER
    }
    return draft, None


def remember(draft: Draft) -> str | None:
    """Keep a draft, but for secrets, faults and the name of its run; return what went wrong, if anything."""
    kept = {key: text for key, text in draft.launch.items() if text and key not in _NEVER}
    others = [(owner, launch) for owner, launch in draft.launches.items() if owner != draft.owner]
    launches = dict([*others, (draft.owner, kept)][-_MOST:])
    stored = msgspec.to_builtins(without_secrets(msgspec.structs.replace(draft, launches=launches)))
    del stored["launch"]
    try:
        state.write(_DRAFT, stored)
    except ValueError as problem:
        return f"these settings are not remembered: {problem}"
    return None


def recent() -> list[Suggestion]:
    """Return the programs that were launched, the last one first, without those that are not to be found here."""
    try:
        folder = os.getcwd()
    except OSError:
        # The folder that we run in was removed.
        return []
    found: dict[str, Suggestion] = {}
    for each in _launched():
        text = each.program
        if os.path.isabs(text):
            if not (text.isprintable() and os.path.isfile(text)):
                continue
            path = Path(text)
            text = str(path.relative_to(folder)) if path.is_relative_to(folder) else text
            # A script may have the name of a program of the catalogue.
            text = f"./{text}" if text in CATALOGUE else text
        elif text not in CATALOGUE and each.folder != folder:
            continue
        arguments = None if each.program in CATALOGUE else each.arguments
        found.setdefault(text, Suggestion(text, f"recent · {arguments}" if arguments else "recent", arguments))
    return list(found.values())


def note_launch(request: Request) -> None:
    """Keep what was launched, for `recent`; where that cannot be written, the launch is as good without."""
    with contextlib.suppress(OSError, ValueError):
        program, arguments = _lasting(request)
        # Where it is does not tell a path or a name of the catalogue from another.
        folder = os.getcwd() if request.as_module else ""
        latest = _Launched(program, arguments, folder)
        older = [each for each in _launched() if (each.program, each.folder) != (program, folder)]
        state.write(_LAUNCHED, [latest, *older][:_MOST])


def _lasting(request: Request) -> tuple[str, str]:
    """Return program and arguments of a request as they are stored."""
    arguments = shlex.join(masked_words(request.arguments))
    if request.as_module:
        return f"{AS_MODULE} {request.program}", arguments
    if request.program in CATALOGUE:
        return request.program, ""
    return os.path.abspath(request.program), arguments


def _launched() -> list[_Launched]:
    with contextlib.suppress(ValueError):
        return [cleaned(each) for each in state.read(_LAUNCHED, list[_Launched]) or ()]
    return []
