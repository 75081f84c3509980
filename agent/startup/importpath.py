"""The first entry of the import path: the folder that Python searches before all others.

`python -m` puts the current directory there, and `python FILE` the folder of the file: a `queue.py`
in that folder would be imported instead of the standard library's.  This module imports only what Python has
loaded at its start (not even `__future__`), because it runs while that folder is still the first entry.
"""

import os
import sys


def is_safe() -> bool:
    """Say whether `-P`, `-I` or PYTHONSAFEPATH keeps Python from putting such a folder there."""
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


def leave_current_directory(module: str) -> None:
    """Remove the current directory from the import path, in a process that was started as `python -m module`."""
    arguments = getattr(sys, "argv", [])
    # `sys.argv` begins so while Python imports the packages of the module, and differently afterwards.
    if arguments[:1] != ["-m"] or is_safe():
        return
    # The name may be joined to its option: `-mddptop.agent`, `-um ddptop.agent`.
    word = sys.orig_argv[-len(arguments)]
    if word == module or (word.startswith("-") and word.endswith(f"m{module}")):
        drop(_current_directory())


def drop(folder: str | None) -> None:
    """Remove `folder`, if it is the first entry."""
    if folder is not None and sys.path[:1] == [folder]:
        del sys.path[0]


def begin_with_script(path: str) -> None:
    """Put the folder of a script first, as `python path` does."""
    if not is_safe():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))


def begin_with_current_directory() -> None:
    """Put the current directory first, as `python -m` does."""
    folder = _current_directory()
    if folder is not None and not is_safe():
        sys.path.insert(0, folder)


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        # The folder was removed; Python then adds no entry.
        return None
