"""The process that tells of a run: where it sends its messages, and its start.

The addresses may be secrets. They stand in a file of the run that only its owner can read, and on no command line.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.launcher.detached import DETACHER
from ddptop.agent.run.files import decoding, marks, private

MODULE: Final = "ddptop.agent.onlookers.notify.notifier"
_FILE: Final = "notify.json"
_START_S: Final = 20.0
"""Seconds that it may take to begin, on a busy machine."""
_END_S: Final = 20.0
"""Seconds that it may take after the end of the run, where nothing of ddptop is to be left after that."""


class _Targets(msgspec.Struct, frozen=True):
    """What the file holds."""

    to: tuple[str, ...] = ()


def log(run: Run) -> Path:
    """Return its log, which it holds locked while it lives."""
    return run.directory.logs / "notifier.log"


def targets(run: Run) -> tuple[str, ...]:
    """Return the addresses that were given for this run."""
    try:
        return decoding.of(_Targets).decode(private.read(run.directory.path / _FILE)).to
    except (OSError, msgspec.MsgspecError, ValueError):
        return ()


def set_targets(run: Run, urls: Iterable[str]) -> None:
    """Have the messages on a run sent to these addresses, also by a notifier that lives.

    Raises:
        RunDirError: they cannot be written down.
    """
    try:
        private.replace(
            marks.owned(run.directory.path / _FILE), msgspec.json.encode(_Targets(tuple(dict.fromkeys(urls))))
        )
    except OSError as problem:
        raise RunDirError(f"run {run.name}: {_FILE}: {problem.strerror}") from None


def lock(run: Run) -> int | None:
    """Open the log and lock it, as the one notifier of a run; None where there is one.

    Raises:
        OSError: the log cannot be opened.
    """
    descriptor = marks.append(log(run))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_live(run: Run) -> bool:
    """Say whether a notifier of the run lives."""
    try:
        descriptor = os.open(log(run), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, so that of two who ask at once neither takes the other for the notifier.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def start(run: Run, urls: Iterable[str] = ()) -> None:
    """Start the notifier of a run where none lives, detached from the terminal and from the caller.

    Args:
        run: the run.
        urls: where messages go, besides what the settings say.

    Raises:
        RunDirError: it cannot be started.
    """
    if urls:
        set_targets(run, (*targets(run), *urls))
    # Another one could take the place of one that has just told of the end, and tell of it once more.
    if is_live(run):
        return
    environment = dict(os.environ)
    if given := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))
    path = run.directory.path.absolute()
    try:
        with open(marks.append(log(run)), "ab") as written:
            # It ends within moments, and leaves the notifier to nobody.
            subprocess.run(
                [sys.executable, "-S", DETACHER, MODULE, str(path)],
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
                check=False,
            )
    except OSError as problem:
        raise RunDirError(f"run {run.name}: its notifier could not be started: {problem.strerror}") from problem


def await_end(run: Run) -> None:
    """Wait for some time until the notifier of a run has sent its last messages."""
    give_up = time.monotonic() + _END_S
    while is_live(run) and time.monotonic() < give_up:
        time.sleep(0.1)


def await_start(run: Run) -> bool:
    """Wait until the notifier of a run lives; return False where it does not come."""
    give_up = time.monotonic() + _START_S
    while not is_live(run):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True
