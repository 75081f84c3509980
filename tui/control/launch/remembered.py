"""The values last filled in for a launch, remembered for this user from one dashboard to the next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import msgspec

from ddptop.agent.run.files import private
from ddptop.agent.text import clean
from ddptop.agent.wire.incoming import cleaned
from ddptop.trainers import CATALOGUE
from ddptop.tui.control.launch.form import Draft, without_secrets
from ddptop.tui.control.launch.options import OPTIONS

_Stored: TypeAlias = dict[str, str | dict[str, dict[str, str]]]


def place() -> Path:
    """Return the file."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "ddptop" / "launch.json"


def recall() -> tuple[Draft, str | None]:
    """Return the last draft, a fresh one where there is none, and what was wrong with the file, if anything."""
    file = place()
    try:
        draft = cleaned(_draft(msgspec.json.decode(private.read(file), type=_Stored)))
    except FileNotFoundError:
        return Draft(), None
    except (OSError, msgspec.MsgspecError) as problem:
        return Draft(), f"last settings not read: {file}: {getattr(problem, 'strerror', None) or problem}"
    if draft.program and draft.program not in CATALOGUE:
        draft.program = Draft().program
    return draft, None


def remember(draft: Draft) -> str | None:
    """Keep a draft, but for its secrets and the name of its run; return what went wrong, if anything."""
    file = place()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stored = msgspec.to_builtins(without_secrets(draft))
        # In the file the options of the launch stand beside the other fields.
        launch = stored.pop("launch")
        private.replace(file, msgspec.json.encode({**launch, **stored, "name": ""}))
    except OSError as problem:
        return f"these settings are not remembered: {file}: {problem.strerror}"
    return None


def _draft(stored: _Stored) -> Draft:
    if "launch" in stored:
        raise msgspec.ValidationError("Object contains unknown field `launch`")
    launch = {option.key: stored.pop(option.key) for option in OPTIONS if option.key in stored}
    draft = msgspec.convert({**stored, "launch": launch}, Draft)
    # Values of variables are passed on as they are, like the arguments of a script.
    draft.launch = {key: text if key == "environment" else clean(text) for key, text in draft.launch.items()}
    return draft
