"""The source of a program at its launch: the commit of its folder, by git, and whether files there differ from it."""

from __future__ import annotations

import os
import subprocess
from typing import Final

_WAIT_S: Final = 2.0
"""Seconds that git may take: a launch does not wait for a repository on a slow disk."""


def of(cwd: str, program: str) -> tuple[str, bool | None]:
    """Return the commit of the folder of a script, or of `cwd` for a module, and whether files of it differ there.

    Files that git does not know count as well, those that it ignores do not. Empty and None: not known.
    """
    folder = os.path.dirname(os.path.join(cwd, program)) if os.path.isfile(os.path.join(cwd, program)) else cwd
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not commit.strip():
        return "", None
    changed = _git(folder, "status", "--porcelain", "--", ".")
    return commit.strip(), None if changed is None else bool(changed.strip())


def _git(folder: str, *words: str) -> str | None:
    """Return the output of a command of git, None where it fails."""
    command = ["git", "--no-optional-locks", "-C", folder, *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, stdin=subprocess.DEVNULL)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return found.stdout if found.returncode == 0 else None
