"""Secrets of a run, and the file that stores them; `text.is_secret` recognizes them.

Every screen and every record has a mask in place of a secret.  The values that a repetition of the run needs
are in a separate file of the run directory, which only the owner can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ddptop.agent.run.files import decoding, private
from ddptop.agent.run.records import Run
from ddptop.agent.text import MASK, is_secret, masked_words

_FILE: Final = "secrets.json"
_WORDS: Final = frozenset({"run", "run_id", "state", "kind", "level"})
"""Fields by whose values programs tell things apart."""
_SHORTEST_SECRET: Final = 6
"""Characters from which on a hidden value is looked for in texts: a shorter one would be found everywhere."""
_PARTS: Final = (str, tuple, msgspec.Struct)
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Stored(msgspec.Struct, frozen=True):
    """Fields of a run with their secrets."""

    environment: dict[str, str]
    arguments: tuple[str, ...]
    command: tuple[str, ...]


def masked_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a mask for each secret."""
    return {name: MASK if is_secret(name, value) else value for name, value in environment.items()}


def masked(run: Run) -> Run:
    """Return the record of a run with a mask for each secret."""
    return msgspec.structs.replace(
        run,
        environment=masked_variables(run.environment),
        arguments=masked_words(run.arguments),
        command=masked_words(run.command),
    )


def store(folder: Path, run: Run) -> None:
    """Write the fields of a run that `masked` changes, if any, into a separate file.

    Raises:
        OSError: it cannot be written.
    """
    if masked(run) != run or _is_masked(run):
        private.replace(folder / _FILE, msgspec.json.encode(_Stored(run.environment, run.arguments, run.command)))


def whole(folder: Path, run: Run) -> Run:
    """Return a run with its secrets, from its masked record and the file of secrets in its folder.

    Raises:
        private.RunDirError: its secrets cannot be read.
    """
    if not _is_masked(run):
        return run
    try:
        stored = decoding.of(_Stored).decode(private.read(folder / _FILE))
    except (OSError, msgspec.MsgspecError) as problem:
        raise private.RunDirError(f"run {run.run}: its secrets are not to be had ({problem}); launch it anew") from None
    return msgspec.structs.replace(
        run, environment=stored.environment, arguments=stored.arguments, command=stored.command
    )


def hidden(folder: Path, run: Run) -> tuple[str, ...]:
    """Return the values that stand behind the masks of a run's record; none where they are not to be had."""
    try:
        found = whole(folder, run)
    except private.RunDirError:
        return ()
    pairs = [
        *((run.environment.get(name, ""), value) for name, value in found.environment.items()),
        *zip(run.arguments, found.arguments, strict=False),
        *zip(run.command, found.command, strict=False),
    ]
    secret = {value if shown == MASK else value.partition("=")[2] for shown, value in pairs if MASK in shown}
    return tuple(sorted(filter(None, secret), key=len, reverse=True))


class Mask:
    """Puts the mask in place of the values that the record of a run hides, wherever they stand in its texts."""

    def __init__(self, folder: Path, run: Run) -> None:
        self._hidden = [value for value in hidden(folder, run) if len(value) >= _SHORTEST_SECRET]

    def line(self, text: str) -> str:
        """Return a text without them."""
        for value in self._hidden:
            text = text.replace(value, MASK)
        return text

    def texts(self, value: Any) -> Any:
        """Return what was decoded from JSON without them; its keys stay."""
        match value:
            case str():
                return self.line(value)
            case dict():
                return {key: self.texts(each) for key, each in value.items()}
            case list() | tuple():
                return [self.texts(each) for each in value]
        return value

    def shown(self, value: _Struct, *fields: str) -> _Struct:
        """Return a struct of the wire without them, and without them in the structs in it; in some `fields` alone where
        these are given.
        """
        if not self._hidden:
            return value
        names = fields or [name for name in value.__struct_fields__ if name not in _WORDS]
        changed = {name: self._part(each) for name in names if isinstance(each := getattr(value, name), _PARTS)}
        return msgspec.structs.replace(value, **changed)

    def _part(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._part(each) if isinstance(each, _PARTS) else each for each in value)
        return self.line(value) if isinstance(value, str) else self.shown(value)

    def content(self, content: bytes) -> bytes:
        """Return bytes with as many asterisks in their place, so that a message stays one."""
        for value in self._hidden:
            content = content.replace(value.encode(), b"*" * len(value.encode()))
        return content


def _is_masked(run: Run) -> bool:
    return any(MASK in word for word in (*run.environment.values(), *run.arguments, *run.command))
