"""The removal of a run directory: only with our mark, under the claim on it, and while no process uses it.

The folder is renamed first, so that no reader meets half a run, and loses its mark last, so that the remains of an
interrupted removal are recognized as ours and removed by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.marks import Mark
from ddptop.agent.run.files.private import Claim, RunDirError
from ddptop.agent.run.identity import is_alive
from ddptop.agent.run.records import Member, Run


class Directory(Protocol):
    """The part of a run directory that its removal needs."""

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
        """Return the record; raises `RunDirError` where it does not belong to this folder."""
        ...

    def mark(self) -> Mark | None:
        """Return the mark, None where there is none."""
        ...


class Remained(RunDirError):
    """The run is removed, and its name is free; but some of its files remain."""


def remove(directory: Directory, run_id: str, patience_s: float = 0.0) -> None:
    """Remove the directory of that run, whatever its state; wait up to `patience_s` for processes that are leaving it.

    Raises:
        RunDirError: it is not ours, a process looks after or uses it, or it cannot be removed.
        Remained: its name is free, but not all of its files could be removed.
    """
    name, path = directory.name, directory.path
    deadline = time.monotonic() + patience_s
    gone = path.with_name(f".{name}.{os.urandom(4).hex()}")
    try:
        while (claim := Claim.acquire(path, to_remove=True)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if claim is None:
            raise RunDirError(f"run {name}: somebody still looks after it; `ddptop kill {name}` ends it")
        with claim:
            while not (alone := claim.excludes_all(path)) and time.monotonic() < deadline:
                time.sleep(0.01)
            # Agents of older versions hold no lock: their processes are looked up.
            if not alone or any(is_alive(member.process) for member in directory.members().values()):
                raise RunDirError(f"run {name}: a process of it still lives; `ddptop kill {name}` ends it")
            # Under the claim nobody else replaces the folder, so that this check holds for the removal below.
            if directory.read_own().run_id != run_id:
                raise RunDirError(f"run {name}: another run has taken the name meanwhile")
            if (mark := directory.mark()) is not None:
                # On a full disk the mark of a copy stays as it is; the remains are reported below.
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


def set_aside(directory: Directory, name: str) -> None:
    """Give an ended run another name, which is not in use, so that a new run can have its own.

    Raises:
        RunDirError: a process looks after it or uses it, or it cannot be renamed.
    """
    path = directory.path.with_name(name)
    try:
        claim = Claim.acquire(directory.path, to_remove=True)
        if claim is None:
            raise RunDirError(f"run {directory.name}: somebody still looks after it; choose another --name")
        with claim:
            if not claim.excludes_all(directory.path):
                raise RunDirError(f"run {directory.name}: a process of it still lives; choose another --name")
            run = directory.read_own()
            directory.path.rename(path)
            private.replace(path / "run.json", msgspec.json.encode(msgspec.structs.replace(run, run=name)))
    except OSError as error:
        raise RunDirError(f"run {directory.name}: cannot be renamed ({error.strerror}); choose a --name") from error


def empty(folder: Path) -> OSError | None:
    """Remove a folder of ours, its mark last: after a failure the remains are still recognized as ours.

    Return the first failure, None where the folder is gone.
    """
    # Here, because it loads compressors, and few verbs remove anything.
    import shutil

    failures: list[OSError] = []

    try:
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                    # Everything removable is removed; a second attempt raises the reason for the rest.
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
    """Remove a half made or half removed run directory with our mark that is no copy and that no process holds."""
    with contextlib.suppress(OSError, RunDirError):
        private.check_folder(folder, os.getuid(), "")
        if (mark := marks.read(folder, marks.RUN)) is None or mark.format > marks.FORMAT:
            return
        if not marks.is_original(folder, mark):
            # The user has copied a folder with its mark.
            return
        # Its maker holds it until it has the run's name; a process that removes it has the claim.
        if (claim := Claim.acquire(folder, to_remove=True)) is not None:
            with claim:
                if claim.excludes_all(folder):
                    empty(folder)
