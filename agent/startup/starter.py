"""Runs a module as a program of its own, without the current directory on the import path.

    python …/agent/startup/starter.py MODULE ARGS…

`python -m` would search the current directory first; Python 3.10 has no `-P`, and the processes that the
user's program starts would inherit PYTHONSAFEPATH.
"""

import atexit
import gc
import os
import sys


def quicken() -> None:
    """Let this process, which is ours alone, load and end more quickly.

    What modules define stays until the end, and Python looks through all of it for garbage again and again while they
    are imported, and once more when the process ends: a fifth of both.  Garbage is collected all the same, a little
    later.
    """
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)


def isolated(module: str) -> tuple[str, ...]:
    """Return the beginning of a command line that runs `module` without the current directory on the import path."""
    return sys.executable, os.path.abspath(__file__), module


if __name__ == "__main__":
    quicken()
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        # Python has put the folder of this file first; its modules must not be importable as top-level ones.
        del sys.path[0]
    import runpy

    # Without the name, the module finds its arguments from `sys.argv[1]` on.
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
