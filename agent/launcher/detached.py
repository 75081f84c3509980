"""The start of a run's observer by a process that must not pass anything on to it: a rank's agent, or an onlooker.

The observer of a launched run is the parent of torchrun and starts with the launch; this is for a job that something
else launched.  An observer that finds another one at work ends at once (`private.Claim`), so that a start too
many does no harm.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptop.agent.run.base import BASE_VARIABLE
from ddptop.agent.run.files import marks
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.startup import starter

if TYPE_CHECKING:
    import subprocess

MODULE: Final = "ddptop.agent.observer.observer"
_AGAIN_S: Final = 3.0
"""Seconds between two attempts of any processes: the last observer may still be starting."""
_DETACHER: Final = os.path.join(os.path.dirname(os.path.abspath(starter.__file__)), "detacher.py")
"""The script that starts a module as no child of the caller."""
_INTERPRETERS: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TMPDIR", "TZ")
"""The variables that a Python may need to start and to find its libraries; no others are passed on."""
_IMPORTED: Final = ("ddptop", "msgspec", "psutil", "zmq")
"""The packages that the observer imports."""


def is_due(directory: RunDir) -> bool:
    """Say whether the last attempt is long enough ago, and note this one by the time of the observer's log."""
    log = directory.observer_log
    try:
        # Of several processes that ask at once, one makes the file.
        os.close(os.open(marks.owned(log), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError:
        return False
    else:
        return True
    try:
        if abs(time.time() - log.stat().st_mtime) < _AGAIN_S:
            return False
        os.utime(log)
    except OSError:
        return False
    return True


def start(directory: RunDir) -> subprocess.Popen[bytes]:
    """Start the observer of a run; return a process that ends within moments, and has to be waited for.

    The observer is no child of the caller, in another session and process group, without its descriptors and
    variables.

    Raises:
        OSError: it cannot be started.
    """
    path = directory.path.absolute()
    environment = {name: os.environ[name] for name in _INTERPRETERS if name in os.environ}
    if folders := _import_path(os.environ.get("PYTHONPATH", "")):
        environment["PYTHONPATH"] = folders
    return begin(MODULE, path, directory.observer_log, {**environment, BASE_VARIABLE: str(path.parent)}, path)


def begin(
    module: str, path: Path, log: Path, environment: Mapping[str, str], cwd: Path | str
) -> subprocess.Popen[bytes]:
    """Start a module for the run in a folder, as `start` does for the observer; its output goes into a log of the run.

    Raises:
        OSError: it cannot be started.
    """
    # Here, because each look at a run imports this module, and few start an observer.
    import subprocess

    with open(marks.append(log), "ab") as written:
        return subprocess.Popen(
            [sys.executable, "-S", _DETACHER, module, str(path)],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )


def _import_path(given: str) -> str:
    """Return those folders of a PYTHONPATH into which a package was installed that the observer needs, if any."""
    folders = [os.path.abspath(folder) for folder in given.split(os.pathsep) if folder]
    return os.pathsep.join(
        folder for folder in folders if any(os.path.isdir(os.path.join(folder, name)) for name in _IMPORTED)
    )
