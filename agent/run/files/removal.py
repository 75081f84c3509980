"""How a run directory is taken away: only with our mark, under the claim on it, and while nobody lives in it.

It loses its name first, so that nobody meets half a run, and its mark last, so that what is left of a
removal that was broken off is known for ours and removed by the next.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.marks import Mark
from ddptop.agent.run.files.private import Claim, RunDirError
from ddptop.agent.run.identity import is_alive
from ddptop.agent.run.records import Member, Run


class Directory(Protocol):
    """What has to be known of a run directory to remove it."""

    @property
    def name(self) -> str:
        """The run's name."""
        ...

    @property
    def path(self) -> Path:
        """The folder."""
        ...

    def members(self) -> Mapping[int, Member]:
        """Return the records of the ranks."""
        ...

    def read_own(self) -> Run:
        """Return the record; raises `RunDirError` where it is not this folder's."""
        ...

    def mark(self) -> Mark | None:
        """Return the mark, None where there is none."""
        ...


class Remained(RunDirError):
    """The run is gone, and its name is free; something of its files is still there."""


def take_away(directory: Directory, run_id: str, patience_s: float = 0.0) -> None:
    """Remove the directory of that run, whatever its state; wait so long for who is just about to let go of it.

    Raises:
        RunDirError: it is not ours, somebody looks after it or lives in it, or it cannot be removed.
        Remained: its name is free, but not all of its files could be removed.
    """
    name, path = directory.name, directory.path
    deadline = time.monotonic() + patience_s
    gone = path.with_name(f".{name}.{secrets.token_hex(4)}")
    try:
        while (claim := Claim.take(path, to_remove=True)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if claim is None:
            raise RunDirError(f"run {name}: somebody still looks after it; `ddptop kill {name}` ends it")
        with claim:
            while not (alone := claim.excludes_all(path)) and time.monotonic() < deadline:
                time.sleep(0.01)
            # Agents of older versions hold nothing: their processes are looked for.
            if not alone or any(is_alive(member.process) for member in directory.members().values()):
                raise RunDirError(f"run {name}: a process of it still lives; `ddptop kill {name}` ends it")
            # Nobody else removes it now, so that this is what goes.
            if directory.read_own().run_id != run_id:
                raise RunDirError(f"run {name}: another run has taken the name meanwhile")
            if (mark := directory.mark()) is not None:
                # On a full disk what is left of a copy stays, and is told.
                with contextlib.suppress(OSError):
                    marks.renew(path, mark)
            path.rename(gone)
            if (problem := empty(gone)) is not None:
                raise Remained(
                    f"run {name}: removed, but {problem.filename or gone} could not be ({problem.strerror}); "
                    f"remove {gone} yourself"
                )
    except OSError as error:
        raise RunDirError(f"run {name}: {path} could not be removed ({error.strerror}); see its permissions") from error


def empty(folder: Path) -> OSError | None:
    """Remove a folder of ours, its mark last: what stays of it after a failure is still known for ours.

    Return the first failure, None where nothing is left.
    """
    failures: list[OSError] = []

    try:
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                    # All that can go has gone; what is left says why.
                    shutil.rmtree(entry.path)
                elif entry.name != marks.NAME:
                    os.unlink(entry.path)
            except FileNotFoundError:
                continue
            except OSError as problem:
                failures.append(problem)
        if not failures:
            if not set(os.listdir(folder)) <= {marks.NAME}:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
            (folder / marks.NAME).unlink(missing_ok=True)
            folder.rmdir()
    except OSError as problem:
        failures.append(problem)
    return failures[0] if failures else None


def clear_away(folder: Path) -> None:
    """Remove a half made or half removed run directory that bears our mark, is no copy, and whose maker is dead."""
    with contextlib.suppress(OSError, RunDirError):
        private.check_folder(folder, os.getuid(), "")
        if (mark := marks.read(folder, marks.RUN)) is None or mark.format > marks.FORMAT:
            return
        if not marks.is_original(folder, mark):
            # A copy that the user has made, mark and all.
            return
        # Its maker holds it up to the moment that it bears its own name, and so does who removes it.
        if (claim := Claim.take(folder, to_remove=True)) is not None:
            with claim:
                if claim.excludes_all(folder):
                    empty(folder)
