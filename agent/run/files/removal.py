"""The removal of a run directory: only with our mark, under the claim on it, and while no process uses it.

The folder is renamed first, so that no reader meets half a run, and loses its mark last, so that the remains of an
interrupted removal are recognized as ours and removed by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.private import Claim, RunDirError


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
