"""Python imports this at its start, in the ranks of a run and in all their helpers: it must cost nothing.

A `sitecustomize` that was there before is hidden by this one, and so run from here.
"""

from __future__ import annotations

import importlib
import os
import sys


def _watch() -> None:
    try:
        from ddptop.agent.rank import spawned

        spawned.watch()
    except Exception as error:  # whatever it is, the program must start
        print(f"ddptop: no agent in this process ({error})", file=sys.stderr)


def _go_on_to_the_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    path = list(sys.path)
    ours = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [folder for folder in path if os.path.abspath(folder) != here]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        sys.path[:] = path


if "DDPTOP_RUN_DIR" in os.environ:
    _watch()
_go_on_to_the_next()
