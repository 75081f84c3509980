"""The mark of ours: a small file in the base and in each run directory that says who made it, and of which run.

What does not bear it was made by somebody else, whatever it is called, and is not touched; in a user's default
base it may be of an older version, which marked nothing (`rundir` looks, and marks it).  Knows no records.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ddptop.agent.run.files import private

NAME: Final = ".ddptop"
BASE: Final = "ddptop base"
RUN: Final = "ddptop run"
FORMAT: Final = 1
"""Of the folders that are made now; what a newer ddptop has made is not removed."""
_LARGEST: Final = 4096


class Mark(msgspec.Struct, frozen=True):
    """What a folder of ours is."""

    kind: str
    """`BASE` or `RUN`."""
    format: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = FORMAT
    run_id: str = ""
    """Of the run whose folder it is."""
    inode: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of the folder that was marked, which a copy of it is not; 0 where that was not noted."""


def read(folder: Path, kind: str) -> Mark | None:
    """Return the mark of that kind in a folder, None where there is none."""
    try:
        mark = msgspec.json.decode(private.read(folder / NAME, _LARGEST), type=Mark)
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return mark if mark.kind == kind else None


def is_original(folder: Path, mark: Mark) -> bool:
    """Say whether a folder is the one that was marked so, and no copy of it."""
    return mark.inode == folder.lstat().st_ino


def renew(folder: Path, mark: Mark) -> None:
    """Mark a folder of ours as that one, where it is a copy or was marked before copies were told apart."""
    if not is_original(folder, mark):
        mark = msgspec.structs.replace(mark, inode=folder.lstat().st_ino)
        private.replace(folder / NAME, msgspec.json.encode(mark))


def write(folder: Path, mark: Mark) -> None:
    """Mark a folder, that one and no copy of it; what bears that name already stays.

    Raises:
        OSError: nothing was written, or something else has the name.
    """
    mark = msgspec.structs.replace(mark, inode=folder.stat().st_ino)
    descriptor = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(mark))
    except OSError:
        # An empty mark would be none, and would keep another from being written.
        os.unlink(folder / NAME)
        raise
    finally:
        os.close(descriptor)
