"""Secrets of a run: how they are recognized, and where they are stored.

Every screen and every record has a mask in place of a secret.  The values that a repetition of the run needs
are in a separate file of the run directory, which only the owner can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.run.files import decoding, private
from ddptop.agent.run.records import Run

MASK: Final = "***"
"""Replaces a secret value."""
_FILE: Final = "secrets.json"
_SECRET: Final = re.compile(
    # Words that only look alike are left out: tokenizer, keyboard, author.
    r"SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL|TOKEN(?!I[ZS])|AUTH(?!OR(?!I[ZS]))|KEY(?!BOARD|WORD|FRAME|POINT)",
    re.IGNORECASE,
)
_COUNTED: Final = re.compile(r"TOKENS", re.IGNORECASE)
_COUNT: Final = re.compile(r"[0-9]{1,9}[kKmMbB]?")
_ASSIGNED: Final = re.compile(r"(?P<name>[^=\s]+)=(?P<value>.*)", re.DOTALL)


class _Stored(msgspec.Struct, frozen=True):
    """Fields of a run with their secrets."""

    environment: dict[str, str]
    arguments: tuple[str, ...]
    command: tuple[str, ...]


def is_secret(name: str, value: str = "") -> bool:
    """Say whether a variable or an option holds a secret, by its name."""
    if not _SECRET.search(name):
        return False
    # `--max-tokens 512`: a number of tokens is no secret.
    rest = _COUNTED.sub("", name)
    return rest == name or bool(_SECRET.search(rest)) or not _COUNT.fullmatch(value)


def masked_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a mask for each secret."""
    return {name: MASK if is_secret(name, value) else value for name, value in environment.items()}


def masked_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a command line with a mask for each secret: `--token ***`, `--api-key=***`, `API_KEY=***`."""
    shown: list[str] = []
    option = ""
    for word in words:
        assigned = _ASSIGNED.fullmatch(word)
        if option and not word.startswith("-") and is_secret(option, word):
            shown.append(MASK)
        elif assigned and is_secret(assigned["name"].rpartition("/")[2], assigned["value"]):
            shown.append(f"{assigned['name']}={MASK}")
        else:
            shown.append(word)
        option = word if word.startswith("-") and "=" not in word else ""
    return tuple(shown)


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


def _is_masked(run: Run) -> bool:
    return any(MASK in word for word in (*run.environment.values(), *run.arguments, *run.command))
