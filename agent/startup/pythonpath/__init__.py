"""A folder for PYTHONPATH: Python runs its `sitecustomize` at the start of every process of a run.

It serves runs whose program spawns its ranks itself, which cannot be started under the runner.

sitecustomize  the start of the agent in a process of the run; cheap, and for any version of Python
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that start the agent in the ranks of such a program."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = given.get("PYTHONPATH")
    rest = [os.path.abspath(part) for part in path.split(os.pathsep)] if path else []
    return {"PYTHONPATH": os.pathsep.join([folder, *rest])}
