"""Runs a module as a program of its own, without the current directory on the import path.

    python …/agent/starter.py MODULE ARGS…

`python -m` would look into the current directory first; `-P` is not known to Python 3.10, and
PYTHONSAFEPATH would be inherited by what the user's program starts.
"""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        # The folder of this file, whose modules are no top-level ones.
        del sys.path[0]
    import runpy

    # The name goes, so that the module finds its own arguments where it expects them.
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
