"""Python imports this at its start, in the ranks of a run and in all their helpers: it must cost nothing.

A helper may be another Python, of any age and without ddptop: this file is read by all of them, so
that its syntax is that of Python 2.7.  A `sitecustomize` that was there before is hidden by this
one, and so run from here.
"""

import importlib
import os
import sys


def _watch():
    # type: () -> None
    if sys.version_info < (3, 10):  # noqa: UP036 - older ones read this file, too old for ddptop
        return
    try:
        from ddptop.agent.rank.process import spawned

        spawned.watch()
    except Exception as error:  # whatever it is, the program must start
        if (getattr(error, "name", None) or "").split(".")[0] != "ddptop":
            _complain(error)
        # Otherwise this is the Python of another environment: no rank of ours, and nobody's trouble.


def _complain(error):
    # type: (Exception) -> None
    try:
        sys.stderr.write("ddptop: no agent in this process (" + str(error) + ")\n")
    except Exception:  # no stderr, or nobody who reads it
        return


def _go_on_to_the_next():
    # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    # For good: what the program sees is the import path that it would have without us.
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        # Python 2 does not tell the name otherwise.
        name = getattr(error, "name", None) or str(error).split(" ")[-1]
        if name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if "DDPTOP_RUN_DIR" in os.environ:
    _watch()
_go_on_to_the_next()
