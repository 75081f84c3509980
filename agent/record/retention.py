"""The bytes of runs on disk, and the removal of ended runs where all together take more than their bound.

The oldest are removed first.  A living run is not removed, nor the newest ended one, which its user may still need.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from ddptop.agent.control.events import Events
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir, RunDirError

_DEEPEST: Final = 4
_MOST_ENTRIES: Final = 200_000
"""Files of one run that are counted: a folder of another user may have any number of them."""


def size_of(path: Path) -> int:
    """Return the bytes of a run directory on disk, logs included; unreadable folders count 0."""
    total = 0
    left = _MOST_ENTRIES
    folders = [(path, 0)]
    while folders and left:
        folder, depth = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if not left:
                        break
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode) and depth < _DEEPEST:
                        folders.append((Path(entry.path), depth + 1))
        except OSError:
            continue
    return total


def bound_of(run: Run) -> int:
    """Return the bytes that all runs may take by the word of a run.

    A job that was started by hand does not know its user's settings; those of the newest launched run hold for it.
    """
    if run.launched:
        return run.all_bytes
    with contextlib.suppress(OSError, RunDirError):
        for directory in rundir.runs():
            with contextlib.suppress(RunDirError):
                if (other := directory.read()).launched:
                    return other.all_bytes
    return run.all_bytes


def make_room(
    most: int,
    events: Events | None = None,
    *,
    spared: RunDir | None = None,
    reported: set[str] | None = None,
) -> dict[str, int]:
    """Remove the oldest ended runs until all runs of this user together take at most `most` bytes.

    Args:
        most: the bound, in bytes.
        events: takes each removal, and each failure.
        spared: a run that is not removed.
        reported: failures of earlier calls, which are not reported again; this call updates the set.

    Returns:
        The names of the removed runs, each with its bytes.
    """
    removed: dict[str, int] = {}
    try:
        directories = rundir.runs()
    except (OSError, RunDirError):
        return removed
    sizes = {directory.path: size_of(directory.path) for directory in directories}
    total = sum(sizes.values())
    reported = set() if reported is None else reported
    problems = set()
    # The newest first: the first ended one stays.
    for directory in reversed([each for each in directories if rundir.is_over(each)][1:]):
        if total <= most:
            break
        if spared is not None and directory.path == spared.path:
            continue
        size = sizes[directory.path]
        try:
            rundir.remove(directory)
        except (OSError, RunDirError) as problem:
            text = f"run {directory.name} was not removed to make room: {problem}"
            problems.add(text)
            if text not in reported:
                _say(events, text, "warning")
            continue
        total -= size
        removed[directory.name] = size
        _say(events, f"run {directory.name} was removed: all runs together took more than {most / 2**20:,.0f} MiB")
    reported.clear()
    reported.update(problems)
    return removed


def _say(events: Events | None, text: str, level: str = "info") -> None:
    if events is not None:
        events.say(text, level)
