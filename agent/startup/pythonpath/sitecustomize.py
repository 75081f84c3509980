"""Python imports this module at its start, in the ranks of a run and in all their child processes: it must be cheap.

Such a process may be a Python of any version and without ddptop, so the syntax of this file is that of
Python 2.7.  This file hides another `sitecustomize` further down the import path, and so imports that one itself.
"""

import importlib
import os
import sys


def _watch():
    # type: () -> None
    if sys.version_info < (3, 10):  # noqa: UP036 - Pythons that are too old for ddptop read this file
        return
    try:
        from ddptop.agent.rank.process import spawned

        spawned.watch()
    except Exception as error:  # the program must start, whatever the error is
        if (getattr(error, "name", None) or "").split(".")[0] != "ddptop":
            _complain(error)
        # Otherwise this is the Python of an environment without ddptop, which runs no rank.


def _complain(error):
    # type: (Exception) -> None
    try:
        sys.stderr.write("ddptop: no agent in this process (" + str(error) + ")\n")
    except Exception:  # there is no stderr, or its reader has closed it
        return


def _go_on_to_the_next():
    # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    # The entry stays away, so that the program has the import path that it would have without ddptop.
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        # In Python 2 the name is only in the message.
        name = getattr(error, "name", None) or str(error).split(" ")[-1]
        if name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if "DDPTOP_RUN_DIR" in os.environ:
    _watch()
_go_on_to_the_next()
