"""How a run directory is taken away: only with our mark, under the claim on it, and while nobody lives in it.

It loses its name first, so that nobody meets half a run, and its mark last, so that what is left of a
removal that was broken off is known for ours and removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.agent import marks, private
from ddptop.agent.identity import is_alive
from ddptop.agent.private import Claim, RunDirError

if TYPE_CHECKING:
    from ddptop.agent.rundir import RunDir


def take_away(directory: RunDir, run_id: str, patience_s: float = 0.0) -> None:
    """Remove the directory of that run, whatever its state; wait so long for who is just about to let go of it.

    Raises:
        RunDirError: it is not ours, somebody looks after it or lives in it, or it cannot be removed.
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
            path.rename(gone)
            empty(gone)
    except OSError as error:
        raise RunDirError(f"run {name}: {path} could not be removed ({error.strerror}); see its permissions") from error


def empty(folder: Path) -> None:
    """Remove a folder of ours, its mark last: what stays of it after a failure is still known for ours."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != marks.NAME:
                os.unlink(entry.path)
        if set(os.listdir(folder)) <= {marks.NAME}:
            (folder / marks.NAME).unlink(missing_ok=True)
            folder.rmdir()


def clear_away(folder: Path) -> None:
    """Remove a half made or half removed run directory that bears our mark and whose maker is dead."""
    with contextlib.suppress(OSError, RunDirError):
        private.check_folder(folder, os.getuid(), "")
        if (mark := marks.read(folder, marks.RUN)) is None or mark.format > marks.FORMAT:
            return
        # Its maker holds it up to the moment that it bears its own name, and so does who removes it.
        if (claim := Claim.take(folder, to_remove=True)) is not None:
            with claim:
                if claim.excludes_all(folder):
                    empty(folder)
