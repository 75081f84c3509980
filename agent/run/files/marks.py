"""The mark: a small file in the base and in each run directory which says that ddptop made it, and for which run.

A folder without the mark was made by another program, whatever its name is, and is not touched.  This module knows no
records.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ddptop.agent import decoding
from ddptop.agent.run.files import private

NAME: Final = ".ddptop"
BASE: Final = "ddptop base"
RUN: Final = "ddptop run"
FORMAT: Final = 1
"""Format of the folders that this version makes; folders of a newer format are not removed."""
_LARGEST: Final = 4096


class Mark(msgspec.Struct, frozen=True):
    """The content of a mark."""

    kind: str
    """`BASE` or `RUN`."""
    format: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = FORMAT
    run_id: str = ""
    """Id of the run in the folder."""
    inode: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Inode of the marked folder, which a copy of it does not have."""


def read(folder: Path, kind: str) -> Mark | None:
    """Return the mark of that kind in a folder, None where there is none."""
    try:
        mark = decoding.of(Mark).decode(private.read(folder / NAME, _LARGEST))
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return mark if mark.kind == kind else None


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
