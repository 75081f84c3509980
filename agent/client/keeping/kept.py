"""The packed runs of a user: those that are kept, and the baselines that others are compared with.

Each is a file of its own in the user's data directory, so that neither the ring nor `ddptop clean` reaches it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.client import runs
from ddptop.agent.client.host import state
from ddptop.agent.client.keeping.packed import MOST_BYTES, PackedError, pack, unpack
from ddptop.agent.client.runs import Run
from ddptop.agent.run.files import private
from ddptop.agent.run.rundir import MOST_ENTRIES, check_name

ENDING: Final = ".ddptop"
"""Of the names of all packed runs of ours."""
KEPT: Final = "runs"
BASELINES: Final = "baselines"


class File(NamedTuple):
    """A packed run of this user."""

    name: str
    path: Path
    size: int
    at: float
    """When it was written, in seconds since the epoch."""


def _folder(kind: str) -> Path:
    try:
        return state.data(kind)
    except FileNotFoundError as problem:
        raise PackedError(str(problem.strerror)) from problem


def files(kind: str) -> list[File]:
    """Return the packed runs of a kind, `KEPT` or `BASELINES`, by their names."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(_folder(kind)) as entries:
        for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False):
            name = entry.name.removesuffix(ENDING)
            if entry.name != name and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append(File(name, Path(entry.path), status.st_size, status.st_mtime))
    return sorted(found)


def keep(run: Run, name: str, kind: str = KEPT) -> Path:
    """Keep an ended run under a name; a baseline takes the place of an earlier one of its name.

    Raises:
        PackedError: the name is taken, the run has not ended, or nothing can be written.
        RunDirError: the run has no readable record, or the name is none.
    """
    path = _folder(kind) / f"{check_name(name)}{ENDING}"
    if kind == KEPT and os.path.lexists(path):
        raise PackedError(f"a run is kept as {name} already; give another name, or remove {path}")
    packed = pack(run, name if kind == KEPT else "")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.replace(path, packed)
    except OSError as problem:
        raise PackedError(f"{path}: {problem.strerror}") from problem
    return path


def write(run: Run, path: Path) -> None:
    """Pack an ended run into a new file.

    Raises:
        PackedError: the file exists or cannot be written, or the run has not ended.
    """
    if os.path.lexists(path):
        raise PackedError(f"{path}: exists already; give another name")
    packed = pack(run)
    try:
        private.replace(path, packed)
    except OSError as problem:
        raise PackedError(f"{path}: {problem.strerror}") from problem


def found(text: str, *kinds: str) -> Path | None:
    """Return the packed run that a name or a path means, None where it means none."""
    for kind in kinds or (KEPT, BASELINES):
        for each in files(kind):
            if each.name == text:
                return each.path
    return Path(text) if text.endswith(ENDING) or "/" in text or os.path.isfile(text) else None


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Run]:
    """Unpack a file for as long as it is looked at.

    Raises:
        PackedError: it cannot be read, or is no packed run.
    """
    try:
        content = private.read(path, MOST_BYTES)
        with tempfile.TemporaryDirectory(prefix="ddptop-", ignore_cleanup_errors=True) as folder:
            yield unpack(content, Path(folder), str(path))
    except OSError as problem:
        if problem.errno == errno.ENOENT and not path.exists():
            raise PackedError(
                f"{path}: no such file, and no such run; `ddptop ps` and `ddptop baselines` list them"
            ) from None
        raise PackedError(f"{path}: {problem.strerror or problem}") from problem


@contextlib.contextmanager
def meant(text: str, *kinds: str) -> Iterator[Run]:
    """Return the run that a text means: a kept one, a baseline, a file, or a run of this machine.

    Args:
        text: a name, or a path.
        kinds: of the packed runs those that may be meant; a run of this machine comes before them where none is given.

    Raises:
        RunDirError: there is none.
    """
    names = () if kinds else runs.meant(text)
    path = None if text in names else found(text, *kinds)
    if path is None:
        yield runs.find(text)
        return
    with opened(path) as run:
        yield run
