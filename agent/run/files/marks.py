"""The mark: a small file in the base, each run directory and each diagnosis, which says that ddptop made the folder.

A folder without the mark was made by another program, whatever its name is, and is not touched.  What ddptop removes,
renames or writes in a run directory it finds by `owned`, past no link.  This module knows no records.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ddptop.agent.run.files import decoding, private

NAME: Final = ".ddptop"
BASE: Final = "ddptop base"
RUN: Final = "ddptop run"
DIAGNOSIS: Final = "ddptop diagnosis"
FORMAT: Final = 1
"""Format of the folders that this version makes; folders of a newer format are not removed."""
_LARGEST: Final = 4096
_DEEPEST: Final = 3
"""Folders between a file of ours and a mark at most, the marked one included."""


class Mark(msgspec.Struct, frozen=True):
    """The content of a mark."""

    kind: str
    """`BASE`, `RUN` or `DIAGNOSIS`."""
    format: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = FORMAT
    run_id: str = ""
    """Id of the run in the folder."""
    inode: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Inode of the marked folder, which a copy of it does not have."""


def read(folder: Path, *kinds: str) -> Mark | None:
    """Return the mark of one of these kinds in a folder, None where there is none."""
    try:
        mark = decoding.of(Mark).decode(private.read(folder / NAME, _LARGEST))
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return mark if mark.kind in kinds else None


def owned(path: Path) -> Path:
    """Return the path of a file or folder in a run directory, once no link is among the folders that lead to it.

    Where such a folder is missing, the caller may make it.

    Raises:
        OSError: a link or a file is in the place of a folder, or none of the folders has our mark.
    """
    for folder in path.parents[:_DEEPEST]:
        if os.path.lexists(folder):
            if not stat.S_ISDIR(folder.lstat().st_mode):
                said = "a link or a file in the place of a folder of ddptop's; move it away"
                raise OSError(errno.ELOOP, said, str(folder))
            if read(folder, RUN, DIAGNOSIS) is not None:
                return path
    raise OSError(errno.EPERM, f"ddptop did not make this folder (no {NAME} in it)", str(path.parent))


def owned_folder(folder: Path) -> Path:
    """Return a run directory or a folder in it, once neither it nor a folder that leads to it is a link; as above."""
    return owned(folder / NAME).parent


def append(path: Path) -> int:
    """Open a log in a run directory for writing at its end, and return the descriptor; see `owned`."""
    return os.open(owned(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def make(folder: Path) -> None:
    """Make the folder of a diagnosis, marked from its first moment on, unless it is there.

    Raises:
        OSError: it cannot be made, or another program's is in its place; see `owned`.
    """
    if is_ours(folder):
        return
    staging = owned(folder).with_name(f".{folder.name}.{os.urandom(4).hex()}")
    staging.parent.mkdir(mode=0o700, exist_ok=True)
    staging.mkdir(mode=0o700)
    write(staging, Mark(DIAGNOSIS))
    try:
        # Several ranks may make it at once.
        staging.rename(folder)
    except OSError:
        os.unlink(staging / NAME)
        staging.rmdir()
        if not is_ours(folder):
            raise


def is_ours(folder: Path) -> bool:
    """Say whether a folder is that of a diagnosis, which ddptop made, and neither a copy nor a link."""
    try:
        mark = read(owned(folder), DIAGNOSIS)
        return mark is not None and is_original(folder, mark)
    except OSError:
        return False


def is_original(folder: Path, mark: Mark) -> bool:
    """Say whether a folder is the one that was marked, and not a copy of it."""
    return mark.inode == folder.lstat().st_ino


def renew(folder: Path, mark: Mark) -> None:
    """Write the folder's inode into its mark, where it is a copy."""
    if not is_original(folder, mark):
        mark = msgspec.structs.replace(mark, inode=folder.lstat().st_ino)
        private.replace(folder / NAME, msgspec.json.encode(mark))


def write(folder: Path, mark: Mark) -> None:
    """Mark a folder, with its inode; an existing file of the mark's name stays as it is.

    Raises:
        OSError: nothing was written, or the mark's name is in use.
    """
    mark = msgspec.structs.replace(mark, inode=folder.stat().st_ino)
    descriptor = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(mark))
    except OSError:
        # An empty mark is invalid, and would prevent another from being written.
        os.unlink(folder / NAME)
        raise
    finally:
        os.close(descriptor)
