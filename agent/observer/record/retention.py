"""What runs take on the disk, and which ended ones go when all together take more than they may.

The oldest go first.  A live run never goes, nor does the newest ended one: what happened in it is still wanted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir, RunDirError

_DEEPEST: Final = 4
_MOST_ENTRIES: Final = 200_000
"""Files of one run that are looked at: another user may have put any number there."""


def size_of(path: Path) -> int:
    """Return the bytes that a run directory takes on the disk, logs included; what cannot be looked at counts 0."""
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


def make_room(
    most: int,
    report: Callable[[str, str], None] = lambda text, level: None,
    *,
    spared: RunDir | None = None,
    told: set[str] | None = None,
) -> dict[str, int]:
    """Remove the oldest ended runs until all runs of this user together take at most so many bytes.

    Args:
        most: the bytes.
        report: takes text and level of what was removed, and of what could not be.
        spared: a run that is not removed.
        told: what could not be removed and was reported already, from call to call; it is not reported again.

    Returns:
        The names of the removed runs, with the bytes that each took.
    """
    removed: dict[str, int] = {}
    try:
        directories = rundir.runs()
    except (OSError, RunDirError):
        return removed
    sizes = {directory.path: size_of(directory.path) for directory in directories}
    total = sum(sizes.values())
    told = set() if told is None else told
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
            if text not in told:
                report(text, "warning")
            continue
        total -= size
        removed[directory.name] = size
        report(f"run {directory.name} was removed: all runs together took more than {most / 2**20:,.0f} MiB", "info")
    told.clear()
    told.update(problems)
    return removed
