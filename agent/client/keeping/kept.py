"""The packed runs of a user: those that are kept, and the baselines that others are compared with.

Each is a file of its own in the user's data directory, so that neither the ring nor `ddptop clean` reaches it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.client import runs
from ddptop.agent.client.host import state
from ddptop.agent.client.keeping.packed import MOST_BYTES, PackedError, pack, unpack
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.run.files import private
from ddptop.agent.run.rundir import check_name

ENDING: Final = ".ddptop"
"""Of the names of all packed runs of ours."""
BASELINE: Final = "baseline"
KEPT: Final = "kept"
_FOLDERS: Final = {BASELINE: "baselines", KEPT: "runs"}
"""By kind, in the order in which they are looked through."""


class File(NamedTuple):
    """A packed run of this user."""

    name: str
    kind: str
    """`BASELINE` or `KEPT`."""
    path: Path
    size: int
    at: float
    """When it was written, in seconds since the epoch."""


def _folder(kind: str) -> Path:
    try:
        return state.data(_FOLDERS[kind])
    except FileNotFoundError as problem:
        raise PackedError(str(problem.strerror)) from problem


def files() -> list[File]:
    """Return the packed runs of this user by their names, the baselines first."""
    found = []
    for kind in _FOLDERS:
        for path in sorted(_folder(kind).glob(f"*{ENDING}")):
            # Another process may remove it at any time.
            with contextlib.suppress(FileNotFoundError):
                held = path.lstat()
                if stat.S_ISREG(held.st_mode):
                    found.append(File(path.stem, kind, path, held.st_size, held.st_mtime))
    return found


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
    with _written(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.replace(path, packed)
    return path


def write(run: Run, path: Path) -> None:
    """Pack an ended run into a new file.

    Raises:
        PackedError: the file exists or cannot be written, or the run has not ended.
    """
    if os.path.lexists(path):
        raise PackedError(f"{path}: exists already; give another name")
    packed = pack(run)
    with _written(path):
        private.replace(path, packed)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise PackedError(f"{path}: {problem.strerror}") from problem


def found(text: str) -> Path | None:
    """Return the packed run that a name or a path means, None where it means none."""
    is_path = text.endswith(ENDING) or "/" in text or os.path.isfile(text)
    return _named(text) or (Path(text) if is_path else None)


def _named(text: str) -> Path | None:
    return next((each.path for each in files() if each.name == text), None)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Run]:
    """Unpack a file for as long as it is looked at.

    Raises:
        PackedError: it cannot be read, or is no packed run.
    """
    with contextlib.ExitStack() as stack:
        try:
            content = private.read(path, MOST_BYTES)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ddptop-", ignore_cleanup_errors=True))
        except OSError as problem:
            missing = "no such file, and no such run; `ddptop ps` and `ddptop baselines` list them"
            said = (problem.strerror or problem) if os.path.lexists(path) else missing
            raise PackedError(f"{path}: {said}") from None
        yield unpack(content, Path(folder), str(path))


def meant(text: str) -> contextlib.AbstractContextManager[Run]:
    """Open the run that a text means: a run of this machine, a baseline, a kept one, or a file.

    Raises:
        RunDirError: there is none.
    """
    path = None if text in runs.meant(text) else found(text)
    return contextlib.nullcontext(runs.find(text)) if path is None else opened(path)


@contextlib.contextmanager
def against(name: str, run: Run | None = None) -> Iterator[Run]:
    """Open what a run is to be compared with: a baseline, a kept run, a run of this machine, or a file.

    It is meant by its whole name, so that what is absent is not taken for another.

    Raises:
        RunDirError: there is nothing of that name, or it is the run itself.
    """
    is_run = name in runs.meant(name)
    path = _named(name) or (None if is_run else found(name))
    if path is None and not is_run:
        raise RunDirError(
            f"against {name!r}: no such run or baseline of that whole name; "
            "`ddptop ps` and `ddptop baselines` list them"
        )
    with contextlib.nullcontext(runs.find(name)) if path is None else opened(path) as other:
        if run is not None and _identity(other) == _identity(run):
            raise RunDirError(f"against {name!r}: that is {run.name} itself; name another run")
        yield other


def _identity(run: Run) -> tuple[str, int]:
    record = run.record()
    return record.run_id, record.created_at_ns
