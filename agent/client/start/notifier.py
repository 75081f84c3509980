"""The process that tells of a run: where it sends its messages, and its start.

The addresses may be secrets. They stand in a file of the run that only its owner can read, and on no command line.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.launcher import detached
from ddptop.agent.run.files import marks, private

MODULE: Final = "ddptop.agent.onlookers.notify.notifier"
_FILE: Final = "notify.json"
_PATIENCE_S: Final = 20.0
"""Seconds that it may take to begin, on a busy machine; and after the end of the run, where nothing of ddptop is to be
left after that."""


def log(run: Run) -> Path:
    """Return its log, which it holds locked while it lives."""
    return run.directory.logs / "notifier.log"


def targets(run: Run) -> tuple[str, ...]:
    """Return the addresses that were given for this run."""
    try:
        return msgspec.json.decode(private.read(run.directory.path / _FILE), type=tuple[str, ...])
    except (OSError, msgspec.MsgspecError, ValueError):
        return ()


def set_targets(run: Run, urls: Iterable[str]) -> None:
    """Have the messages on a run sent to these addresses, also by a notifier that lives.

    Raises:
        RunDirError: they cannot be written down.
    """
    try:
        private.replace(marks.owned(run.directory.path / _FILE), msgspec.json.encode(list(dict.fromkeys(urls))))
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
        with private.open_plain(log(run)) as file:
            # Shared, so that of two who ask at once neither takes the other for the notifier.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as problem:
        return isinstance(problem, BlockingIOError)
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
    # It stands in no folder that could be removed, where a relative path would mean another place.
    folders = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})
    try:
        detached.begin(MODULE, run.directory.path.absolute(), log(run), environment, "/").wait()
    except OSError as problem:
        raise RunDirError(f"run {run.name}: its notifier could not be started: {problem.strerror}") from problem


def await_change(run: Run, *, to_live: bool) -> bool:
    """Wait for some time until the notifier of a run lives, or has sent its last messages; return whether it does."""
    give_up = time.monotonic() + _PATIENCE_S
    while is_live(run) != to_live and time.monotonic() < give_up:
        time.sleep(0.05)
    return is_live(run)
