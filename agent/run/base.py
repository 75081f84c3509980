"""The base: the folder that holds all runs of a user, and the names that they have in it.

The default is in the temporary directory, and not in `$XDG_RUNTIME_DIR`: logind removes that when the user's last
session ends, and a detached run must survive exactly that.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import unicodedata
from pathlib import Path
from typing import Final

from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.marks import Mark
from ddptop.agent.run.files.private import RunDirError

BASE_VARIABLE: Final = "DDPTOP_RUNTIME_DIR"
_ADVICE: Final = f"set {BASE_VARIABLE} to a short path of your own that can be written"
_TEMPORARY: Final = ("TMPDIR", "TEMP", "TMP")
"""Environment variables that name the folder for temporary files, the first before the others."""
LONGEST_NAME: Final = 40
"""Bytes of a run's name at most."""
_NAME: Final = re.compile(r"[^\W_][\w.-]*")
"""A run's name, without marks that are no part of a letter: a terminal draws those in the cells of others."""
_DIGITS: Final = re.compile(r"-([0-9a-f]{4})$")
_DEFAULT: Final = "ddptop-"
"""Name of a default base, before the uid of its user."""
_LONGEST_USER: Final = 10
"""Digits of a uid at most."""
_SOCKET_PATH_LIMIT: Final = 107
_LONGEST_SOCKET_NAME: Final = "observer.pub"

known_temporary_folder: Path | None = None
"""The folder for temporary files, in a process that has given up the environment that names it."""


def base() -> Path:
    """Return the folder that holds this user's runs, and make it where it is missing; see `check_writable`.

    Raises:
        RunDirError: it cannot be made or read, or others could enter it.
    """
    given = os.environ.get(BASE_VARIABLE)
    path = Path(given).absolute() if given else default_base(os.getuid())
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.check_folder(path, os.getuid(), f"remove it or set {BASE_VARIABLE}")
    except OSError as error:
        raise RunDirError(f"runtime directory {path}: {error.strerror}; {_ADVICE}") from error
    if not os.access(path, os.R_OK | os.X_OK):
        raise RunDirError(f"runtime directory {path}: not readable; {_ADVICE}")
    longest = len(os.fsencode(path)) + 1 + LONGEST_NAME + 1 + len(_LONGEST_SOCKET_NAME)
    if longest > _SOCKET_PATH_LIMIT:
        raise RunDirError(
            f"runtime directory {path}: too long for socket paths by {longest - _SOCKET_PATH_LIMIT} "
            f"characters; {_ADVICE}"
        )
    if not os.path.lexists(path / marks.NAME):
        # On a disk that is full or read-only the runs can still be listed.
        with contextlib.suppress(OSError):
            marks.write(path, Mark(marks.BASE))
    return path


def check_writable(path: Path) -> None:
    """Check that a run can be made in the base.

    Raises:
        RunDirError: nothing can be written there.
    """
    if not os.access(path, os.W_OK):
        raise RunDirError(f"runtime directory {path}: not writable; {_ADVICE}")


def default_base(uid: int) -> Path:
    """Return the base of a user who has not set `DDPTOP_RUNTIME_DIR`."""
    return temporary_folder() / f"{_DEFAULT}{uid}"


def temporary_folder() -> Path:
    """Return the folder for temporary files: the one that `tempfile` chooses, unless that one has no room.

    That module loads compressors and a random number generator, and takes longer to import than a look at a run to
    answer: it is loaded only where the first folder that is named cannot be used.
    """
    if known_temporary_folder is not None:
        return known_temporary_folder
    names = [os.environ.get(variable) for variable in _TEMPORARY]
    first = os.path.abspath(next(filter(None, names), "/tmp"))
    if os.path.isdir(first) and os.access(first, os.W_OK | os.X_OK):
        return Path(first)
    import tempfile

    return Path(tempfile.gettempdir())


def bases_of_others() -> dict[int, Path]:
    """Return the default bases of other users, by uid.

    The base of a user who has set `DDPTOP_RUNTIME_DIR` is not known here.
    """
    found = {}
    with os.scandir(temporary_folder()) as entries:
        for entry in entries:
            number = entry.name.removeprefix(_DEFAULT)
            if number == entry.name or not (number.isascii() and number.isdecimal()) or len(number) > _LONGEST_USER:
                continue
            uid = int(number)
            # A name such as `ddptop-01000` is not the default base of any user.
            if uid == os.getuid() or str(uid) != number:
                continue
            with contextlib.suppress(OSError, RunDirError):
                private.check_folder(Path(entry.path), uid, "")
                found[uid] = Path(entry.path)
    return found


def check_name(name: str) -> str:
    """Return `name` if it can name a run.

    Raises:
        RunDirError: it has characters with a meaning to the file system or to a shell.
    """
    name = normal(name)
    if not is_name(name):
        raise RunDirError(
            f"run name {name!r}: use 1 to {LONGEST_NAME} letters, digits, '.', '_' or '-', "
            f"beginning with a letter or digit; in all {LONGEST_NAME} bytes at most"
        )
    return name


def normal(name: str) -> str:
    """Return a name as it is compared: a letter and its mark are one character where there is one."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def is_name(text: str) -> bool:
    """Say whether a run may have that name: letters of any script, where the file system takes them."""
    try:
        if len(os.fsencode(text)) > LONGEST_NAME:
            return False
    except UnicodeEncodeError:
        return False
    return _NAME.fullmatch(text) is not None


def shortened(name: str, length: int) -> str:
    """Return the beginning of a name, of at most `length` bytes."""
    encoding = sys.getfilesystemencoding()
    return name.encode(encoding, "ignore")[:length].decode(encoding, "ignore")


def stem_of(program: str, length: int) -> str:
    """Return the beginning of a run's name for a program, of at most `length` bytes."""
    return shortened(re.sub(r"[^\w.-]+", "-", normal(Path(program).stem)).strip("-._"), length) or "run"


def digits_of(name: str) -> str | None:
    """Return the 4 digits with which a suggested name ends: `7f3a` of `resnet-7f3a`; None where a name has none."""
    found = _DIGITS.search(name)
    return found and found[1]
