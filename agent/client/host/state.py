"""Things remembered for this user from one program of ours to the next: small files, each replaced as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from ddptop.agent.run.files import decoding, private

K = TypeVar("K")


def place(name: str) -> Path:
    """Return the file of a name.

    Raises:
        FileNotFoundError: nobody knows the home of this user.
    """
    return _home("XDG_STATE_HOME", "state") / name


def data(name: str) -> Path:
    """Return a folder of what the user has asked to keep.

    Raises:
        FileNotFoundError: nobody knows the home of this user.
    """
    return _home("XDG_DATA_HOME", "share") / name


def _home(variable: str, usual: str) -> Path:
    given = os.environ.get(variable, "")
    try:
        home = Path(given) if os.path.isabs(given) else Path.home() / ".local" / usual
    except RuntimeError:
        # An account without a name, in a container without HOME.
        raise FileNotFoundError(errno.ENOENT, f"no home: set HOME or {variable}") from None
    return home / "ddptop"


def read(name: str, kind: type[K]) -> K | None:
    """Return what was written under a name, None where nothing was; its text is not clean.

    Raises:
        ValueError: it cannot be read; the file and the reason in one line.
    """
    try:
        file = place(name)
        return decoding.of(kind).decode(private.read(file))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as problem:
        raise ValueError(f"{file}: {getattr(problem, 'strerror', None) or problem}") from problem


def write(name: str, value: object) -> None:
    """Write a value under a name.

    Raises:
        ValueError: it cannot be written; the file and the reason in one line.
    """
    try:
        file = place(name)
    except FileNotFoundError as problem:
        raise ValueError(problem.strerror) from problem
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.replace(file, msgspec.json.encode(value))
    except (OSError, ValueError) as problem:
        raise ValueError(f"{file}: {getattr(problem, 'strerror', None) or problem}") from problem
