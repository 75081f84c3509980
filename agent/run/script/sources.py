"""The files of a program's functions: their names for people, whose code they are, and the text of a line.

Names come out of the process that is looked at, whose script may set any: a file is opened only where it is a regular
one, and what is read of it is bounded.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from ddptop.agent.text import clean

LONGEST: Final = 200
"""Characters of a name or of a line of source at most."""
_LARGEST: Final = 8 << 20
"""Bytes of a file that is read at most."""
_PARTS: Final = 3
"""Last parts of a path that are shown where it is in no folder that is known."""
_OURS: Final = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep
_STDLIB: Final = os.path.dirname(os.__file__) + os.sep
_PACKAGES: Final = re.compile(r"(?<![^/])(?:(?:site|dist)-packages|lib(?:64)?/python3(?:\.\d+)?t?)/")
"""The folders of installed packages and of Python itself, also those of another interpreter than this one."""
_GENERATED: Final = re.compile(r"(?:^|/)torchinductor_|\.so(?:\.|$)")
_TYPED: Final = frozenset({"<stdin>", "<string>"})
"""Names of code that the user has given without a file."""


def is_library(file: str, home: str = "") -> bool:
    """Say whether a file belongs to an installed package, to Python itself or to ddptop's agent.

    Args:
        file: its path, or the name of code without a file.
        home: absolute path of the folder of the program's own code, with a slash at its end; empty: not known.
    """
    file = _normal(file)
    if file.startswith("<"):
        return file not in _TYPED
    if file.startswith(_OURS):
        return True
    # A program may be installed as a package itself, and have its environment in its own folder.
    if home and file.startswith(home):
        file = file[len(home) :]
    elif file.startswith(_STDLIB):
        return True
    return bool(_PACKAGES.search(file) or _GENERATED.search(file))


class Sources:
    """The files of one program."""

    def __init__(self, home: str, folder: str) -> None:
        """Prepare; nothing is read.

        Args:
            home: absolute path of the folder of the program's own code; empty where it is not known.
            folder: absolute path of the process's working directory; empty where it is not known.
        """
        self._home = _as_folder(home)
        self._folder = _as_folder(folder)

    def is_library(self, file: str) -> bool:
        """Say whether a file belongs to an installed package, to Python itself or to ddptop's agent."""
        return is_library(file, self._home)

    def is_own(self, file: str) -> bool:
        """Say whether a file is in the program's folder or in the working directory, links followed, and is Python."""
        found = os.path.realpath(os.path.join(self._folder, file))
        return found.endswith(".py") and any(
            folder and found.startswith(_as_folder(os.path.realpath(folder))) for folder in (self._home, self._folder)
        )

    def name(self, file: str) -> str:
        """Return the name of a file for people: relative to a folder that they know, or the end of its path."""
        return _bounded(clean(self._relative(_normal(file)), len(file)))

    def path(self, file: str) -> str:
        """Return the path by which a file can be opened."""
        return os.path.join(self._folder, file)

    def _relative(self, file: str) -> str:
        if file.startswith("<"):
            return file
        if file.startswith(_OURS):
            # By the name under which it is imported, wherever it is.
            return "ddptop/agent/" + file[len(_OURS) :]
        # In the folder of an installed package its own name says more than the path to there.
        for folder in (self._home, self._folder):
            if folder and file.startswith(folder) and not _PACKAGES.search(file[len(folder) :]):
                return file[len(folder) :]
        *_, last = [None, *_PACKAGES.finditer(file)]
        if last is not None:
            return file[last.end() :]
        parts = file.split(os.sep)
        return file if len(parts) <= _PARTS + 1 else "…/" + os.sep.join(parts[-_PARTS:])


def _as_folder(path: str) -> str:
    return path.rstrip(os.sep) + os.sep if path else ""


def _normal(file: str) -> str:
    # Python joins the working directory and `./train.py`, and leaves it at that.
    return os.path.normpath(file) if "/." in file else file


def _bounded(name: str) -> str:
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]


def read_lines(
    path: str, numbers: Collection[int], *, before: float | None = None, indented: bool = False
) -> dict[int, str]:
    """Return the text of some lines of a file, by number; without those that cannot be read.

    It reads only regular files, so that it waits for no pipe; a file system that hangs holds it up.

    Args:
        path: of the file.
        numbers: counted from 1.
        before: seconds since the epoch; a file that was changed later is not read, since its lines are others now.
        indented: with the white space at their beginnings.
    """
    wanted, found = frozenset(numbers), {}
    last = max(wanted, default=0)
    try:
        if last < 1 or not _is_readable(os.stat(path), before):
            return {}
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
            if not _is_readable(os.fstat(file.fileno()), before):
                return {}
            for number, line in enumerate(file, 1):
                if number in wanted:
                    text = line[: 4 * LONGEST].decode("utf-8", "replace").rstrip()
                    margin = " " * (len(text.expandtabs()) - len(text.expandtabs().lstrip())) if indented else ""
                    found[number] = margin + clean(text.strip(), LONGEST)
                if number >= last:
                    break
    except (OSError, ValueError):
        return {}
    return found


def _is_readable(status: os.stat_result, before: float | None) -> bool:
    is_older = before is None or status.st_mtime <= before
    return stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST and is_older
